//! The words of a progress line.

use std::time::Duration;

use super::six_digits;

/// What a pass goes over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unit {
    #[default]
    Images,
    Files,
    Bytes,
}

/// How far a pass is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Progress<'a> {
    pub unit: Unit,
    pub done: usize,
    /// Of those, what an earlier pass had done.
    pub before: usize,
    /// 0: not known.
    pub total: usize,
    pub elapsed: Duration,
    pub losses: &'a str,
    pub extra: &'a str,
    /// Resident memory in bytes, where it is known.
    pub memory: Option<u64>,
}

impl Progress<'_> {
    /// What stands beside the bar or, in plain output, behind the label. The most wanted comes first, because a narrow
    /// terminal cuts the end.
    pub fn line(&self) -> String {
        let mut parts = vec![self.unit.part(self.done, self.total)];
        parts.extend(self.losses());
        let rate = self.rate();
        if rate > 0.0 && self.total > 0 {
            let left = self.total.saturating_sub(self.done) as f64 / rate;
            let left = clock(Duration::from_secs_f64(left.min(1e9)));
            parts.push(format!("{left} left"));
        }
        parts.extend(self.rest());
        parts.join("  ")
    }

    /// What stays when the pass is over.
    pub fn summary(&self) -> String {
        let mut parts = vec![format!(
            "{} in {}",
            self.unit.count(self.done),
            clock(self.elapsed)
        )];
        parts.extend(self.losses());
        parts.extend(self.rest());
        parts.join("  ")
    }

    fn losses(&self) -> Option<String> {
        (!self.losses.is_empty()).then(|| self.losses.into())
    }

    fn rest(&self) -> Vec<String> {
        let mut parts = Vec::new();
        let rate = self.rate();
        if rate > 0.0 {
            parts.push(self.unit.rate(rate));
        }
        parts.extend(self.memory.map(memory));
        if !self.extra.is_empty() {
            parts.push(self.extra.into());
        }
        parts
    }

    /// Images, files or bytes a second since the start; 0 as long as it is unknown.
    fn rate(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 {
            self.done.saturating_sub(self.before) as f64 / seconds
        } else {
            0.0
        }
    }
}

impl Unit {
    /// `3/8 images`, `1.5/18.9 GB`; without the total where that is not known.
    fn part(self, done: usize, total: usize) -> String {
        match (self, total) {
            (_, 0) => self.count(done),
            (Self::Images, _) => format!("{done}/{total} images"),
            (Self::Files, _) => format!("{done}/{total} files"),
            (Self::Bytes, _) => {
                let (size, name) = byte_unit(total);
                format!(
                    "{:.1}/{:.1} {name}",
                    done as f64 / size,
                    total as f64 / size
                )
            }
        }
    }

    fn count(self, done: usize) -> String {
        match self {
            Self::Images => format!("{done} images"),
            Self::Files => format!("{done} files"),
            Self::Bytes => {
                let (size, name) = byte_unit(done);
                format!("{:.1} {name}", done as f64 / size)
            }
        }
    }

    fn rate(self, rate: f64) -> String {
        let name = match self {
            Self::Images => "images",
            Self::Files => "files",
            Self::Bytes => return format!("{:.1} MB/s", rate / 1e6),
        };
        let decimals = match rate {
            ..10.0 => 2,
            ..100.0 => 1,
            _ => 0,
        };
        format!("{rate:.decimals$} {name}/s")
    }
}

/// Powers of ten, as addresses and disks are labelled.
fn byte_unit(bytes: usize) -> (f64, &'static str) {
    match bytes {
        0..1_000_000 => (1e3, "kB"),
        1_000_000..1_000_000_000 => (1e6, "MB"),
        _ => (1e9, "GB"),
    }
}

/// `box 1.234  cls 0.5`: four decimals, or six digits where a loss is too great or small for them.
pub(super) fn losses(named: &[(&str, f64)]) -> String {
    let words = named.iter().map(|&(name, value)| {
        let size = value.abs();
        if size == 0.0 || (1e-3..1e4).contains(&size) {
            format!("{name} {value:.4}")
        } else {
            format!("{name} {}", six_digits(value))
        }
    });
    words.collect::<Vec<_>>().join("  ")
}

