//! Processor, memory, disks.

use super::limits::{Cgroup, open_files};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// Room on the disk of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Space {
    pub folder: PathBuf,
    pub total_bytes: u64,
    /// That this user may fill.
    pub free_bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Machine {
    pub processor: Option<String>,
    /// Processors that the system has.
    pub processors: Option<usize>,
    /// Threads that this process may run at a time.
    pub threads: usize,
    pub memory_total_bytes: Option<u64>,
    pub memory_available_bytes: Option<u64>,
    pub cgroup: Cgroup,
    pub open_files: Option<u64>,
    /// The current folder, `datasets` in it, and where runs go, as far as they are there and lie on different disks.
    pub disks: Vec<Space>,
    /// `/dev/shm`, which holds what processes share.
    pub shared_memory: Option<Space>,
}

impl Machine {
    /// `root` is `/`; runs go into `project`.
    pub(super) fn find(root: &Path, project: &Path) -> Self {
        let cpuinfo = fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        let mut disks: Vec<Space> = vec![];
        for folder in [Path::new("."), Path::new("datasets"), project] {
            let space = folder.exists().then(|| space(folder)).flatten();
            let known = |s: &Space| {
                let same =
                    |d: &Space| (d.total_bytes, d.free_bytes) == (s.total_bytes, s.free_bytes);
                disks.iter().any(same)
            };
            disks.extend(space.filter(|s| !known(s)));
        }
        Self {
            processor: processor(&cpuinfo),
            processors: Some(field_count(&cpuinfo, "processor")).filter(|&n| n > 0),
            threads: crate::train::cores(),
            memory_total_bytes: kilobytes(&meminfo, "MemTotal"),
            memory_available_bytes: kilobytes(&meminfo, "MemAvailable"),
            cgroup: Cgroup::find(root),
            open_files: open_files(root),
            disks,
            shared_memory: space(&root.join("dev/shm")),
        }
    }

    /// Bytes that a run may take: what is free, within the control group's limit.
    #[must_use]
    pub fn memory_left(&self) -> Option<u64> {
        let group = &self.cgroup;
        let in_group = group
            .memory_limit_bytes
            .map(|limit| limit.saturating_sub(group.memory_used_bytes.unwrap_or(0)));
        match (self.memory_available_bytes, in_group) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

/// Fields are `name : value` lines.
fn fields<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

fn field_count(text: &str, name: &str) -> usize {
    fields(text, name).count()
}

/// x86 says `model name`; many ARM systems have only numbers.
fn processor(cpuinfo: &str) -> Option<String> {
    let one = |name| fields(cpuinfo, name).next();
    one("model name")
        .or(one("Model"))
        .or(one("Hardware"))
        .map(str::to_owned)
        .or_else(|| {
            Some(format!(
                "implementer {}, part {}",
                one("CPU implementer")?,
                one("CPU part")?
            ))
        })
}

fn kilobytes(meminfo: &str, name: &str) -> Option<u64> {
    let value = fields(meminfo, name).next()?;
    let number: u64 = value.strip_suffix("kB")?.trim().parse().ok()?;
    number.checked_mul(1024)
}

#[cfg(unix)]
fn space(folder: &Path) -> Option<Space> {
    let s = rustix::fs::statvfs(folder).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(s.f_frsize);
    Some(Space {
        folder: std::path::absolute(folder).ok()?,
        total_bytes: bytes(s.f_blocks),
        free_bytes: bytes(s.f_bavail),
    })
}

#[cfg(not(unix))]
fn space(_: &Path) -> Option<Space> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_of_both_kinds_are_named() {
        let x86 = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n\nprocessor\t: 1\nmodel name\t: Some CPU @ 2 GHz\n";
        assert_eq!(processor(x86).as_deref(), Some("Some CPU @ 2 GHz"));
        assert_eq!(field_count(x86, "processor"), 2);
        let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n";
        assert_eq!(
            processor(arm).as_deref(),
            Some("implementer 0x41, part 0xd40")
        );
        assert_eq!(processor(""), None);
    }

    #[test]
    fn memory_is_read_in_bytes() {
        let text = "MemTotal:       16384 kB\nMemFree: 5 kB\nMemAvailable:    1024 kB\n";
        assert_eq!(kilobytes(text, "MemTotal"), Some(16 << 20));
        assert_eq!(kilobytes(text, "MemAvailable"), Some(1 << 20));
        assert_eq!(kilobytes("MemTotal: many kB\n", "MemTotal"), None);
    }

    #[test]
    fn the_memory_left_is_what_is_free_within_the_groups_limit() {
        let mut m = Machine {
            memory_available_bytes: Some(900),
            ..Machine::default()
        };
        assert_eq!(m.memory_left(), Some(900));
        m.cgroup.memory_limit_bytes = Some(500);
        m.cgroup.memory_used_bytes = Some(100);
        assert_eq!(m.memory_left(), Some(400));
        m.memory_available_bytes = None;
        assert_eq!(m.memory_left(), Some(400));
    }

    #[test]
    fn this_machine_has_threads_and_room_of_the_current_folder() {
        let m = Machine::find(Path::new("/"), Path::new("nowhere"));
        assert!(m.threads > 0);
        if cfg!(target_os = "linux") {
            assert!(m.memory_total_bytes > m.memory_available_bytes);
            let here = &m.disks[0];
            assert!(here.total_bytes >= here.free_bytes && here.total_bytes > 1 << 20);
        }
    }
}
