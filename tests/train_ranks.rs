//! Training over several ranks as a user starts it: processes on this machine, which end with the bytes of one.
#![cfg(target_os = "linux")]

#[path = "support/program.rs"]
mod program;
#[path = "support/squares.rs"]
mod squares;

use program::{output, program, stderr, workplace};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Eight images in batches of 5 and 3: shards are uneven, and on four ranks one has nothing in the second.
const SMALL: [&str; 14] = [
    "--data",
    "data.yaml",
    "--imgsz",
    "64",
    "--batch",
    "5",
    "--epochs",
    "3",
    "--threads",
    "1",
    "--workers",
    "1",
    "--no-plots",
    "--accumulate=2",
];

/// Trains into `runs/detect/NAME`; the folder and what was said.
#[track_caller]
fn trained(folder: &Path, name: &str, more: &[&str]) -> (PathBuf, String) {
    let words = [&SMALL, &["--name", name][..], more].concat();
    let o = output(folder, &words);
    assert!(o.status.success(), "{more:?}: {}", stderr(&o));
    (folder.join("runs/detect").join(name), stderr(&o))
}

fn read(folder: &Path, name: &str) -> Vec<u8> {
    fs::read(folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Rows of results.csv without the time.
fn results(run: &Path) -> Vec<Vec<String>> {
    let csv = String::from_utf8(read(run, "results.csv")).unwrap();
    let cells = |l: &str| {
        let cells = l.split(',').enumerate().filter(|(i, _)| *i != 1);
        cells.map(|(_, c)| c.to_string()).collect()
    };
    csv.lines().map(cells).collect()
}

/// Asserts that two runs left the same: weights, predictions, figures.
#[track_caller]
fn same(a: &Path, b: &Path) {
    for name in [
        "weights/last.safetensors",
        "weights/best.safetensors",
        "predictions.json",
    ] {
        assert!(
            read(a, name) == read(b, name),
            "{name} of {} and {}",
            a.display(),
            b.display()
        );
    }
    assert_eq!(results(a), results(b));
}

#[test]
fn runs_on_1_2_3_and_4_ranks_end_with_the_same_files() {
    let t = workplace();
    for optimizer in ["sgd", "adamw", "musgd"] {
        let run = |name: &str, more: &[&str]| {
            let name = format!("{optimizer}-{name}");
            let more = [&["--optimizer", optimizer][..], more].concat();
            trained(t.path(), &name, &more)
        };
        let (one, _) = run("one", &["--device", "cpu"]);
        let (two, said) = run("two", &["--device", "cpu,cpu"]);
        same(&one, &two);
        assert!(
            said.contains("2 ranks (tcp): batch 5 = 2 + 3 images"),
            "{said}"
        );
        if optimizer == "musgd" {
            let (four, _) = run("four", &["--device", "cpu:4"]);
            same(&one, &four);
        }
        if optimizer == "adamw" {
            let (three, _) = run(
                "three",
                &["--device", "cpu:3", "--lanes", "4", "--bucket-mb", "0.1"],
            );
            same(&one, &three);
            let sized = ["--multi-scale", "0.5", "--drop-last"];
            let (one, _) = run("sized", &sized);
            let more = [
                &sized[..],
                &["--device", "cpu:2", "--workers", "2", "--threads", "2"],
            ];
            let (two, _) = run("sized-two", &more.concat());
            same(&one, &two);
        }
    }
}

#[test]
fn sockets_give_the_bytes_of_shared_memory() {
    let t = workplace();
    let (one, _) = trained(t.path(), "one", &[]);
    let words = [&SMALL[..], &["--name", "two", "--device", "cpu,cpu"]].concat();
    let o = program(t.path(), &words)
        .env("YOLO_TRAIN_TRANSPORT", "sockets")
        .output()
        .unwrap();
    assert!(o.status.success(), "{}", stderr(&o));
    same(&one, &t.path().join("runs/detect/two"));
}

#[test]
fn a_run_goes_on_on_another_number_of_ranks_and_keeps_its_lanes() {
    let t = workplace();
    let (whole, _) = trained(t.path(), "whole", &["--epochs", "4"]);
    for (name, before, after) in [
        ("a", "cpu,cpu", "cpu"),
        ("b", "cpu", "cpu:4"),
        ("c", "cpu:3", "cpu,cpu"),
    ] {
        let lanes = ["--lanes", "4"];
        let words = ["--epochs", "4", "--save-steps", "1", "--device", before];
        // it ends after the first checkpoint that lies in the middle of an epoch
        let words = [&SMALL[..], &["--name", name], &words, &lanes].concat();
        let mut child = program(t.path(), &words).spawn().unwrap();
        let run = t.path().join("runs/detect").join(name);
        let start = Instant::now();
        let checkpoints = || fs::read_dir(run.join("checkpoints")).map_or(0, Iterator::count);
        while checkpoints() == 0 {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "no checkpoint of {name}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        let id = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        child.wait().unwrap();
        let resume = ["--resume", name, "--device", after];
        let o = output(t.path(), &resume);
        let said = stderr(&o);
        assert!(o.status.success() || said.contains("is finished"), "{said}");
        same(&whole, &run);
    }
    // fewer lanes than ranks
    let o = output(
        t.path(),
        &["--resume", "a", "--epochs", "5", "--device", "cpu:5"],
    );
    assert!(
        stderr(&o).contains("4 lanes are fewer than 5 ranks"),
        "{}",
        stderr(&o)
    );
}

#[test]
fn validation_over_ranks_says_what_one_rank_says_also_where_a_rank_has_nothing() {
    let t = workplace();
    let (run, _) = trained(t.path(), "one", &[]);
    let weights = run.join("weights/last.safetensors");
    let val = |name: &str, device: &str| {
        let words = [
            "val",
            "--weights",
            weights.to_str().unwrap(),
            "--data",
            "data.yaml",
            "--conf",
            "0",
            "--batch",
            "2",
            "--device",
            device,
            "--name",
            name,
            "--no-plots",
        ];
        let o = output(t.path(), &words);
        assert!(o.status.success(), "{}", stderr(&o));
        let folder = t.path().join("runs/detect").join(name);
        (
            String::from_utf8(o.stdout).unwrap(),
            read(&folder, "predictions.json"),
        )
    };
    let one = val("v1", "cpu");
    assert!(one.0.contains("AP50") && one.1.len() > 100);
    // four images in batches of two: of four ranks two have nothing
    for ranks in ["cpu:2", "cpu:4"] {
        assert_eq!(val(&ranks.replace(':', "-"), ranks), one, "{ranks}");
    }
}

#[test]
fn what_does_not_fit_the_ranks_is_refused_before_anything_is_written() {
    let t = workplace();
    for (words, expected) in [
        (
            &["--batch", "1", "--device", "cpu,cpu"][..],
            "--batch 1 is less than an image for each of 2 ranks",
        ),
        (
            &["--lanes", "1", "--device", "cpu,cpu"],
            "1 lanes are fewer than 2 ranks",
        ),
    ] {
        let o = output(t.path(), &[&SMALL[..], words].concat());
        assert!(!o.status.success());
        assert!(stderr(&o).contains(expected), "{}", stderr(&o));
    }
    assert!(!t.path().join("runs/detect/train").exists());
    // a rank more than 1, 2 or 4: as many lanes
    let (_, said) = trained(t.path(), "three", &["--device", "cpu:3", "--epochs", "1"]);
    assert!(said.contains("3 lanes, one for each rank"), "{said}");
}

#[test]
fn an_image_that_one_rank_cannot_read_ends_all_and_the_run_goes_on_when_it_is_mended() {
    let t = workplace();
    let (whole, _) = trained(t.path(), "whole", &[]);
    let image = t.path().join("images/003.png");
    let good = fs::read(&image).unwrap();
    fs::write(&image, &good[..good.len() / 2]).unwrap();
    let words = ["--name", "broken", "--device", "cpu,cpu", "--no-val"];
    let o = output(t.path(), &[&SMALL[..], &words].concat());
    assert!(!o.status.success());
    assert!(stderr(&o).contains("003.png"), "{}", stderr(&o));
    fs::write(&image, good).unwrap();
    let (again, _) = trained(t.path(), "again", &["--device", "cpu,cpu"]);
    same(&whole, &again);
}

#[test]
fn ranks_csv_has_least_median_and_most_of_every_twenty_steps() {
    let t = workplace();
    let words = [
        "--accumulate",
        "1",
        "--epochs",
        "12",
        "--no-val",
        "--device",
        "cpu,cpu",
    ];
    let (run, said) = trained(t.path(), "r", &words);
    let csv = String::from_utf8(read(&run, "ranks.csv")).unwrap();
    let lines: Vec<&str> = csv.lines().collect();
    // 24 steps
    assert_eq!(lines.len(), 2, "{csv}");
    let column = |name: &str| {
        let at = lines[0].split(',').position(|c| c == name).unwrap();
        lines[1].split(',').nth(at).unwrap().parse::<f64>().unwrap()
    };
    assert_eq!((column("step"), column("ranks")), (20.0, 2.0));
    for figure in [
        "images_per_s",
        "data_s",
        "compute_s",
        "exposed_s",
        "memory_mib",
    ] {
        let [min, median, max] =
            ["min", "median", "max"].map(|part| column(&format!("{figure}_{part}")));
        assert!(
            min <= median && median <= max && max >= 0.0,
            "{figure}: {csv}"
        );
    }
    assert!(column("images_per_s_min") > 0.0 && column("memory_mib_min") > 10.0);
    assert!(
        said.contains("2 ranks, 20 steps, least/median/most"),
        "{said}"
    );
    let one = trained(t.path(), "one", &["--no-val"]).0;
    assert!(!one.join("ranks.csv").exists());
}
