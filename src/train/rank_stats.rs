//! How each rank spends its time: `ranks.csv`, a line on the screen, and the name of a rank that holds up the others.

use super::error::TrainError;
use super::run::Attempt;
use super::spread::Spread;
use crate::dist::{Buffer, Call, ProcessGroup};
use crate::report::{Console, resident_memory};
use std::fmt::Write as _;
use std::path::PathBuf;

/// Optimizer steps of a row.
pub const STEPS: u64 = 20;
/// A rank that computes so much longer than the others' median is named.
const SLOW: f64 = 1.5;

/// Columns of `ranks.csv` after step and ranks, each as least, median and greatest over the ranks.
const FIGURES: [&str; 5] = [
    "images_per_s",
    "data_s",
    "compute_s",
    "exposed_s",
    "memory_mib",
];

/// What a rank has done since the last row.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    images: usize,
    /// Seconds of waiting for batches, and for other ranks.
    data: f64,
    exposed: f64,
    /// Seconds of training steps, waiting included.
    steps: f64,
}

/// See the module.
#[derive(Debug)]
pub struct RankStats {
    part: Part,
    /// Of the rows so far, with their head; written by rank 0.
    text: String,
    path: PathBuf,
    restarts: usize,
    /// What ended the attempt before, without commas.
    fault: String,
}

impl RankStats {
    /// For the run whose `ranks.csv` this is; goes on behind the rows of a run that is resumed.
    #[must_use]
    pub fn new(path: PathBuf, attempt: &Attempt) -> Self {
        let mut head = "step,ranks".to_owned();
        for name in FIGURES {
            let _ = write!(head, ",{name}_min,{name}_median,{name}_max");
        }
        head += ",slow_ranks,restarts,last_fault\n";
        let before = std::fs::read_to_string(&path).unwrap_or_default();
        let text = if before.starts_with(&head) {
            before
        } else {
            head
        };
        Self {
            part: Part::default(),
            text,
            path,
            restarts: attempt.restarts,
            fault: attempt.fault.replace([',', '\n'], ";"),
        }
    }

    /// A micro-batch of this rank: its images, seconds of waiting for its data and for other ranks, and of it all.
    pub fn add(&mut self, images: usize, data: f64, exposed: f64, all: f64) {
        let p = &mut self.part;
        p.images += images;
        p.data += data;
        p.exposed += exposed;
        p.steps += all;
    }

    /// Ends a row after `step` steps, on all ranks.
    ///
    /// # Errors
    /// Those of the collective, [`TrainError::Write`].
    pub fn row(
        &mut self,
        group: &dyn ProcessGroup,
        step: u64,
        console: &Console,
    ) -> Result<(), TrainError> {
        let p = std::mem::take(&mut self.part);
        let rate = p.images as f64 / p.steps.max(1e-9);
        let compute = (p.steps - p.data - p.exposed).max(0.0);
        let memory = resident_memory().unwrap_or(0) as f64 / f64::from(1 << 20);
        let own = vec![rate, p.data, compute, p.exposed, memory];
        let call = Call::latency("figures of ranks");
        let all = group.all_gather(call, Buffer::F64(own)).wait()?;
        let all: Vec<Vec<f64>> = all.into_iter().filter_map(Buffer::into_vec).collect();
        if group.rank() != 0 {
            return Ok(());
        }
        let slow = slow_ranks(&all.iter().map(|r| r[2]).collect::<Vec<_>>());
        let _ = write!(self.text, "{step},{}", all.len());
        let mut shown = vec![];
        for (i, name) in FIGURES.into_iter().enumerate() {
            let Spread { min, median, max } = Spread::of(all.iter().map(|r| r[i]).collect());
            let _ = write!(self.text, ",{min:.4},{median:.4},{max:.4}");
            shown.push(format!("{name} {min:.2}/{median:.2}/{max:.2}"));
        }
        let names: Vec<String> = slow.iter().map(|(rank, _)| rank.to_string()).collect();
        let (restarts, fault) = (self.restarts, &self.fault);
        let _ = writeln!(self.text, ",{},{restarts},{fault}", names.join(" "));
        console.note(format!(
            "  {} ranks, {STEPS} steps, least/median/most: {}",
            all.len(),
            shown.join(", ")
        ));
        for (rank, times) in slow {
            console.warn(format!(
                "rank {rank} computes {times:.1} times as long as the other ranks' median: its device is slower or shared, and all wait for it"
            ));
        }
        super::session::write(&self.path, self.text.as_bytes())
    }
}

/// Ranks that compute over [`SLOW`] times as long as the median of the others, and how many times.
fn slow_ranks(compute: &[f64]) -> Vec<(usize, f64)> {
    let times = compute.iter().enumerate().filter_map(|(rank, own)| {
        let mut others = compute.to_vec();
        others.remove(rank);
        let median = (!others.is_empty()).then(|| Spread::of(others).median)?;
        (median > 0.0).then_some((rank, own / median))
    });
    times.filter(|(_, t)| *t > SLOW).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::tcp::Transport;
    use crate::dist::testing::threads;

    #[test]
    fn a_rank_is_slow_against_the_median_of_the_others() {
        assert_eq!(slow_ranks(&[1.0, 1.4]), []);
        assert_eq!(slow_ranks(&[1.0, 1.6]), [(1, 1.6)]);
        assert_eq!(slow_ranks(&[1.0, 4.0, 1.0, 2.0]), [(1, 4.0), (3, 2.0)]);
        assert_eq!(slow_ranks(&[2.0]), []);
    }

    #[test]
    fn a_row_has_least_median_and_greatest_and_a_resumed_run_goes_on_behind_it() {
        let t = tempfile::tempdir().unwrap();
        let path = t.path().join("ranks.csv");
        for step in [20, 40] {
            threads(2, Transport::Auto, |group| {
                let attempt = Attempt {
                    restarts: 2,
                    fault: "a, b".into(),
                    began: &|_| Ok(()),
                };
                let mut stats = RankStats::new(path.clone(), &attempt);
                let compute = if group.rank() == 0 { 1.0 } else { 2.0 };
                stats.add(8, 0.25, 0.5, 0.75 + compute);
                stats.row(group, step, &Console::silent()).unwrap();
            });
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        let at = |name: &str| lines[0].split(',').position(|c| c == name).unwrap();
        let row: Vec<&str> = lines[2].split(',').collect();
        assert_eq!(row[..2], ["40", "2"]);
        assert_eq!(row[at("compute_s_min")], "1.0000");
        assert_eq!(row[at("compute_s_median")], "1.5000");
        assert_eq!(row[at("compute_s_max")], "2.0000");
        assert_eq!(row[at("data_s_max")], "0.2500");
        assert_eq!(row[at("slow_ranks")..], ["1", "2", "a; b"]);
    }
}
