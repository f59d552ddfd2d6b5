//! `yolo-train bench --comm`: collectives between ranks.

use serde::Serialize;

use super::outcome::{Outcome, print_found};
use super::ranks;
use crate::config::{ConfigError, Place, Settings, find};
use crate::dist::ProcessGroup;
use crate::dist::bench::{Measured, Row, SIZES, measure};
use crate::report::tables::table;

/// Sizes in bytes to measure; `None` where `--comm` is not wanted.
///
/// # Errors
/// [`ConfigError::BadValue`].
pub fn sizes(settings: &Settings) -> Result<Option<Vec<usize>>, ConfigError> {
    let given = match settings.comm.as_deref() {
        None | Some("false") => return Ok(None),
        Some("true") => return Ok(Some(SIZES.to_vec())),
        Some(given) => given,
    };
    let size = |text: &str| {
        let bytes = text.trim().parse().ok();
        bytes.filter(|b: &usize| (4..=1 << 30).contains(b) && b.is_multiple_of(4))
    };
    match given.split(',').map(size).collect() {
        Some(sizes) => Ok(Some(sizes)),
        None => Err(ConfigError::BadValue {
            option: find("comm").expect("a row of the table"),
            place: Place::CommandLine,
            given: given.into(),
            allowed: "sizes in bytes, multiples of 4 up to 1 GiB, with commas between them".into(),
            hint: None,
        }),
    }
}

/// What the ranks found; one row for each size and collective.
#[derive(Debug, Serialize)]
struct Comm {
    engine: &'static str,
    ranks: usize,
    rows: Vec<CommRow>,
}

#[derive(Debug, Serialize)]
struct CommRow {
    collective: &'static str,
    /// Of each rank's float32 values.
    bytes: usize,
    repeats: usize,
    median_ms: f64,
    best_ms: f64,
    /// Bytes over the median.
    gb_per_s: f64,
}

pub fn run(settings: &Settings, sizes: &[usize]) -> anyhow::Result<Outcome> {
    ranks::several(settings, "bench --comm")?;
    ranks::run(settings, |group| {
        let found = found(&**group, sizes)?;
        if group.rank() == 0 {
            print_found(settings.json, &found, || found.table())?;
        }
        Ok(Outcome::Finished)
    })
}

fn found(group: &dyn ProcessGroup, sizes: &[usize]) -> anyhow::Result<Comm> {
    let mut rows = vec![];
    for measured in Measured::ALL {
        rows.extend(measure(group, measured, sizes)?.iter().map(CommRow::of));
    }
    Ok(Comm {
        engine: group.engine(),
        ranks: group.size(),
        rows,
    })
}

impl CommRow {
    fn of(row: &Row) -> Self {
        Self {
            collective: row.measured.name(),
            bytes: row.bytes,
            repeats: row.repeats,
            median_ms: row.median * 1e3,
            best_ms: row.best * 1e3,
            gb_per_s: row.gigabytes_per_second(),
        }
    }
}

impl Comm {
    fn table(&self) -> String {
        let (sums, trees) = self.rows.split_at(self.rows.len() / 2);
        let cells: Vec<Vec<String>> = sums
            .iter()
            .zip(trees)
            .map(|(sum, tree)| {
                let mut cells = vec![bytes(sum.bytes)];
                for row in [sum, tree] {
                    cells.push(time(row.median_ms));
                    cells.push(time(row.best_ms));
                    cells.push(format!("{:.2}", row.gb_per_s));
                }
                cells
            })
            .collect();
        let [sum, tree] = Measured::ALL.map(Measured::name);
        let titles = ["size", sum, "best", "GB/s", tree, "best", "GB/s"];
        format!(
            "{}{} ranks, engine {}: median and best time of a sum of float32; GB/s of the median\n",
            table(&titles, &cells),
            self.ranks,
            self.engine
        )
    }
}

fn bytes(n: usize) -> String {
    match n {
        _ if n.is_multiple_of(1 << 20) => format!("{} MiB", n >> 20),
        _ if n.is_multiple_of(1 << 10) => format!("{} KiB", n >> 10),
        _ => format!("{n} B"),
    }
}

fn time(ms: f64) -> String {
    if ms < 1.0 {
        format!("{:.1} µs", ms * 1e3)
    } else {
        format!("{ms:.2} ms")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::settings;

    #[test]
    fn sizes_are_the_usual_ones_or_those_given() {
        let of = |text: &str| sizes(&settings(&[("comm", text)]));
        assert_eq!(sizes(&Settings::default()).unwrap(), None);
        assert_eq!(of("false").unwrap(), None);
        assert_eq!(of("true").unwrap(), Some(SIZES.to_vec()));
        assert_eq!(of("1024, 4").unwrap(), Some(vec![1024, 4]));
        for wrong in ["0", "1023", "1 KiB", "4,", "4294967296"] {
            let error = of(wrong).unwrap_err().to_string();
            assert!(error.starts_with("bad value for --comm"), "{error}");
        }
    }

    #[test]
    fn a_line_holds_both_collectives_of_a_size() {
        let row = |collective, bytes, median_ms| CommRow {
            collective,
            bytes,
            repeats: 10,
            median_ms,
            best_ms: median_ms / 2.0,
            gb_per_s: 1.5,
        };
        let comm = Comm {
            engine: "tcp",
            ranks: 2,
            rows: vec![
                row("all_reduce", 1024, 0.01),
                row("all_reduce", 10 << 20, 4.0),
                row("all_reduce_tree", 1024, 0.02),
                row("all_reduce_tree", 10 << 20, 6.0),
            ],
        };
        let text = comm.table();
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            lines[1],
            [
                "1", "KiB", "10.0", "µs", "5.0", "µs", "1.50", "20.0", "µs", "10.0", "µs", "1.50"
            ]
        );
        assert_eq!(lines[2][..4], ["10", "MiB", "4.00", "ms"]);
    }
}
