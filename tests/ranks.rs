//! Commands on several ranks: processes that the first one starts with its own command line.
#![cfg(target_os = "linux")]

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn bench(words: &[&str]) -> Command {
    let mut program = Command::new(cargo_bin!("yolo-train"));
    program.arg("bench").args(words);
    program.stdin(Stdio::null());
    program.stdout(Stdio::piped()).stderr(Stdio::piped());
    program
}

fn run(words: &[&str]) -> Output {
    bench(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn collectives_are_timed_between_the_ranks_of_the_device() {
    let output = run(&["--comm=1024,262144", "--device", "cpu,cpu,cpu", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&found["ranks"], &found["engine"]),
        (&3.into(), &"tcp".into())
    );
    let rows = found["rows"].as_array().unwrap();
    let named: Vec<_> = rows
        .iter()
        .map(|r| {
            (
                r["collective"].as_str().unwrap(),
                r["bytes"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        named,
        [
            ("all_reduce", 1024),
            ("all_reduce", 262_144),
            ("all_reduce_tree", 1024),
            ("all_reduce_tree", 262_144)
        ]
    );
    for row in rows {
        let of = |key: &str| row[key].as_f64().unwrap();
        assert!(0.0 < of("best_ms") && of("best_ms") <= of("median_ms"));
        let rate = of("bytes") / of("median_ms") / 1e6;
        assert!((of("gb_per_s") / rate - 1.0).abs() < 1e-9);
    }
}

#[test]
fn one_rank_prints_the_table() {
    let output = run(&["--comm=4096", "--device=cpu:2"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{err}");
    assert_eq!(err, "");
    assert_eq!(out.matches("all_reduce_tree").count(), 1, "{out}");
    assert_eq!(
        out.lines().nth(1).map(|l| l.starts_with("4 KiB ")),
        Some(true),
        "{out}"
    );
}

#[test]
fn collectives_of_one_rank_are_refused_with_what_to_give() {
    for (device, words) in [
        ("auto", &["--comm"][..]),
        ("cpu", &["--comm", "--device", "cpu"]),
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(
            text(&output.stderr),
            format!(
                "yolo-train: error: device {device} stands for one rank, but bench --comm needs several: \
                 give --device cpu,cpu (or cpu:N)\n"
            )
        );
    }
    let output = run(&["--comm", "ten", "--device", "cpu,cpu"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("given ten, allowed is sizes in bytes"));
}

/// The process of a rank of `parent`, once it is there.
fn rank_of(parent: &Child, rank: usize) -> u32 {
    let (ppid, rank) = (
        format!("PPid:\t{}\n", parent.id()),
        format!("YOLO_TRAIN_RANK={rank}"),
    );
    let read = |id: u32, file: &str| std::fs::read(format!("/proc/{id}/{file}")).ok();
    let end = Instant::now() + Duration::from_secs(30);
    while Instant::now() < end {
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
                continue;
            };
            let status = read(id, "status").unwrap_or_default();
            let environment = read(id, "environ").unwrap_or_default();
            if String::from_utf8_lossy(&status).contains(&ppid)
                && environment.split(|b| *b == 0).any(|v| v == rank.as_bytes())
            {
                return id;
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("no such rank");
}

fn signal(id: u32, name: &str) {
    let status = Command::new("kill")
        .args([&format!("-{name}"), &id.to_string()])
        .status();
    assert!(status.unwrap().success());
}

fn is_gone(id: u32) -> bool {
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end {
        // One that nobody has waited for yet is a zombie.
        let status = std::fs::read_to_string(format!("/proc/{id}/status"));
        if status.map_or(true, |s| s.contains("State:\tZ")) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// A bench that takes longer than the test.
fn long() -> Child {
    let sizes = vec!["1048576"; 1000].join(",");
    bench(&[&format!("--comm={sizes}"), "--device", "cpu,cpu"])
        .spawn()
        .unwrap()
}

#[test]
fn a_rank_that_is_killed_ends_all_and_is_named() {
    let parent = long();
    let (first, second) = (rank_of(&parent, 0), rank_of(&parent, 1));
    signal(second, "KILL");
    let output = parent.wait_with_output().unwrap();
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(
        err.contains("rank 1 of 2 failed (signal: 9 (SIGKILL))"),
        "{err}"
    );
    assert!(is_gone(first));
}

#[test]
fn a_signal_to_the_first_process_ends_all_ranks() {
    for name in ["INT", "TERM"] {
        let parent = long();
        let ranks = [rank_of(&parent, 0), rank_of(&parent, 1)];
        signal(parent.id(), name);
        let output = parent.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
        assert!(ranks.into_iter().all(is_gone));
    }
}

#[test]
fn ranks_do_not_outlive_the_first_process() {
    let mut parent = long();
    let ranks = [rank_of(&parent, 0), rank_of(&parent, 1)];
    // They say that they want this at their start.
    std::thread::sleep(Duration::from_millis(500));
    signal(parent.id(), "KILL");
    parent.wait().unwrap();
    assert!(ranks.into_iter().all(is_gone));
}
