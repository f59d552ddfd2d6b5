//! Processes of ranks in tests: started, watched, and none of them left behind.
#![allow(dead_code, reason = "each file of tests uses a part")]

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Variables that say who a process is: those around the tests must not reach it.
const PLACES: &[&str] = &[
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_STEP_ID",
    "SLURM_STEPID",
    "OMPI_COMM_WORLD_RANK",
    "YOLO_TRAIN_RANK",
    "YOLO_TRAIN_TOKEN",
];

/// Marks all processes of a test, also those that they start.
pub const MARK: &str = "YOLO_TRAIN_TEST_MARK";

pub fn mark() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!(
        "{}.{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

/// The program with these words, its output kept.
pub fn program(mark: &str, words: &[&str]) -> Command {
    let mut program = Command::new(assert_cmd::cargo::cargo_bin!("yolo-train"));
    prepare(&mut program, mark, words);
    program
}

/// Words and surroundings of a command that runs the program.
pub fn prepare(program: &mut Command, mark: &str, words: &[&str]) {
    program.args(words).env(MARK, mark).stdin(Stdio::null());
    for name in PLACES {
        program.env_remove(name);
    }
    program.stdout(Stdio::piped()).stderr(Stdio::piped());
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Standard error of a process that has ended.
pub fn err(output: &Output) -> String {
    text(&output.stderr)
}

/// The lines in which the program says that it has failed.
pub fn errors(output: &Output) -> Vec<String> {
    let lines = err(output);
    let found = lines.lines().filter(|l| l.contains("error:"));
    found.map(str::to_owned).collect()
}

/// Processes with this mark, but for those that have ended.
pub fn alive(mark: &str) -> Vec<u32> {
    let wanted = format!("{MARK}={mark}");
    let mut found = vec![];
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        // a zombie has no environment any more
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment
            .split(|b| *b == 0)
            .any(|v| v == wanted.as_bytes())
        {
            found.push(id);
        }
    }
    found
}

/// Whether all processes with this mark end soon.
pub fn none_left(mark: &str) -> bool {
    let end = Instant::now() + Duration::from_secs(10);
    while !alive(mark).is_empty() {
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Waits for a process; kills it and fails where it takes longer than `limit` (far more than it needs).
pub fn ended(mut child: Child, limit: Duration) -> Output {
    let end = Instant::now() + limit;
    // Read along: a full pipe would hold the process up.
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let out = std::thread::spawn(move || {
        let mut bytes = vec![];
        out.read_to_end(&mut bytes).map(|_| bytes)
    });
    let err = std::thread::spawn(move || {
        let mut bytes = vec![];
        err.read_to_end(&mut bytes).map(|_| bytes)
    });
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() >= end {
            child.kill().unwrap();
            let _ = child.wait();
            panic!("it hangs: {}", text(&err.join().unwrap().unwrap()));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    Output {
        status,
        stdout: out.join().unwrap().unwrap(),
        stderr: err.join().unwrap().unwrap(),
    }
}

pub fn signal(id: u32, name: &str) {
    let status = Command::new("kill")
        .args([&format!("-{name}"), &id.to_string()])
        .status();
    assert!(status.unwrap().success());
}

/// Small, and the same on every number of ranks.
pub const SMALL: &[&str] = &[
    "--data",
    "data.yaml",
    "--imgsz",
    "64",
    "--batch",
    "4",
    "--workers",
    "1",
    "--threads",
    "1",
    "--plots",
    "false",
];

/// The weights that a run in `folder` has ended with.
pub fn weights(folder: &Path, name: &str) -> Vec<u8> {
    let path = folder.join("runs/detect").join(name);
    std::fs::read(path.join("weights/last.safetensors")).unwrap()
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
