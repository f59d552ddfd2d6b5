//! `--max-restarts`: ranks that fail start again, and the result is that of an undisturbed run.
#![cfg(target_os = "linux")]

#[path = "support/program.rs"]
mod program;
#[path = "support/squares.rs"]
mod squares;

use assert_cmd::cargo::cargo_bin;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

fn run(folder: &Path, name: &str, words: &[&str]) -> Command {
    let mut c = Command::new(cargo_bin!("yolo-train"));
    c.current_dir(folder).stdin(Stdio::null());
    c.args(program::QUICK);
    c.args(["--device", "cpu,cpu", "--save-steps", "1", "--name", name]);
    c.args(words);
    c
}

fn stderr(mut c: Command) -> (Option<i32>, String) {
    let out = c.output().unwrap();
    (
        out.status.code(),
        String::from_utf8_lossy(&out.stderr).into_owned(),
    )
}

/// What a run is judged by; without the column of seconds.
fn results(folder: &Path, name: &str) -> Vec<Vec<u8>> {
    let run = folder.join("runs/detect").join(name);
    let csv = fs::read_to_string(run.join("results.csv")).unwrap();
    let rows = csv.lines().map(|line| {
        let cells = line.split(',').enumerate().filter(|(i, _)| *i != 1);
        cells.map(|(_, c)| c).collect::<Vec<_>>().join(",")
    });
    let mut all = vec![rows.collect::<Vec<_>>().join("\n").into_bytes()];
    for file in ["weights/last.safetensors", "weights/best.safetensors"] {
        all.push(fs::read(run.join(file)).unwrap());
    }
    // not without validation
    all.extend(fs::read(run.join("predictions.json")));
    all
}

#[test]
fn ranks_that_failed_start_again_and_end_with_the_bytes_of_an_undisturbed_run() {
    let t = tempfile::tempdir().unwrap();
    squares::data_set(t.path());
    let (code, said) = stderr(run(t.path(), "calm", &["--epochs", "3"]));
    assert_eq!(code, Some(0), "{said}");
    for (rank, place, kind) in [
        (1, "optimizer", "kill"),
        (0, "forward", "panic"),
        (1, "validation", "error"),
        (0, "checkpoint", "kill"),
    ] {
        let name = format!("{place}-{kind}");
        let mut c = run(t.path(), &name, &["--epochs", "3", "--max-restarts", "1"]);
        let fault = format!("rank:{rank},step:3,place:{place},kind:{kind}");
        c.env("YOLO_TRAIN_FAULT", fault);
        let (code, said) = stderr(c);
        assert_eq!(code, Some(0), "{name}: {said}");
        assert!(
            said.contains(&format!("warning: rank {rank}: "))
                && said.contains(&format!(
                    "all ranks start again from the last checkpoint of runs/detect/{name} (restart 1 of 1)"
                )),
            "{name}: {said}"
        );
        assert!(
            results(t.path(), &name) == results(t.path(), "calm"),
            "{name}: another result; {said}"
        );
    }
}

#[test]
fn a_failure_before_the_first_checkpoint_starts_from_the_beginning() {
    let t = tempfile::tempdir().unwrap();
    squares::data_set(t.path());
    let mut c = run(t.path(), "early", &["--epochs", "1", "--max-restarts", "3"]);
    c.env("YOLO_TRAIN_FAULT", "rank:1,place:scan,kind:kill");
    let (code, said) = stderr(c);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("all ranks start again from the beginning (restart 1 of 3)"),
        "{said}"
    );
}

#[test]
fn restarts_without_a_process_that_looks_after_ranks_are_refused() {
    let t = tempfile::tempdir().unwrap();
    squares::data_set(t.path());
    let words = ["--max-restarts", "1", "--device", "cpu"];
    let (code, said) = stderr(run(t.path(), "one", &words));
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("--max-restarts is for several ranks"),
        "{said}"
    );
}

/// Ranks of the run, not its first process.
fn ranks(name: &str, first: u32) -> Vec<u32> {
    let mut found = vec![];
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if id != first && words.split(|b| *b == 0).any(|w| w == name.as_bytes()) {
            found.push(id);
        }
    }
    found.sort_unstable();
    found
}

