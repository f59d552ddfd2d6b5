//! The report: what was found, what is missing and how to get it.

use super::{Accelerators, Gpus, Instructions, Machine, Space, Trials, Versions};
use serde::Serialize;
use std::fmt::Write as _;

/// What a run of the smallest network needs; below it training is not tried.
const LEAST_MEMORY: u64 = 512 << 20;
/// Below these a run may end early: worth a word.
const ENOUGH_MEMORY: u64 = 4 << 30;
const ENOUGH_DISK: u64 = 2 << 30;
const ENOUGH_FILES: u64 = 256;

/// One thing that is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// Training on the CPU cannot work without it.
    pub needed: bool,
    pub missing: String,
    /// How to get it.
    pub remedy: String,
}

/// All that the doctor has found; `--json` shows its fields under these names.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Whether training on the CPU can work.
    pub ready: bool,
    pub versions: Versions,
    pub instructions: Instructions,
    pub machine: Machine,
    pub gpus: Gpus,
    #[serde(flatten)]
    pub accelerators: Accelerators,
    /// What `--device` can be.
    pub devices: Vec<String>,
    pub trials: Trials,
    pub missing: Vec<Advice>,
}

/// Training on the CPU cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("training cannot work on this machine: {}", .0.join("; "))]
pub struct NotReady(pub Vec<String>);

impl Report {
    pub(super) fn new(
        versions: Versions,
        instructions: Instructions,
        machine: Machine,
        gpus: Gpus,
        accelerators: Accelerators,
        trials: Trials,
    ) -> Self {
        let missing = advice(&instructions, &machine, &gpus, &accelerators, &trials);
        Self {
            ready: !missing.iter().any(|a| a.needed),
            versions,
            instructions,
            machine,
            gpus,
            devices: accelerators.devices(),
            accelerators,
            trials,
            missing,
        }
    }

    /// # Errors
    /// [`NotReady`] with what is missing.
    pub fn verdict(&self) -> Result<(), NotReady> {
        let needed = self.missing.iter().filter(|a| a.needed);
        let needed: Vec<String> = needed
            .map(|a| format!("{}: {}", a.missing, a.remedy))
            .collect();
        if needed.is_empty() {
            Ok(())
        } else {
            Err(NotReady(needed))
        }
    }

    /// For people: a line for each thing.
    #[must_use]
    pub fn text(&self) -> String {
        let mut t = Lines(String::new());
        let v = &self.versions;
        let commit = v.commit.map_or(String::new(), |c| format!(", commit {c}"));
        t.line(
            "program",
            &format!(
                "yolo-train {}{commit}, Burn {}, {}",
                v.program, v.burn, v.target
            ),
        );
        let m = &self.machine;
        t.line("processor", m.processor.as_deref().unwrap_or("unknown"));
        t.line("instructions", &self.instructions_text());
        t.line("threads", &threads(m));
        t.line("memory", &memory(m));
        for disk in &m.disks {
            t.line("disk", &room(disk));
        }
        if let Some(shared) = &m.shared_memory {
            t.line("shared memory", &room(shared));
        }
        t.line(
            "open files",
            &m.open_files
                .map_or("no limit known".into(), |n| format!("at most {n}")),
        );
        t.line(
            "devices",
            &format!("{} (--device)", self.devices.join(", ")),
        );
        t.line("GPUs", &gpus(&self.gpus));
        for (title, text) in self.accelerators.lines() {
            t.line(&title, &text);
        }
        for (name, trial) in [
            ("compute", &self.trials.compute),
            ("files", &self.trials.disk),
        ] {
            let word = if trial.passed { "works" } else { "FAILED" };
            t.line(name, &format!("{word}: {}", trial.detail));
        }
        for a in &self.missing {
            let word = if a.needed { "MISSING" } else { "note" };
            t.line(word, &format!("{}: {}", a.missing, a.remedy));
        }
        t.line(
            "verdict",
            if self.ready {
                "training on the CPU can work"
            } else {
                "training cannot work here"
            },
        );
        t.0
    }