/// `0:07`, `12:34`, `3:05:00`.
fn clock(duration: Duration) -> String {
    let seconds = duration.as_secs_f64().round() as u64;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}

fn memory(bytes: u64) -> String {
    let mebibytes = bytes as f64 / f64::from(1_u32 << 20);
    if mebibytes < 1000.0 {
        format!("{mebibytes:.0} MiB")
    } else {
        format!("{:.2} GiB", mebibytes / 1024.0)
    }
}

/// Resident memory of this process in bytes, on systems that have /proc.
pub fn resident_memory() -> Option<u64> {
    parse_memory(
        &std::fs::read_to_string("/proc/self/status").ok()?,
        "VmRSS:",
    )
}

/// The most that it has been.
pub fn peak_memory() -> Option<u64> {
    parse_memory(
        &std::fs::read_to_string("/proc/self/status").ok()?,
        "VmHWM:",
    )
}

fn parse_memory(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix(key))?;
    let kibibytes = line.trim().strip_suffix("kB")?.trim();
    Some(kibibytes.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(done: usize, seconds: u64) -> Progress<'static> {
        Progress {
            unit: Unit::Images,
            done,
            before: 0,
            total: 205,
            elapsed: Duration::from_secs(seconds),
            losses: "box 1.5000  cls 0.2500",
            extra: "size 320",
            memory: Some(1_395_864_371),
        }
    }

    #[test]
    fn a_line_says_losses_rate_memory_and_time_left() {
        assert_eq!(
            progress(120, 10).line(),
            "120/205 images  box 1.5000  cls 0.2500  0:07 left  12.0 images/s  1.30 GiB  size 320"
        );
        assert_eq!(
            progress(205, 3700).summary(),
            "205 images in 1:01:40  box 1.5000  cls 0.2500  0.06 images/s  1.30 GiB  size 320"
        );
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let start = Progress {
            losses: "",
            extra: "",
            memory: None,
            ..progress(0, 0)
        };
        assert_eq!(start.line(), "0/205 images");
        assert_eq!(start.summary(), "0 images in 0:00");
    }

    #[test]
    fn bytes_and_files_have_units_of_their_own() {
        let bytes = Progress {
            unit: Unit::Bytes,
            done: 1_500_000_000,
            total: 18_900_000_000,
            losses: "",
            extra: "",
            memory: None,
            ..progress(0, 60)
        };
        assert_eq!(bytes.line(), "1.5/18.9 GB  11:36 left  25.0 MB/s");
        let unknown = Progress { total: 0, ..bytes };
        assert_eq!(unknown.line(), "1.5 GB  25.0 MB/s");
        assert_eq!(bytes.summary(), "1.5 GB in 1:00  25.0 MB/s");
        let resumed = Progress {
            before: 1_200_000_000,
            ..bytes
        };
        assert_eq!(resumed.line(), "1.5/18.9 GB  58:00 left  5.0 MB/s");
        let files = Progress {
            unit: Unit::Files,
            done: 30,
            total: 60,
            ..bytes
        };
        assert_eq!(files.line(), "30/60 files  1:00 left  0.50 files/s");
    }

    #[test]
    fn memory_is_shown_in_a_unit_that_fits() {
        assert_eq!(memory(123 << 20), "123 MiB");
        assert_eq!(memory(1000 << 20), "0.98 GiB");
    }

    #[test]
    fn losses_keep_digits_when_they_are_large_or_small() {
        assert_eq!(
            losses(&[
                ("box", 1.23456),
                ("cls", 0.0),
                ("l1", 1.5e-5),
                ("dfl", 123456.7),
                ("x", f64::NAN)
            ]),
            "box 1.2346  cls 0.0000  l1 1.5e-05  dfl 123457  x nan"
        );
    }

    #[test]
    fn resident_memory_is_read_from_the_status_of_the_process() {
        assert_eq!(
            parse_memory("VmHWM:\t  9 kB\nVmRSS:\t  123456 kB\n", "VmRSS:"),
            Some(126_418_944)
        );
        assert_eq!(parse_memory("VmRSS: many", "VmRSS:"), None);
        if cfg!(target_os = "linux") {
            assert!(resident_memory().is_some_and(|bytes| bytes > 100_000));
        }
    }
}