/// Random kills; `YOLO_TRAIN_SOAK_KILLS=200` makes a long one of it, on the built-in shapes.
#[test]
fn a_run_whose_ranks_are_killed_again_and_again_ends_with_the_same_bytes() {
    let kills = std::env::var("YOLO_TRAIN_SOAK_KILLS");
    let kills: u64 = kills.map_or(5, |n| n.parse().unwrap());
    let t = tempfile::tempdir().unwrap();
    squares::data_set(t.path());
    // long enough for all kills: an attempt gets some two epochs far
    let epochs = (10 + 3 * kills).to_string();
    let mut words = vec!["--epochs", &epochs, "--patience", "0"];
    if kills >= 100 {
        words.extend(["--data", "shapes", "--fraction", "0.02", "--no-val"]);
    }
    let (code, said) = stderr(run(t.path(), "calm-soak", &words));
    assert_eq!(code, Some(0), "{said}");

    let mut c = run(t.path(), "killed-soak", &words);
    let log = t.path().join("log");
    c.args(["--max-restarts", "100000"]);
    c.stdout(Stdio::null())
        .stderr(fs::File::create(&log).unwrap());
    let mut first = c.spawn().unwrap();
    // a linear congruential generator: the same moments in every run, as far as the machine allows
    let mut random = 12_345_u64;
    let mut next = |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut done = 0;
    while done < kills && first.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(400 + next(800)));
        let there = ranks("killed-soak", first.id());
        if there.is_empty() {
            continue;
        }
        let id = there[next(there.len() as u64) as usize].to_string();
        // one that has just ended cannot be killed
        if Command::new("kill")
            .args(["-KILL", &id])
            .status()
            .unwrap()
            .success()
        {
            done += 1;
        }
    }
    let status = first.wait().unwrap();
    let said = fs::read_to_string(&log).unwrap();
    assert!(status.success(), "{said}");
    assert!(said.contains("all ranks start again"), "{said}");
    println!(
        "{done} kills, {} restarts",
        said.matches("(restart ").count()
    );
    // one that was killed before its first checkpoint began again in a folder of its own
    let last = said.rsplit("results in runs/detect/").next();
    let name = last.and_then(|l| l.split_whitespace().next()).unwrap();
    assert!(
        results(t.path(), name) == results(t.path(), "calm-soak"),
        "another result; {said}"
    );
    assert!(ranks("killed-soak", first.id()).is_empty());
}

#[test]
fn a_rank_that_cannot_live_is_left_out_where_that_is_allowed_and_ends_the_run_otherwise() {
    let t = tempfile::tempdir().unwrap();
    squares::data_set(t.path());
    let (code, said) = stderr(run(t.path(), "calm", &["--epochs", "2"]));
    assert_eq!(code, Some(0), "{said}");
    for (name, elastic, good) in [
        ("elastic", &["--elastic", "1"][..], true),
        ("stiff", &[], false),
    ] {
        let mut c = run(t.path(), name, &["--epochs", "2", "--max-restarts", "4"]);
        let log = t.path().join(name);
        c.args(elastic);
        c.stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap());
        let mut first = c.spawn().unwrap();
        let status = loop {
            if let Some(status) = first.try_wait().unwrap() {
                break status;
            }
            // every process that is rank 1 is killed as soon as it is there
            for id in ranks(name, first.id()) {
                let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
                let mut variables = environment.split(|b| *b == 0);
                if variables.any(|v| v == b"YOLO_TRAIN_RANK=1") {
                    // one that has just ended cannot be killed
                    let _ = Command::new("kill")
                        .args(["-KILL", &id.to_string()])
                        .status();
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let said = fs::read_to_string(&log).unwrap();
        assert_eq!(status.success(), good, "{said}");
        if good {
            assert!(said.contains("on 1 rank (--elastic)"), "{said}");
            assert!(
                results(t.path(), name) == results(t.path(), "calm"),
                "another result; {said}"
            );
        } else {
            assert!(said.contains("(restart 4 of 4)"), "{said}");
            assert!(said.contains("its process was killed"), "{said}");
        }
    }
}