    fn instructions_text(&self) -> String {
        let i = &self.instructions;
        let forced = i
            .forced
            .as_ref()
            .map_or(String::new(), |f| format!(" by YOLO_TRAIN_ISA={f}"));
        let used = i.used.unwrap_or("none");
        format!(
            "{used} in use{forced}; this machine has {}",
            i.available.join(", ")
        )
    }
}

struct Lines(String);

impl Lines {
    fn line(&mut self, name: &str, value: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{name:<14}{value}");
    }
}

fn advice(i: &Instructions, m: &Machine, g: &Gpus, a: &Accelerators, t: &Trials) -> Vec<Advice> {
    let mut all = vec![];
    let mut add = |needed: bool, missing: String, remedy: &str| {
        all.push(Advice {
            needed,
            missing,
            remedy: remedy.to_owned(),
        });
    };
    if let Some(error) = &i.error {
        add(
            true,
            error.clone(),
            "unset YOLO_TRAIN_ISA, or set one of these",
        );
    }
    if i.available.first() == Some(&"portable") {
        add(
            false,
            "no vector instructions that there are kernels for".into(),
            "training works, but slowly; processors with AVX2 or AVX-512 are several times faster",
        );
    }
    if !t.compute.passed {
        add(
            true,
            format!("right results ({})", t.compute.detail),
            "see the line on compute",
        );
    }
    if !t.disk.passed {
        add(
            true,
            format!("a folder for runs ({})", t.disk.detail),
            "give another one with --project",
        );
    }
    match m.memory_left() {
        Some(left) if left < LEAST_MEMORY => add(
            true,
            format!(
                "memory: {} free, {} are needed at least",
                bytes(left),
                bytes(LEAST_MEMORY)
            ),
            "end other programs, or raise the limit of the container",
        ),
        Some(left) if left < ENOUGH_MEMORY => add(
            false,
            format!("memory: {} are free", bytes(left)),
            "take a smaller --batch and --imgsz where a run ends early",
        ),
        _ => {}
    }
    for disk in m.disks.iter().filter(|d| d.free_bytes < ENOUGH_DISK) {
        add(
            false,
            format!(
                "room on the disk of {}: {} are free",
                disk.folder.display(),
                bytes(disk.free_bytes)
            ),
            "remove what is not needed, or put runs elsewhere with --project",
        );
    }
    if let Some(n) = m.open_files.filter(|&n| n < ENOUGH_FILES) {
        add(
            false,
            format!("open files: at most {n}"),
            "allow more before the run, with: ulimit -n 4096",
        );
    }
    if let Some(cpus) = m.cgroup.cpus.filter(|&c| c + 0.5 < m.threads as f64) {
        add(
            false,
            format!(
                "the control group allows {cpus:.1} processors, {} threads would share them",
                m.threads
            ),
            "give --threads and --workers that fit",
        );
    }
    match &a.cuda {
        Some(cuda) => {
            for (problem, remedy) in &cuda.remedies {
                add(false, problem.clone(), remedy);
            }
        }
        None if g.any() && a.wgpu.is_none() => add(
            false,
            "a GPU cannot be used: this build has no CUDA".into(),
            "build one that has: cargo install --path . --features cuda (GPUs of others: --features wgpu)",
        ),
        None => {}
    }
    all
}

fn threads(m: &Machine) -> String {
    let mut text = format!("{}", m.threads);
    if let Some(n) = m.processors.filter(|&n| n != m.threads) {
        let _ = write!(text, " of {n} processors");
    }
    if let Some(cpus) = m.cgroup.cpus {
        let _ = write!(text, ", control group: {cpus:.1} processors");
    }
    text
}

fn memory(m: &Machine) -> String {
    let shown = |b: Option<u64>| b.map_or("unknown".to_owned(), bytes);
    let mut text = format!(
        "{} free of {}",
        shown(m.memory_available_bytes),
        shown(m.memory_total_bytes)
    );
    if let Some(limit) = m.cgroup.memory_limit_bytes {
        let used = shown(m.cgroup.memory_used_bytes);
        let _ = write!(text, ", control group: {used} used of {}", bytes(limit));
    }
    text
}

fn room(s: &Space) -> String {
    format!(
        "{} free of {} in {}",
        bytes(s.free_bytes),
        bytes(s.total_bytes),
        s.folder.display()
    )
}

