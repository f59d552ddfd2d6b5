//! `yolo-train predict` and `yolo-train doctor`, on weights that are trained here for one epoch.

use assert_cmd::Command;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::OnceLock;
use tempfile::TempDir;

fn yolo_train(folder: &Path) -> Command {
    let mut c = Command::new(assert_cmd::cargo::cargo_bin!("yolo-train"));
    c.current_dir(folder);
    c
}

/// A picture with a square and a bar whose place follows from `i`.
fn picture(i: u32, (w, h): (u32, u32)) -> image::RgbImage {
    let side = w.min(h) / 3;
    let (x0, y0) = ((i * 13) % (w - side), (i * 7) % (h - side));
    image::RgbImage::from_fn(w, h, |x, y| {
        let inside = (x0..x0 + side).contains(&x) && (y0..y0 + side).contains(&y);
        match inside {
            true => image::Rgb([240, 40, 40]),
            false => image::Rgb([(x * 2) as u8, (y * 3) as u8, (i * 40) as u8]),
        }
    })
}

/// A folder with a data set of three shapes of images, and a run of one epoch on it with its weights.
struct Trained {
    folder: TempDir,
    weights: PathBuf,
}

const SIZES: [(u32, u32); 3] = [(96, 72), (64, 64), (72, 100)];

fn trained() -> &'static Trained {
    static ONCE: OnceLock<Trained> = OnceLock::new();
    ONCE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("images")).unwrap();
        for (split, from, to) in [("train", 0u32, 6u32), ("val", 6, 15)] {
            let (mut images, mut annotations) = (vec![], vec![]);
            for i in from..to {
                let (w, h) = SIZES[(i % 3) as usize];
                let side = w.min(h) / 3;
                picture(i, (w, h)).save(root.join(format!("images/{i:03}.png"))).unwrap();
                images.push(serde_json::json!({
                    "id": 500 + i, "file_name": format!("{i:03}.png"), "width": w, "height": h,
                }));
                annotations.push(serde_json::json!({
                    "id": i + 1, "image_id": 500 + i, "category_id": if i % 2 == 0 { 7 } else { 42 },
                    "bbox": [(i * 13) % (w - side), (i * 7) % (h - side), side, side],
                    "area": side * side, "iscrowd": 0,
                }));
            }
            let json = serde_json::json!({
                "images": images, "annotations": annotations,
                "categories": [{"id": 7, "name": "red square"}, {"id": 42, "name": "grün/blau"}],
            });
            fs::write(root.join(format!("{split}.json")), json.to_string()).unwrap();
        }
        fs::write(root.join("data.yaml"), "path: .\ntrain: train.json\nval: val.json\n").unwrap();
        yolo_train(root)
            .args("--data data.yaml --imgsz 64 --batch 4 --epochs 1 --workers 1 --threads 1".split(' '))
            .assert()
            .success();
        Trained {
            weights: root.join("runs/detect/train/weights/best.safetensors"),
            folder,
        }
    })
}

