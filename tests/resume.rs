//! Runs that are killed, stopped or damaged, and go on to the same bytes.

#[path = "support/program.rs"]
mod program;
#[path = "support/squares.rs"]
mod squares;

use program::{output, program, stderr, workplace};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const SMALL: [&str; 14] = [
    "--data",
    "data.yaml",
    "--imgsz",
    "64",
    "--batch",
    "2",
    "--epochs",
    "4",
    "--close-mosaic",
    "1",
    "--workers",
    "1",
    "--warmup-epochs",
    "1.5",
];

#[track_caller]
fn succeeds(folder: &Path, words: &[&str]) -> String {
    let o = output(folder, words);
    assert!(o.status.success(), "{words:?}: {}", stderr(&o));
    stderr(&o)
}

#[track_caller]
fn fails(folder: &Path, words: &[&str]) -> (Option<i32>, String) {
    let o = output(folder, words);
    assert!(!o.status.success(), "{words:?} did not fail");
    (o.status.code(), stderr(&o))
}

fn train<'a>(name: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut words = SMALL.to_vec();
    words.extend(["--name", name]);
    words.extend(more);
    words
}

fn run(folder: &Path, name: &str) -> PathBuf {
    folder.join("runs/detect").join(name)
}

/// Checkpoints of a run as (epoch, batch), oldest first.
fn checkpoints(run: &Path) -> Vec<(usize, usize)> {
    let Ok(entries) = fs::read_dir(run.join("checkpoints")) else {
        return vec![];
    };
    let mut found: Vec<_> = entries
        .filter_map(|e| {
            let name = e.unwrap().file_name().into_string().unwrap();
            let (e, b) = name
                .strip_prefix("epoch-")?
                .strip_suffix(".ckpt")?
                .split_once("-batch-")?;
            Some((e.parse().unwrap(), b.parse().unwrap()))
        })
        .collect();
    found.sort_unstable();
    found
}