fn gpus(g: &Gpus) -> String {
    if !g.any() {
        return "none found".into();
    }
    let mut parts = vec![];
    if !g.nvidia_models.is_empty() {
        parts.push(g.nvidia_models.join(", "));
    }
    if let Some(version) = &g.nvidia_driver {
        parts.push(format!("NVIDIA driver {version}"));
    }
    match g.nvidia_devices.len() {
        0 if g.nvidia_driver.is_some() => {
            parts.push("no /dev/nvidia0 (a container needs --gpus)".into())
        }
        0 => {}
        n => parts.push(format!("{n} NVIDIA devices in /dev")),
    }
    match &g.cuda_library {
        Some(path) => parts.push(path.display().to_string()),
        None if g.nvidia_driver.is_some() => parts.push("no libcuda.so.1".into()),
        None => {}
    }
    if g.amd {
        parts.push("AMD compute driver".into());
    }
    parts.join("; ")
}

/// `3.2 GiB`.
pub(super) fn bytes(n: u64) -> String {
    let n = n as f64;
    for (unit, size) in [("TiB", 40), ("GiB", 30), ("MiB", 20)] {
        let one = (1_u64 << size) as f64;
        if n >= one {
            return format!("{:.1} {unit}", n / one);
        }
    }
    format!("{n} B")
}

#[cfg(test)]
mod tests {
    use super::super::Trial;
    use super::*;

    fn report(
        change: impl FnOnce(&mut Instructions, &mut Machine, &mut Gpus, &mut Trials),
    ) -> Report {
        let ok = || Trial {
            passed: true,
            detail: "fine".into(),
        };
        let mut instructions = Instructions {
            available: vec!["avx2", "portable"],
            used: Some("avx2"),
            forced: None,
            error: None,
        };
        let mut machine = Machine {
            threads: 8,
            memory_total_bytes: Some(32 << 30),
            memory_available_bytes: Some(16 << 30),
            ..Machine::default()
        };
        let mut gpus = Gpus::default();
        let mut trials = Trials {
            compute: ok(),
            disk: ok(),
        };
        change(&mut instructions, &mut machine, &mut gpus, &mut trials);
        let versions = Versions {
            program: "1.2.3",
            commit: None,
            burn: "4",
            target: "x".into(),
        };
        Report::new(
            versions,
            instructions,
            machine,
            gpus,
            Accelerators::default(),
            trials,
        )
    }

    #[test]
    fn a_good_machine_lacks_nothing() {
        let r = report(|_, _, _, _| {});
        assert!(r.ready && r.missing.is_empty() && r.verdict().is_ok());
        let text = r.text();
        assert!(
            text.contains("memory        16.0 GiB free of 32.0 GiB\n"),
            "{text}"
        );
        assert!(
            text.ends_with("verdict       training on the CPU can work\n"),
            "{text}"
        );
    }

    #[test]
    fn what_training_needs_makes_the_verdict_and_the_rest_does_not() {
        let needed: [fn(&mut Instructions, &mut Machine, &mut Gpus, &mut Trials); 4] = [
            |i, _, _, _| i.error = Some("YOLO_TRAIN_ISA=x".into()),
            |_, m, _, _| m.memory_available_bytes = Some(1 << 20),
            |_, _, _, t| t.compute.passed = false,
            |_, _, _, t| t.disk.passed = false,
        ];
        for change in needed {
            let r = report(change);
            let message = r.verdict().unwrap_err().to_string();
            assert!(!r.ready && !message.contains('\n'), "{message}");
            assert!(r.text().contains("MISSING"), "{}", r.text());
        }
        let noted: [fn(&mut Instructions, &mut Machine, &mut Gpus, &mut Trials); 4] = [
            |i, _, _, _| i.available = vec!["portable"],
            |_, m, _, _| m.cgroup.cpus = Some(2.0),
            |_, m, _, _| m.open_files = Some(64),
            |_, _, g, _| g.nvidia_driver = Some("535.1".into()),
        ];
        for change in noted {
            let r = report(change);
            assert!(
                r.ready && r.missing.len() == 1 && r.text().contains("\nnote "),
                "{}",
                r.text()
            );
        }
    }
}