/// An empty folder to work in.
fn place() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn predict(folder: &Path, more: &[&str]) -> Output {
    yolo_train(folder)
        .args(["predict", "--weights"])
        .arg(&trained().weights)
        .args(["--threads", "1", "--workers", "2"])
        .args(more)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn assert_code(out: &Output, code: i32) {
    assert_eq!(
        out.status.code(),
        Some(code),
        "{}\n{}",
        text(&out.stdout),
        text(&out.stderr)
    );
}

fn files(folder: &Path) -> Vec<String> {
    fn walk(folder: &Path, root: &Path, into: &mut Vec<String>) {
        for e in fs::read_dir(folder).unwrap() {
            let p = e.unwrap().path();
            if p.is_dir() {
                walk(&p, root, into);
            } else {
                into.push(p.strip_prefix(root).unwrap().display().to_string());
            }
        }
    }
    let mut all = vec![];
    walk(folder, folder, &mut all);
    all.sort();
    all
}

/// (box, score, category) of each row of predictions.json, by file name.
fn rows(path: &Path, name_of: impl Fn(&Value) -> String) -> BTreeMap<String, Vec<String>> {
    let json: Vec<Value> = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let mut rows: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in json {
        let shown = format!("{} {} {}", row["bbox"], row["score"], row["category_id"]);
        rows.entry(name_of(&row)).or_default().push(shown);
    }
    rows
}

#[test]
fn detections_are_those_of_validation_and_do_not_depend_on_neighbours() {
    let t = trained();
    let p = place();
    let val = |name: &str, rect: &str| {
        yolo_train(t.folder.path())
            .args(["val", "--weights"])
            .arg(&t.weights)
            .args("--data data.yaml --batch 1 --threads 1 --name".split(' '))
            .args([name, "--rect", rect, "--project"])
            .arg(p.path().join("val"))
            .assert()
            .success();
        rows(
            &p.path().join("val").join(name).join("predictions.json"),
            |row| format!("{:03}.png", row["image_id"].as_u64().unwrap() - 500),
        )
    };
    let validation: Vec<String> = (6..15)
        .map(|i| {
            t.folder
                .path()
                .join(format!("images/{i:03}.png"))
                .display()
                .to_string()
        })
        .collect();
    let predicted = |name: &str, more: &[&str]| {
        let mut words = vec!["--source"];
        words.extend(validation.iter().map(String::as_str));
        words.extend([
            "--conf",
            "0.001",
            "--save-json",
            "--save=false",
            "--name",
            name,
        ]);
        words.extend(more);
        assert_code(&predict(p.path(), &words), 0);
        let folder = p.path().join("runs/detect").join(name);
        assert_eq!(files(&folder), ["predictions.json"]);
        rows(&folder.join("predictions.json"), |row| {
            row["file_name"].as_str().unwrap().to_owned()
        })
    };
    let expected = val("rect", "true");
    assert_eq!(
        expected.len(),
        9,
        "every image has detections at this score"
    );
    assert_eq!(predicted("one", &["--batch", "1"]), expected);
    assert_eq!(
        predicted("many", &["--batch", "16", "--workers", "1"]),
        expected
    );
    assert_eq!(
        predicted("square", &["--rect", "false"]),
        val("square", "false")
    );
    let e2e = predicted("e2e", &["--end2end"]);
    assert_ne!(e2e, expected);
}

#[test]
fn a_folder_gives_annotated_images_labels_crops_and_lines() {
    let p = place();
    let source = p.path().join("my images");
    fs::create_dir_all(source.join("below")).unwrap();
    picture(1, (96, 72))
        .save(source.join("ein Bild.jpg"))
        .unwrap();
    picture(2, (64, 64))
        .save(source.join("größe 世界.png"))
        .unwrap();
    picture(3, (96, 72))
        .save(source.join("below/other.png"))
        .unwrap();
    fs::write(source.join("notes.txt"), "x").unwrap();
    let before = fs::read(source.join("ein Bild.jpg")).unwrap();
    let out = predict(
        p.path(),
        &[
            "--source",
            "my images",
            "--conf",
            "0",
            "--max-det",
            "3",
            "--save-txt",
            "--save-conf",
            "--save-crop",
        ],
    );
    assert_code(&out, 0);
    let lines: Vec<&str> = text(&out.stdout).lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(
        lines[0].starts_with("image 1/2 my images/ein Bild.jpg: 64x96, "),
        "{}",
        lines[0]
    );
    assert!(lines[0].ends_with(" ms"), "{}", lines[0]);
    let stderr = text(&out.stderr);
    assert!(
        stderr.contains("my images: 2 images; left out: 1 .txt, 1 folder"),
        "{stderr}"
    );
    assert!(
        stderr.contains("results in runs/detect/predict"),
        "{stderr}"
    );

    let folder = p.path().join("runs/detect/predict");
    let written = files(&folder);
    for name in [
        "ein Bild.jpg",
        "größe 世界.jpg",
        "labels/ein Bild.txt",
        "labels/größe 世界.txt",
    ] {
        assert!(written.contains(&name.to_owned()), "{name} in {written:?}");
    }
    let crops: Vec<&String> = written.iter().filter(|n| n.starts_with("crops/")).collect();
    assert_eq!(crops.len(), 6, "{crops:?}");
    assert!(
        crops
            .iter()
            .all(|n| n.starts_with("crops/red square/") || n.starts_with("crops/grün_blau/")),
        "{crops:?}"
    );
    let drawn = image::open(folder.join("ein Bild.jpg")).unwrap().to_rgb8();
    assert_eq!(drawn.dimensions(), (96, 72));
    let source_pixels = image::open(source.join("ein Bild.jpg")).unwrap().to_rgb8();
    let changed = drawn
        .pixels()
        .zip(source_pixels.pixels())
        .filter(|(a, b)| (0..3).any(|c| a.0[c].abs_diff(b.0[c]) > 60))
        .count();
    assert!(changed > 20, "{changed} pixels are drawn on");
    let labels = fs::read_to_string(folder.join("labels/ein Bild.txt")).unwrap();
    assert_eq!(labels.lines().count(), 3);
    for line in labels.lines() {
        let numbers: Vec<f64> = line.split(' ').map(|n| n.parse().unwrap()).collect();
        assert_eq!(numbers.len(), 6, "{line}");
        assert!(numbers[0] == 0.0 || numbers[0] == 1.0);
        assert!(
            numbers[1..].iter().all(|n| (0.0..=1.0).contains(n)),
            "{line}"
        );
    }
    assert_eq!(
        fs::read(source.join("ein Bild.jpg")).unwrap(),
        before,
        "the source is not touched"
    );

    // again: another folder, and without scores
    let out = predict(
        p.path(),
        &[
            "--source",
            "my images/*.png",
            "--conf",
            "0",
            "--save-txt",
            "--save=false",
        ],
    );
    assert_code(&out, 0);
    let second = p.path().join("runs/detect/predict-2");
    assert_eq!(files(&second), ["labels/größe 世界.txt"]);
    let labels = fs::read_to_string(second.join("labels/größe 世界.txt")).unwrap();
    assert!(
        labels.lines().all(|l| l.split(' ').count() == 5),
        "{labels}"
    );
}

#[test]
fn broken_files_are_named_and_skipped_and_end_with_1() {
    let p = place();
    for i in 0..4 {
        picture(i, (64, 64))
            .save(p.path().join(format!("{i}.png")))
            .unwrap();
    }
    let whole = fs::read(p.path().join("1.png")).unwrap();
    fs::write(p.path().join("1.png"), &whole[..whole.len() / 2]).unwrap();
    fs::write(p.path().join("2.png"), "no image at all").unwrap();
    let words = ["--source", "*.png", "--conf", "0", "--save-json"];
    let out = predict(p.path(), &words);
    assert_code(&out, 1);
    let stderr = text(&out.stderr);
    assert!(
        stderr.contains("warning: image 2/4 1.png: truncated PNG"),
        "{stderr}"
    );
    assert!(
        stderr.contains("warning: image 3/4 2.png: not an image file"),
        "{stderr}"
    );
    let last = stderr.lines().last().unwrap();
    assert!(
        last.starts_with("yolo-train: error: 2 of 4 images cannot be used (first 1.png: truncated"),
        "{last}"
    );
    assert!(last.ends_with("the others are done"), "{last}");
    let folder = p.path().join("runs/detect/predict");
    assert_eq!(files(&folder), ["0.jpg", "3.jpg", "predictions.json"]);
    let json: Vec<Value> =
        serde_json::from_slice(&fs::read(folder.join("predictions.json")).unwrap()).unwrap();
    let ids: Vec<u64> = json
        .iter()
        .map(|r| r["image_id"].as_u64().unwrap())
        .collect();
    assert!(ids.contains(&0) && ids.contains(&3) && ids.iter().all(|i| [0, 3].contains(i)));
    assert!(
        json.iter()
            .all(|r| [7, 42].contains(&r["category_id"].as_u64().unwrap()))
    );

    // the good ones are what they are alone
    let out = predict(
        p.path(),
        &[
            "--source",
            "0.png",
            "3.png",
            "--conf",
            "0",
            "--save-json",
            "--save=false",
        ],
    );
    assert_code(&out, 0);
    let name = |row: &Value| row["file_name"].as_str().unwrap().to_owned();
    assert_eq!(
        rows(
            &p.path().join("runs/detect/predict-2/predictions.json"),
            name
        ),
        rows(&folder.join("predictions.json"), name)
    );

    let out = predict(p.path(), &["--source", "2.png"]);
    assert_code(&out, 1);
    assert!(
        !p.path().join("runs/detect/predict-3").exists(),
        "nothing to write, no folder"
    );
}

#[test]
fn equal_names_in_different_folders_do_not_overwrite_each_other() {
    let p = place();
    for (i, name) in ["a/x.png", "b/x.png", "b/x.jpg"].into_iter().enumerate() {
        fs::create_dir_all(p.path().join(name).parent().unwrap()).unwrap();
        picture(i as u32, (64, 64))
            .save(p.path().join(name))
            .unwrap();
    }
    fs::write(p.path().join("list.txt"), "a/x.png\nb/x.png\nb/x.jpg\n").unwrap();
    for (n, source) in ["*/x.*", "list.txt", "a/x.png,b/x.png,b/x.jpg"]
        .into_iter()
        .enumerate()
    {
        let name = format!("run{n}");
        let words = [
            "--source",
            source,
            "--conf",
            "0",
            "--save-txt",
            "--name",
            &name,
        ];
        assert_code(&predict(p.path(), &words), 0);
        assert_eq!(
            files(&p.path().join("runs/detect").join(&name)),
            [
                "a/x.jpg",
                "b/x.jpg.jpg",
                "b/x.png.jpg",
                "labels/a/x.txt",
                "labels/b/x.jpg.txt",
                "labels/b/x.png.txt"
            ],
            "{source}"
        );
    }
}

#[test]
fn only_the_classes_that_are_asked_for_are_found() {
    let p = place();
    picture(1, (96, 72)).save(p.path().join("1.png")).unwrap();
    let words = [
        "--source",
        "1.png",
        "--conf",
        "0",
        "--save-json",
        "--save=false",
        "--max-det",
        "5",
    ];
    let categories = |more: &[&str]| -> Vec<u64> {
        let out = predict(p.path(), &[&words[..], more].concat());
        assert_code(&out, 0);
        let newest = text(&out.stderr)
            .lines()
            .last()
            .unwrap()
            .strip_prefix("results in ")
            .unwrap()
            .to_owned();
        let json = fs::read(p.path().join(newest).join("predictions.json")).unwrap();
        let json: Vec<Value> = serde_json::from_slice(&json).unwrap();
        json.iter()
            .map(|r| r["category_id"].as_u64().unwrap())
            .collect()
    };
    assert_eq!(categories(&["--classes", "1"]), [42; 5]);
    assert_eq!(categories(&["--classes", "0"]), [7; 5]);
    let out = predict(p.path(), &["--source", "1.png", "--classes", "2"]);
    assert_code(&out, 1);
    assert!(text(&out.stderr).contains("--classes 2: the weights have 2 classes, 0 to 1"));
}

#[test]
fn sources_that_are_none_are_refused_in_one_line() {
    let p = place();
    fs::create_dir(p.path().join("empty")).unwrap();
    for (source, expected) in [
        (
            "nowhere.jpg",
            "--source nowhere.jpg: there is no such file or folder (looked for /",
        ),
        (
            "empty",
            "--source empty: no images; looked for files that end in .jpg",
        ),
        ("*.jpg", "--source *.jpg: no images"),
        ("https://example.com/a.jpg", "addresses cannot be read"),
        ("0", "cameras and screens cannot be read"),
        ("clip.mp4", "videos cannot be read"),
    ] {
        let out = predict(p.path(), &["--source", source]);
        assert_code(&out, 1);
        let stderr = text(&out.stderr);
        assert!(stderr.contains(expected), "{source}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(!p.path().join("runs").exists());
    }
    for (words, expected) in [
        (vec!["predict"], "`yolo-train predict` needs --weights"),
        (
            vec!["predict", "--weights", "w"],
            "`yolo-train predict` needs --source",
        ),
        (
            vec!["predict", "a.jpg"],
            "images are given with --source a.jpg",
        ),
    ] {
        let out = yolo_train(p.path()).args(&words).output().unwrap();
        assert_code(&out, 2);
        assert!(
            text(&out.stderr).contains(expected),
            "{}",
            text(&out.stderr)
        );
    }
}

#[test]
fn a_run_leaves_pictures_of_its_batches_unless_told_otherwise() {
    let t = trained();
    let run = t.folder.path().join("runs/detect/train");
    // 6 images in batches of 4, 9 validation images
    for (name, size) in [
        ("train_batch0.jpg", (130, 130)),
        ("train_batch1.jpg", (130, 64)),
        ("val_batch0_labels.jpg", (194, 194)),
        ("val_batch0_pred.jpg", (194, 194)),
        ("val_batch2_pred.jpg", (0, 0)),
    ] {
        let picture = image::open(run.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        if name.starts_with("train") {
            assert_eq!((picture.width(), picture.height()), size, "{name}");
        }
    }
    assert!(!run.join("train_batch2.jpg").exists());
    let p = place();
    let out = yolo_train(t.folder.path())
        .args(["val", "--weights"])
        .arg(&t.weights)
        .args("--data data.yaml --plots=false --threads 1 --batch 4 --project".split(' '))
        .arg(p.path())
        .output()
        .unwrap();
    assert_code(&out, 0);
    let written = files(&p.path().join("val"));
    assert!(written.iter().all(|n| !n.ends_with(".jpg")), "{written:?}");
}

#[test]
fn the_doctor_examines_the_machine_and_leaves_nothing() {
    let p = place();
    let out = yolo_train(p.path()).arg("doctor").output().unwrap();
    assert_code(&out, 0);
    let stdout = text(&out.stdout);
    let version = format!("program       yolo-train {}", env!("CARGO_PKG_VERSION"));
    assert!(stdout.starts_with(&version), "{stdout}");
    for word in [
        "Burn",
        "instructions",
        "threads",
        "memory",
        "disk",
        "GPUs",
        "compute       works",
        "files         works",
    ] {
        assert!(stdout.contains(word), "{word} in {stdout}");
    }
    let json = yolo_train(p.path())
        .args(["doctor", "--json"])
        .output()
        .unwrap();
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["ready"], true);
    assert_eq!(json["devices"][0], "cpu");
    assert!(json["machine"]["threads"].as_u64().unwrap() > 0, "{json}");
    assert_eq!(fs::read_dir(p.path()).unwrap().count(), 0);

    let out = yolo_train(p.path())
        .arg("doctor")
        .env("YOLO_TRAIN_ISA", "sse9")
        .output()
        .unwrap();
    assert_code(&out, 1);
    assert!(
        text(&out.stderr).contains("YOLO_TRAIN_ISA"),
        "{}",
        text(&out.stderr)
    );
    fs::write(p.path().join("file"), "").unwrap();
    let out = yolo_train(p.path())
        .args(["doctor", "--project", "file/runs"])
        .output()
        .unwrap();
    assert_code(&out, 1);
    assert!(
        text(&out.stderr).contains("--project"),
        "{}",
        text(&out.stderr)
    );
}