/// Waits for a checkpoint at `from` or later; false where the run ended before.
fn reaches(child: &mut Child, run: &Path, from: (usize, usize)) -> bool {
    let start = Instant::now();
    while checkpoints(run).last().is_none_or(|c| *c < from) {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        assert!(
            start.elapsed() < Duration::from_secs(120),
            "no checkpoint {from:?}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// results.csv without the column of times.
fn results(run: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(run.join("results.csv")).unwrap();
    text.lines()
        .map(|l| {
            let mut cells: Vec<String> = l.split(',').map(str::to_owned).collect();
            cells.remove(1);
            cells
        })
        .collect()
}

#[track_caller]
fn assert_equal(a: &Path, b: &Path) {
    assert_eq!(results(a), results(b));
    for file in [
        "weights/last.safetensors",
        "weights/best.safetensors",
        "predictions.json",
    ] {
        assert!(
            fs::read(a.join(file)).unwrap() == fs::read(b.join(file)).unwrap(),
            "{file} differs between {} and {}",
            a.display(),
            b.display()
        );
    }
}

/// Positions to kill at: drawn from a seed, so that a failure can be run again.
fn positions(seed: u64, n: usize) -> Vec<(usize, usize)> {
    let mut drawn: Vec<_> = (0..n as u64)
        .map(|i| {
            let x = yolo_train::model::init::uniform(seed, i);
            let step = (x * 15.0) as usize;
            (step / 4, step % 4 + 1)
        })
        .collect();
    drawn.sort_unstable();
    drawn
}

#[test]
fn a_run_that_is_killed_at_five_steps_ends_with_the_same_bytes_for_every_optimizer_and_accumulation()
 {
    let t = workplace();
    let optimizers = yolo_train::config::Optimizer::NAMES;
    for (i, optimizer) in optimizers.iter().filter(|o| **o != "auto").enumerate() {
        for accumulate in ["1", "4"] {
            let how = [
                "--optimizer",
                optimizer,
                "--accumulate",
                accumulate,
                "--lr0",
                "0.003",
            ];
            let (whole, broken) = (
                format!("{optimizer}{accumulate}"),
                format!("{optimizer}{accumulate}k"),
            );
            succeeds(t.path(), &train(&whole, &how));
            let mut killed = 0;
            let mut words = train(&broken, &how);
            words.extend(["--save-steps", "1"]);
            let seed = (10 * i + accumulate.len()) as u64;
            for at in positions(seed, 5) {
                let mut child = program(t.path(), &words).spawn().unwrap();
                if reaches(&mut child, &run(t.path(), &broken), at) {
                    child.kill().unwrap();
                    killed += 1;
                }
                child.wait().unwrap();
                words = vec!["--resume", &broken];
            }
            assert!(killed >= 3, "{optimizer}: killed {killed} times");
            let last = output(t.path(), &words);
            assert!(
                last.status.success() || stderr(&last).contains("is finished"),
                "{}",
                stderr(&last)
            );
            assert_equal(&run(t.path(), &whole), &run(t.path(), &broken));
        }
    }
}

#[cfg(unix)]
#[test]
fn the_first_signal_saves_the_very_batch_and_ends() {
    let t = workplace();
    // steps of four micro-batches, so that a signal comes in the middle of one
    let how = ["--accumulate", "4", "--warmup-epochs", "0"];
    succeeds(t.path(), &train("whole", &how));
    let mut child = program(t.path(), &train("stopped", &how)).spawn().unwrap();
    assert!(reaches(&mut child, &run(t.path(), "stopped"), (1, 0)));
    let killed = Command::new("kill").arg(child.id().to_string()).status();
    assert!(killed.unwrap().success());
    let o = child.wait_with_output().unwrap();
    assert_eq!(o.status.code(), Some(130), "{}", stderr(&o));
    assert!(
        stderr(&o).contains("--resume runs/detect/stopped"),
        "{}",
        stderr(&o)
    );
    let said = succeeds(t.path(), &["--resume"]);
    assert!(said.contains("goes on at epoch"), "{said}");
    assert_equal(&run(t.path(), "whole"), &run(t.path(), "stopped"));
}

#[test]
fn damaged_checkpoints_are_named_and_the_one_before_is_used() {
    let t = workplace();
    let whole = run(t.path(), "whole");
    succeeds(t.path(), &train("whole", &["--epochs", "3"]));
    succeeds(
        t.path(),
        &train(
            "damaged",
            &[
                "--epochs",
                "3",
                "--save-steps",
                "1",
                "--keep-checkpoints",
                "9",
            ],
        ),
    );
    let broken = run(t.path(), "damaged");
    let file =
        |(e, b): (usize, usize)| broken.join(format!("checkpoints/epoch-{e:05}-batch-{b:07}.ckpt"));
    let all = checkpoints(&broken);
    let [.., a, b, c, d] = all[..] else {
        panic!("{all:?}")
    };
    let bytes = |p| fs::read(file(p)).unwrap();
    fs::write(file(d), &bytes(d)[..1000]).unwrap();
    let mut flipped = bytes(c);
    let middle = flipped.len() / 2;
    flipped[middle] ^= 4;
    fs::write(file(c), flipped).unwrap();
    fs::write(file(b), "").unwrap();
    let said = succeeds(t.path(), &["--resume", "damaged"]);
    for p in [b, c, d] {
        let name = format!("epoch-{:05}-batch-{:07}.ckpt is damaged", p.0, p.1);
        assert!(said.contains(&name), "{name} in {said}");
    }
    assert!(
        said.contains(&format!("goes on at epoch {}, batch {}", a.0 + 1, a.1 + 1)),
        "{said}"
    );
    assert_equal(&whole, &broken);
}

#[test]
fn a_finished_run_is_extended_and_follows_the_longer_schedule() {
    let t = workplace();
    succeeds(t.path(), &train("short", &["--epochs", "2"]));
    let (code, said) = fails(t.path(), &["--resume", "short"]);
    assert_eq!(code, Some(1));
    assert!(
        said.contains("is finished") && said.contains("--epochs N"),
        "{said}"
    );
    let said = succeeds(
        t.path(),
        &["--resume", "short", "--epochs", "4", "--workers", "2"],
    );
    assert!(said.contains("workers: 2 instead of 1"), "{said}");
    assert!(said.contains("4 instead of 2"), "{said}");
    succeeds(t.path(), &train("long", &[]));
    let (short, long) = (
        results(&run(t.path(), "short")),
        results(&run(t.path(), "long")),
    );
    assert_eq!(short.len(), 5);
    let rate = short[0].iter().position(|c| c == "lr/pg0").unwrap();
    assert_eq!(
        short[3][rate], long[3][rate],
        "rate of epoch 3 is that of a run of 4"
    );
    assert_ne!(
        short[2][rate], long[2][rate],
        "epoch 2 was that of a run of 2"
    );
    // four batches an epoch; mosaic is off in the last
    let closes = run(t.path(), "short").join("train_batch12.jpg");
    assert!(
        closes.exists(),
        "the batches after mosaic's new end are drawn"
    );
    let (_, said) = fails(t.path(), &["--resume", "short", "--epochs", "3"]);
    assert!(said.contains("4 epochs are done"), "{said}");
}

#[test]
fn what_would_change_the_result_is_refused() {
    let t = workplace();
    succeeds(t.path(), &train("a", &["--epochs", "1"]));
    let (_, said) = fails(
        t.path(),
        &["--resume", "a", "--batch", "4", "--epochs", "2"],
    );
    assert!(said.contains("--batch is 2, not 4"), "{said}");
    let (_, said) = fails(t.path(), &["--resume", "nothing"]);
    assert!(said.contains("no run to go on with for nothing"), "{said}");
    // a label moves
    let labels = t.path().join("train.json");
    let text = fs::read_to_string(&labels).unwrap();
    let moved = text.replacen("\"area\":256", "\"area\":255", 1);
    assert_ne!(text, moved);
    fs::write(&labels, moved).unwrap();
    let (_, said) = fails(t.path(), &["--resume", "a", "--epochs", "2"]);
    assert!(said.contains("have changed"), "{said}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_the_last_good_checkpoint_and_says_so() {
    let t = workplace();
    let disk = t.path().join("small");
    fs::create_dir(&disk).unwrap();
    // yolo26n with two classes: 31 MB a checkpoint with SGD, 10 MB a weights file
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=100m", "tmpfs"])
        .arg(&disk)
        .output();
    if !mounted.is_ok_and(|o| o.status.success()) {
        println!("skipped: no permission to mount a small file system");
        return;
    }
    let project = disk.to_str().unwrap();
    let how = [
        "--project",
        project,
        "--optimizer",
        "SGD",
        "--save-steps",
        "1",
        "--keep-checkpoints",
        "99",
    ];
    let o = output(t.path(), &train("full", &how));
    let run = disk.join("full");
    let left = checkpoints(&run);
    let names: Vec<String> = fs::read_dir(run.join("checkpoints"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    let said = stderr(&o);
    // room again, and on it goes
    for (e, b) in &left[..left.len().saturating_sub(1)] {
        fs::remove_file(run.join(format!("checkpoints/epoch-{e:05}-batch-{b:07}.ckpt"))).unwrap();
    }
    let again = output(
        t.path(),
        &[
            "--resume",
            run.to_str().unwrap(),
            "--keep-checkpoints",
            "1",
            "--save-steps",
            "0",
        ],
    );
    let undisturbed = output(t.path(), &train("whole", &["--optimizer", "SGD"]));
    let equal = undisturbed.status.success()
        && again.status.success()
        && results(&run) == results(&t.path().join("runs/detect/whole"));
    let unmounted = Command::new("umount").arg(&disk).status();
    assert!(unmounted.is_ok_and(|s| s.success()));
    assert_eq!(o.status.code(), Some(1));
    assert!(
        said.contains("No space left") && said.contains("--resume"),
        "{said}"
    );
    assert!(!left.is_empty());
    assert!(
        names.iter().all(|n| n.ends_with(".ckpt")),
        "nothing half-written stays: {names:?}"
    );
    assert!(equal, "{}", stderr(&again));
}

#[test]
fn a_time_limit_ends_the_run_after_the_epochs_that_fit() {
    let t = workplace();
    // far less than an epoch
    let said = succeeds(t.path(), &train("a", &["--time", "0.0000001"]));
    assert!(said.contains("(--time) are enough for 1 epochs"), "{said}");
    assert_eq!(results(&run(t.path(), "a")).len(), 2);
    assert!(run(t.path(), "a").join("predictions.json").exists());
}
