//! Training runs of the binary on a small data set made here.

#[path = "support/squares.rs"]
mod squares;

use assert_cmd::Command;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn workplace() -> TempDir {
    let t = tempfile::tempdir().unwrap();
    squares::data_set(t.path());
    t
}

fn yolo_train(folder: &Path) -> Command {
    let mut c = Command::new(assert_cmd::cargo::cargo_bin!("yolo-train"));
    c.current_dir(folder);
    c
}

const SMALL: [&str; 12] = [
    "--data",
    "data.yaml",
    "--imgsz",
    "64",
    "--batch",
    "4",
    "--epochs",
    "2",
    "--workers",
    "1",
    "--threads",
    "1",
];

fn trained(folder: &Path, more: &[&str]) -> (String, String) {
    let out = yolo_train(folder)
        .args(SMALL)
        .args(more)
        .assert()
        .success()
        .get_output()
        .clone();
    (
        String::from_utf8(out.stdout).unwrap(),
        String::from_utf8(out.stderr).unwrap(),
    )
}

fn read(folder: &Path, name: &str) -> Vec<u8> {
    fs::read(folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn a_run_leaves_everything_and_an_equal_run_leaves_equal_files() {
    let t = workplace();
    let (stdout, stderr) = trained(t.path(), &["--seed", "3"]);
    assert!(
        stdout.contains("red") && stdout.contains("green") && stdout.contains("AP50"),
        "{stdout}"
    );
    assert!(
        stderr.contains("optimizer auto") && stderr.contains("epoch 2/2"),
        "{stderr}"
    );
    let first = t.path().join("runs/detect/train");
    for name in [
        "args.yaml",
        "results.csv",
        "predictions.json",
        "data-report.json",
        "weights/best.safetensors",
        "weights/last.safetensors",
    ] {
        assert!(!read(&first, name).is_empty(), "{name}");
    }
    let csv = String::from_utf8(read(&first, "results.csv")).unwrap();
    let header = csv.lines().next().unwrap();
    assert!(header.starts_with(
        "epoch,time,train/box_loss,train/cls_loss,train/l1_loss,metrics/precision(B),metrics/recall(B),metrics/mAP50(B),\
         metrics/mAP50-95(B),val/box_loss,val/cls_loss,val/l1_loss,lr/pg0,lr/pg1,lr/pg2"
    ), "{header}");
    assert_eq!(csv.lines().count(), 3);
    let predictions: Value = serde_json::from_slice(&read(&first, "predictions.json")).unwrap();
    for p in predictions.as_array().unwrap() {
        assert!(
            [7, 42].contains(&p["category_id"].as_u64().unwrap()),
            "original category ids"
        );
        assert_eq!(
            (p["image_id"].as_u64().unwrap() - 1000) % 3,
            0,
            "original image ids"
        );
    }

    // again from the run's own args.yaml: nothing is overwritten, all results are the same bytes
    let before: Vec<_> = walk(&first);
    yolo_train(t.path())
        .args(["--cfg", "runs/detect/train/args.yaml"])
        .assert()
        .success();
    assert_eq!(walk(&first), before, "an existing run is not touched");
    let second = t.path().join("runs/detect/train-2");
    for name in [
        "weights/best.safetensors",
        "weights/last.safetensors",
        "predictions.json",
    ] {
        assert_eq!(read(&first, name), read(&second, name), "{name}");
    }
    let without_time = |f: &Path| {
        let csv = String::from_utf8(read(f, "results.csv")).unwrap();
        csv.lines()
            .map(|l| {
                l.split(',')
                    .enumerate()
                    .filter(|(i, _)| *i != 1)
                    .map(|(_, c)| c.to_string())
                    .collect::<Vec<_>>()
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(without_time(&first), without_time(&second));

    // another seed is another run
    trained(t.path(), &["--seed", "4"]);
    assert_ne!(
        read(&first, "weights/last.safetensors"),
        read(
            &t.path().join("runs/detect/train-3"),
            "weights/last.safetensors"
        )
    );

    // stand-alone validation of the saved weights says the same
    let out = yolo_train(t.path())
        .args([
            "val",
            "--weights",
            "runs/detect/train/weights/best.safetensors",
            "--data",
            "data.yaml",
            "--batch",
            "4",
            "--threads",
            "1",
        ])
        .assert()
        .success()
        .get_output()
        .clone();
    assert_eq!(String::from_utf8(out.stdout).unwrap(), stdout);
    assert_eq!(
        read(&first, "predictions.json"),
        read(&t.path().join("runs/detect/val"), "predictions.json")
    );
}

fn walk(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut out = vec![];
    for e in fs::read_dir(folder).unwrap() {
        let p = e.unwrap().path();
        if p.is_dir() {
            out.extend(walk(&p))
        } else {
            out.push((p.clone(), fs::read(&p).unwrap()))
        }
    }
    out.sort();
    out
}

#[test]
fn the_number_of_workers_does_not_change_the_weights() {
    let t = workplace();
    trained(
        t.path(),
        &[
            "--name",
            "a",
            "--mixup",
            "0.5",
            "--cutmix",
            "0.5",
            "--degrees",
            "10",
            "--multi-scale",
            "0.5",
        ],
    );
    trained(
        t.path(),
        &[
            "--name",
            "b",
            "--mixup",
            "0.5",
            "--cutmix",
            "0.5",
            "--degrees",
            "10",
            "--multi-scale",
            "0.5",
            "--workers",
            "3",
        ],
    );
    let weights = |n: &str| {
        read(
            &t.path().join("runs/detect").join(n),
            "weights/last.safetensors",
        )
    };
    assert_eq!(weights("a"), weights("b"));
}

#[test]
fn the_number_of_threads_does_not_change_the_weights_but_the_lanes_do() {
    let t = workplace();
    let run = |name: &str, more: &[&str]| {
        let mut c = yolo_train(t.path());
        // ten steps: eight images, two a batch, a step each
        c.args([
            "--data",
            "data.yaml",
            "--imgsz",
            "64",
            "--batch",
            "2",
            "--accumulate",
            "1",
            "--epochs",
            "3",
        ])
        .args(["--name", name, "--val=false"])
        .args(more)
        .assert()
        .success();
        read(
            &t.path().join("runs/detect").join(name),
            "weights/last.safetensors",
        )
    };
    let one = run("one", &["--threads", "1"]);
    assert_eq!(one, run("two", &["--threads", "2"]));
    assert_eq!(one, run("three", &["--threads", "3"]));
    assert_ne!(
        one,
        run("lanes", &["--threads", "1", "--lanes", "1"]),
        "sums are formed in another order"
    );
}

#[test]
fn bench_prints_one_object_with_its_phases() {
    let t = workplace();
    let out = yolo_train(t.path())
        .args([
            "bench",
            "--data",
            "data.yaml",
            "--imgsz",
            "64",
            "--batch",
            "2",
            "--steps",
            "3",
            "--json",
        ])
        .assert()
        .success()
        .get_output()
        .clone();
    let b: Value = serde_json::from_slice(&out.stdout).unwrap();
    let phases = [
        "data_ms",
        "forward_ms",
        "loss_ms",
        "backward_ms",
        "optimizer_ms",
    ];
    let sum: f64 = phases
        .iter()
        .map(|p| b[p]["median"].as_f64().unwrap())
        .sum();
    let step = b["step_ms"]["median"].as_f64().unwrap();
    assert!(sum > 0.5 * step && sum < 1.5 * step, "{b}");
    assert!(
        b["images_per_s"].as_f64().unwrap() > 0.0 && b["peak_gflops"].as_f64().unwrap() > 0.1,
        "{b}"
    );
    assert!(!t.path().join("runs").exists(), "a bench leaves nothing");
}

#[test]
fn other_networks_train_and_validate_too() {
    let t = workplace();
    for (model, loss) in [("yolov8n", "train/dfl_loss"), ("yolo11n", "train/dfl_loss")] {
        trained(
            t.path(),
            &[
                "--model",
                model,
                "--name",
                model,
                "--epochs",
                "1",
                "--optimizer",
                "SGD",
            ],
        );
        let csv = String::from_utf8(read(
            &t.path().join("runs/detect").join(model),
            "results.csv",
        ))
        .unwrap();
        assert!(csv.contains(loss));
    }
    trained(
        t.path(),
        &[
            "--end2end",
            "--rect=false",
            "--epochs",
            "1",
            "--name",
            "e2e",
        ],
    );
}

#[test]
fn a_rate_that_blows_up_stops_with_step_and_files() {
    let t = workplace();
    let out = yolo_train(t.path())
        .args(SMALL)
        .args([
            "--optimizer",
            "SGD",
            "--lr0",
            "10",
            "--warmup-epochs",
            "0",
            "--weight-decay",
            "1",
            "--momentum",
            "0.99",
            "--epochs",
            "60",
            "--accumulate",
            "1",
            "--nbs",
            "4",
            "--val=false",
        ])
        .assert()
        .code(1)
        .get_output()
        .clone();
    let stderr = String::from_utf8(out.stderr).unwrap();
    let error = stderr.lines().last().unwrap();
    assert!(
        error.starts_with("yolo-train: error:")
            && error.contains("not finite")
            && error.contains(".png"),
        "{error}"
    );
}

#[test]
fn a_malformed_annotation_stops_the_run_unless_it_may_be_skipped() {
    let t = workplace();
    let path = t.path().join("train.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    json["annotations"][0]["image_id"] = 99.into();
    fs::write(&path, json.to_string()).unwrap();
    let out = yolo_train(t.path())
        .args(SMALL)
        .assert()
        .code(1)
        .get_output()
        .clone();
    let stderr = String::from_utf8(out.stderr).unwrap();
    assert!(
        stderr.contains("train.json") && stderr.contains("99"),
        "{stderr}"
    );
    let refused = t.path().join("runs/detect/train");
    let report: Value = serde_json::from_slice(&read(&refused, "data-report.json")).unwrap();
    assert!(report.to_string().contains("99"), "{report}");
    assert_eq!(walk(&refused).len(), 1, "nothing else was begun");
    trained(t.path(), &["--skip-bad", "--epochs", "1"]);
    let report: Value = serde_json::from_slice(&read(
        &t.path().join("runs/detect/train-2"),
        "data-report.json",
    ))
    .unwrap();
    assert!(report.to_string().contains("99"), "{report}");
}

#[test]
fn weights_and_data_with_other_classes_do_not_go_together() {
    let t = workplace();
    trained(t.path(), &["--epochs", "1"]);
    for split in ["train", "val"] {
        let path = t.path().join(format!("{split}.json"));
        let text = fs::read_to_string(&path).unwrap().replace("green", "blue");
        fs::write(path, text).unwrap();
    }
    let out = yolo_train(t.path())
        .args([
            "val",
            "--weights",
            "runs/detect/train/weights/best.safetensors",
            "--data",
            "data.yaml",
        ])
        .assert()
        .code(1)
        .get_output()
        .clone();
    let stderr = String::from_utf8(out.stderr).unwrap();
    assert!(stderr.contains("green"), "{stderr}");
}

#[test]
fn info_prints_the_published_size() {
    let out = Command::new(assert_cmd::cargo::cargo_bin!("yolo-train"))
        .args(["info", "--model", "yolo26s"])
        .assert()
        .success()
        .get_output()
        .clone();
    let stdout = String::from_utf8(out.stdout).unwrap();
    assert!(
        stdout.contains("10009784 parameters") && stdout.contains("22.8 GFLOPs"),
        "{stdout}"
    );
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_ends_with_130_and_keeps_whole_files() {
    let t = workplace();
    let child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("yolo-train"))
        .current_dir(t.path())
        .args(SMALL)
        .args(["--epochs", "1000"])
        .stderr(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let csv = t.path().join("runs/detect/train/results.csv");
    while !csv.exists() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(
        std::process::Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    let mut child = child;
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let last = read(
        &t.path().join("runs/detect/train"),
        "weights/last.safetensors",
    );
    assert!(safetensors::SafeTensors::deserialize(&last).is_ok());
    for (path, _) in walk(&t.path().join("runs")) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        assert!(!name.contains("tmp"), "{name} is left over");
    }
}
