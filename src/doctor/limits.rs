//! Limits that the system sets: control groups, open files.

use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// What the control groups of this process allow (version 1 or 2); the tightest of the groups above it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Cgroup {
    pub memory_limit_bytes: Option<u64>,
    pub memory_used_bytes: Option<u64>,
    /// Processors that may be used on average.
    pub cpus: Option<f64>,
}

impl Cgroup {
    /// `root` is `/`.
    pub(super) fn find(root: &Path) -> Self {
        let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let mount = root.join("sys/fs/cgroup");
        let mut found = Self::default();
        for line in own.lines() {
            // hierarchy:controllers:path, with no controllers in version 2
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
                continue;
            };
            let of = |name: &str| controllers.split(',').any(|c| c == name);
            if controllers.is_empty() {
                for folder in upwards(&mount, path) {
                    found.version_2(&folder);
                }
            } else if of("memory") {
                for folder in upwards(&mount.join("memory"), path) {
                    found.memory(&folder, "memory.limit_in_bytes", "memory.usage_in_bytes");
                }
            } else if of("cpu") {
                for folder in upwards(&mount.join("cpu"), path) {
                    let quota = number::<f64>(&folder.join("cpu.cfs_quota_us"));
                    let period = number::<f64>(&folder.join("cpu.cfs_period_us"));
                    found.cpu(quota, period);
                }
            }
        }
        found
    }

    fn version_2(&mut self, folder: &Path) {
        self.memory(folder, "memory.max", "memory.current");
        let text = fs::read_to_string(folder.join("cpu.max")).unwrap_or_default();
        let mut words = text.split_whitespace().map(|w| w.parse::<f64>().ok());
        let (quota, period) = (words.next().flatten(), words.next().flatten());
        self.cpu(quota, period);
    }

    fn memory(&mut self, folder: &Path, limit: &str, used: &str) {
        // "max" is no number, and version 1 writes "no limit" as almost 2^63
        let limit = number::<u64>(&folder.join(limit)).filter(|&l| l < 1 << 60);
        if let Some(limit) = limit
            && self.memory_limit_bytes.is_none_or(|l| limit < l)
        {
            self.memory_limit_bytes = Some(limit);
            self.memory_used_bytes = number(&folder.join(used));
        }
    }

    fn cpu(&mut self, quota: Option<f64>, period: Option<f64>) {
        if let (Some(quota), Some(period)) = (quota, period)
            && quota > 0.0
            && period > 0.0
        {
            let cpus = quota / period;
            self.cpus = Some(self.cpus.map_or(cpus, |c| c.min(cpus)));
        }
    }
}

fn number<T: std::str::FromStr>(path: &Path) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The group's folder and those above it. In a container the path may be one of the host, of which only the mount is there.
fn upwards(mount: &Path, path: &str) -> Vec<PathBuf> {
    let mut folders = vec![];
    let mut path = Path::new(path.trim_start_matches('/'));
    loop {
        folders.push(mount.join(path));
        match path.parent() {
            Some(parent) => path = parent,
            None => return folders,
        }
    }
}

/// Soft limit of open files; `None` where there is none or the system does not tell.
pub(super) fn open_files(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/self/limits")).ok()?;
    let line = text.lines().find(|l| l.starts_with("Max open files"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_tightest_group_above_the_process_counts() {
        let root = system(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/a/memory.max", "2000\n"),
            ("sys/fs/cgroup/a/memory.current", "500\n"),
            ("sys/fs/cgroup/a/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/memory.max", "9000\n"),
        ]);
        let expected = Cgroup {
            memory_limit_bytes: Some(2000),
            memory_used_bytes: Some(500),
            cpus: Some(1.5),
        };
        assert_eq!(Cgroup::find(root.path()), expected);
    }

    #[test]
    fn version_1_and_machines_without_groups_are_read_too() {
        let root = system(&[
            (
                "proc/self/cgroup",
                "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n0::/\n",
            ),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "4096\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "96\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ]);
        let found = Cgroup::find(root.path());
        assert_eq!(found.memory_limit_bytes, Some(4096));
        assert_eq!(found.cpus, None);
        let endless = system(&[
            ("proc/self/cgroup", "5:memory:/\n"),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
        ]);
        assert_eq!(Cgroup::find(endless.path()), Cgroup::default());
        assert_eq!(Cgroup::find(Path::new("/nowhere")), Cgroup::default());
    }

    #[test]
    fn the_soft_limit_of_open_files_is_read() {
        let row = "Limit                     Soft Limit           Hard Limit           Units\n\
                   Max open files            1024                 524288               files\n";
        let root = system(&[("proc/self/limits", row)]);
        assert_eq!(open_files(root.path()), Some(1024));
        let endless = system(&[("proc/self/limits", &row.replace("1024  ", "unlimited"))]);
        assert_eq!(open_files(endless.path()), None);
    }
}
