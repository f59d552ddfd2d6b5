//! Runs whose ranks are killed and started again end with the bytes of an undisturbed run.
#![cfg(target_os = "linux")]

#[path = "support/squares.rs"]
mod squares;

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SMALL: [&str; 15] = [
    "--data",
    "data.yaml",
    "--imgsz",
    "64",
    "--batch",
    "4",
    "--accumulate",
    "1",
    "--threads",
    "1",
    "--workers",
    "1",
    "--no-plots",
    "--save-steps",
    "1",
];

fn workplace() -> TempDir {
    let t = tempfile::tempdir().unwrap();
    squares::data_set(t.path());
    t
}

fn start(folder: &Path, name: &str, more: &[&str]) -> Child {
    let log = fs::File::create(folder.join(format!("{name}.log"))).unwrap();
    Command::new(assert_cmd::cargo::cargo_bin!("yolo-train"))
        .current_dir(folder)
        .args(SMALL)
        .args(["--name", name])
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// The ranks that a first process has started.
fn children(parent: u32) -> Vec<u32> {
    let of = |entry: fs::DirEntry| -> Option<u32> {
        let id = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // behind the name, which may hold anything
        let rest = stat.rsplit_once(')')?.1;
        let mut fields = rest.split_whitespace();
        let state = fields.next()?;
        (fields.next()?.parse() == Ok(parent) && state != "Z").then_some(id)
    };
    let mut found: Vec<u32> = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(of)
        .collect();
    found.sort_unstable();
    found
}

fn kill(id: u32) {
    if let Some(id) = Pid::from_raw(id as i32) {
        // it may just have ended
        let _ = kill_process(id, Signal::KILL);
    }
}

#[track_caller]
fn ends_well(mut child: Child, log: &Path, within: Duration) {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            let said = fs::read_to_string(log).unwrap();
            assert!(status.success(), "{status}: {said}");
            return;
        }
        if begin.elapsed() > within {
            let _ = child.kill();
            panic!("not over: {}", fs::read_to_string(log).unwrap());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn weights(folder: &Path, name: &str) -> Vec<Vec<u8>> {
    let run = folder.join("runs/detect").join(name);
    [
        "weights/last.safetensors",
        "weights/best.safetensors",
        "predictions.json",
    ]
    .iter()
    .map(|f| fs::read(run.join(f)).unwrap())
    .collect()
}

/// Kills a drawn rank again and again, `kills` times, while a run of `epochs` epochs goes on.
fn soak(kills: usize, epochs: &str) {
    let t = workplace();
    let log = |name: &str| -> PathBuf { t.path().join(format!("{name}.log")) };
    let more = ["--epochs", epochs];
    ends_well(
        start(t.path(), "calm", &more),
        &log("calm"),
        Duration::from_secs(600),
    );
    let restarts = kills.to_string();
    let more = [
        &more[..],
        &["--device", "cpu,cpu", "--max-restarts", &restarts],
    ]
    .concat();
    let mut child = start(t.path(), "soak", &more);
    let mut draw = 12_345u64;
    let mut next = |below: u64| {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (draw >> 33) % below
    };
    let mut done = 0;
    while done < kills && child.try_wait().unwrap().is_none() {
        // at any point: while it starts, trains, validates, writes
        std::thread::sleep(Duration::from_millis(100 + next(1200)));
        let ranks = children(child.id());
        if ranks.len() == 2 {
            kill(ranks[next(2) as usize]);
            done += 1;
            // until its end is noticed
            let begin = Instant::now();
            while children(child.id()) == ranks && begin.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
    ends_well(child, &log("soak"), Duration::from_secs(600));
    let said = fs::read_to_string(log("soak")).unwrap();
    println!(
        "{done} kills, {} restarts",
        said.matches("; restart ").count()
    );
    assert!(done > 0 && said.contains("; restart 1 of"), "{said}");
    let folders = fs::read_dir(t.path().join("runs/detect"))
        .unwrap()
        .flatten();
    let run = folders
        .map(|f| f.file_name().into_string().unwrap())
        .filter(|n| n.starts_with("soak"))
        .max()
        .unwrap();
    assert!(
        weights(t.path(), "calm") == weights(t.path(), &run),
        "{said}"
    );
}

#[test]
fn a_run_whose_ranks_are_killed_again_and_again_ends_with_the_bytes_of_a_calm_one() {
    soak(6, "6");
}

#[test]
#[ignore = "the long form: two hundred kills"]
fn two_hundred_kills() {
    soak(200, "120");
}

#[test]
fn a_rank_that_cannot_live_is_left_out_where_that_is_allowed_and_ends_the_run_otherwise() {
    let t = workplace();
    let log = |name: &str| t.path().join(format!("{name}.log"));
    let more = ["--epochs", "2"];
    ends_well(
        start(t.path(), "calm", &more),
        &log("calm"),
        Duration::from_secs(120),
    );
    // the third process that is started as rank 1 and the later ones live as long as this test lets them: not at all
    for (name, elastic, good) in [
        ("elastic", &["--elastic", "1"][..], true),
        ("stiff", &[], false),
    ] {
        let more = [
            &more[..],
            &["--device", "cpu,cpu", "--max-restarts", "3"],
            elastic,
        ]
        .concat();
        let mut child = start(t.path(), name, &more);
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            for id in children(child.id()) {
                let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
                let is = |what: &[u8]| environment.split(|b| *b == 0).any(|v| v == what);
                // ranks that were started after another one failed, and have nothing in common with the first attempt
                if is(b"YOLO_TRAIN_RANK=1") {
                    kill(id);
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let said = fs::read_to_string(log(name)).unwrap();
        assert_eq!(status.success(), good, "{said}");
        if good {
            assert!(said.contains("on 1 rank (--elastic)"), "{said}");
            assert!(
                weights(t.path(), "calm") == weights(t.path(), name),
                "{said}"
            );
        } else {
            assert!(said.contains("restart 3 of 3"), "{said}");
            assert!(said.contains("its process was killed"), "{said}");
        }
    }
}
