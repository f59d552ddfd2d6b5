//! What a run tells of itself while it goes on and after its end: `yolo-train status`, events.jsonl.
#![cfg(target_os = "linux")]

#[path = "support/program.rs"]
mod program;
#[path = "support/squares.rs"]
mod squares;

use program::{QUICK, program};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Words of a quick run on two ranks that logs its events.
fn small() -> Vec<&'static str> {
    [
        &QUICK[..],
        &["--epochs", "2", "--device", "cpu:2", "--json-log"],
    ]
    .concat()
}

fn status(folder: &Path, words: &[&str]) -> Output {
    program(folder, &[&["status"], words].concat())
        .output()
        .unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn a_finished_run_has_a_status_and_a_line_for_every_event() {
    let t = tempfile::tempdir().unwrap();
    squares::data_set(t.path());
    let out = program(t.path(), &small()).output().unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let shown = status(t.path(), &["train"]);
    assert_eq!(shown.status.code(), Some(0));
    let text = String::from_utf8(shown.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "runs/detect/train");
    for rank in 0..2 {
        let line = lines[2 + rank];
        assert!(
            line.trim_start().starts_with(&rank.to_string()) && line.contains("finished"),
            "{text}"
        );
    }
    let found = json(&status(t.path(), &["runs/detect/train", "--json"]));
    assert_eq!(found["ranks"].as_array().unwrap().len(), 2);
    assert_eq!(found["ranks"][1]["health"], "finished");
    assert_eq!(found["ranks"][1]["status"]["step"], 4);
    assert_eq!(found["ranks"][1]["status"]["epoch"], 2);

    let text = fs::read_to_string(t.path().join("runs/detect/train/events.jsonl")).unwrap();
    let events: Vec<Value> = text
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let named =
        |name: &str| -> Vec<&Value> { events.iter().filter(|e| e["event"] == name).collect() };
    assert_eq!(events[0]["event"], "start");
    assert_eq!(events[0]["ranks"], 2);
    let end = events.last().unwrap();
    assert_eq!(
        (&end["event"], &end["how"]),
        (&"end".into(), &"finished".into())
    );
    assert_eq!(named("epoch").len(), 2);
    // after each epoch, and at the end with the best weights
    assert_eq!(named("validation").len(), 3);
    assert!(!named("checkpoint").is_empty());
    assert!(named("fault").is_empty());
    let losses = named("epoch")[1]["loss"].as_array().unwrap();
    assert!(losses.iter().all(|l| l.as_f64().unwrap() >= 0.0));
    let times: Vec<f64> = events.iter().map(|e| e["time"].as_f64().unwrap()).collect();
    assert!(times.is_sorted());
}

#[test]
fn a_running_run_is_seen_and_a_rank_whose_process_is_gone_is_named() {
    let t = tempfile::tempdir().unwrap();
    squares::data_set(t.path());
    // both wait for ever: one in a hang, the other one for it
    let mut first = program(t.path(), &small())
        .args(["--timeout", "1000"])
        .env("YOLO_TRAIN_FAULT", "rank:1,step:1,place:forward,kind:hang")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    let ranks = loop {
        assert!(Instant::now() < end, "no status");
        std::thread::sleep(Duration::from_millis(100));
        let shown = status(t.path(), &["train", "--json"]);
        if !shown.status.success() {
            continue;
        }
        let found = json(&shown);
        let ranks = found["ranks"].as_array().unwrap().clone();
        assert_eq!(ranks.len(), 2);
        assert!(ranks.iter().all(|r| r["health"] == "running"), "{found}");
        break ranks;
    };
    let process = |rank: usize| ranks[rank]["status"]["process"].to_string();
    for id in [first.id().to_string(), process(0), process(1)] {
        let killed = Command::new("kill").args(["-KILL", &id]).status();
        assert!(killed.unwrap().success());
    }
    first.wait().unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    let shown = loop {
        let shown = status(t.path(), &["train"]);
        if shown.status.code() == Some(1) || Instant::now() > end {
            break shown;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(shown.status.code(), Some(1));
    let said = String::from_utf8(shown.stderr).unwrap();
    assert!(said.contains("rank 1 is gone"), "{said}");
}

#[test]
fn a_run_that_is_none_is_refused_with_where_was_looked() {
    let t = tempfile::tempdir().unwrap();
    let shown = status(t.path(), &["train-7"]);
    assert_eq!(shown.status.code(), Some(1));
    assert_eq!(
        String::from_utf8(shown.stderr).unwrap(),
        "yolo-train: error: no run train-7: train-7, runs/detect/train-7 hold no status; \
         give the folder of a run that this version has begun\n"
    );
}
