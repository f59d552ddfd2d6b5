//! The pictures that runs of the binary leave.

use assert_cmd::Command;
use std::fs;
use std::path::Path;

const CURVES: [&str; 6] = [
    "BoxPR_curve.png",
    "BoxF1_curve.png",
    "BoxP_curve.png",
    "BoxR_curve.png",
    "confusion_matrix.png",
    "confusion_matrix_normalized.png",
];

/// Six images with a square each; class names that break careless writers; the last class has no object.
fn data_set(folder: &Path) {
    fs::create_dir_all(folder.join("images")).unwrap();
    for (split, numbers) in [("train", 0..4_u32), ("val", 4..6)] {
        let (mut images, mut annotations) = (vec![], vec![]);
        for i in numbers {
            let (x, side) = (8 + 9 * i, 20 + i);
            let inside = |v: u32| (x..x + side).contains(&v);
            let image = image::RgbImage::from_fn(96, 96, |a, b| match inside(a) && inside(b) {
                true => image::Rgb([250, 20, 20]),
                false => image::Rgb([20, (a * 2) as u8, 90]),
            });
            image.save(folder.join(format!("images/{i}.png"))).unwrap();
            images.push(
                serde_json::json!({"id": i, "file_name": format!("{i}.png"), "width": 96, "height": 96}),
            );
            annotations.push(serde_json::json!({
                "id": i + 1, "image_id": i, "category_id": 1 + i % 2, "bbox": [x, x, side, side],
                "area": side * side, "iscrowd": 0,
            }));
        }
        let json = serde_json::json!({
            "images": images, "annotations": annotations,
            "categories": [
                {"id": 1, "name": "<&\"'>"}, {"id": 2, "name": "红细胞 🙂"}, {"id": 3, "name": "long ".repeat(40)},
            ],
        });
        fs::write(folder.join(format!("{split}.json")), json.to_string()).unwrap();
    }
    let yaml = "path: .\ntrain: train.json\nval: val.json\n";
    fs::write(folder.join("data.yaml"), yaml).unwrap();
}

fn run(folder: &Path, line: &str) -> String {
    let out = Command::new(assert_cmd::cargo::cargo_bin!("yolo-train"))
        .current_dir(folder)
        .args(line.split_whitespace())
        .args("--data data.yaml --imgsz 64 --batch 2 --workers 1 --threads 1".split(' '))
        .assert()
        .success()
        .get_output()
        .clone();
    String::from_utf8(out.stderr).unwrap()
}

/// It decodes, is of a size that is read without magnifying, and is not blank.
fn assert_picture(path: &Path) {
    let picture = image::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let rgb = picture.to_rgb8();
    assert!(
        rgb.width() >= 400 && rgb.height() >= 300,
        "{}",
        path.display()
    );
    let inked = rgb
        .pixels()
        .filter(|p| p.0.iter().any(|v| *v < 200))
        .count();
    assert!(inked > 1000, "{}: {inked} dark pixels", path.display());
}

#[test]
fn a_run_leaves_its_pictures_and_validation_of_its_weights_the_same_ones() {
    let t = tempfile::tempdir().unwrap();
    data_set(t.path());
    let log = run(t.path(), "train --epochs 2");
    assert!(!log.contains("warning"), "{log}");
    let trained = t.path().join("runs/detect/train");
    for name in ["results.png", "labels.jpg"].iter().chain(&CURVES) {
        assert_picture(&trained.join(name));
    }

    run(
        t.path(),
        "val --weights runs/detect/train/weights/best.safetensors",
    );
    let val = t.path().join("runs/detect/val");
    for name in CURVES {
        let (a, b) = (fs::read(trained.join(name)), fs::read(val.join(name)));
        assert!(a.unwrap() == b.unwrap(), "{name} differs");
    }
}

#[test]
fn runs_without_plots_leave_no_picture_and_the_same_weights() {
    let t = tempfile::tempdir().unwrap();
    data_set(t.path());
    for (name, plots) in [("with", "true"), ("without", "false")] {
        let line = format!("train --epochs 1 --name {name} --plots {plots}");
        run(t.path(), &line);
    }
    run(
        t.path(),
        "val --weights runs/detect/without/weights/best.safetensors --plots false",
    );
    let runs = t.path().join("runs/detect");
    let pictures = |run: &str| {
        let files = fs::read_dir(runs.join(run)).unwrap();
        let names = files.map(|f| f.unwrap().file_name().into_string().unwrap());
        names
            .filter(|n| n.ends_with(".png") || n.ends_with(".jpg"))
            .partition::<Vec<_>, _>(|n| n.contains("_batch"))
    };
    let (batches, others) = pictures("with");
    assert_eq!(others.len(), CURVES.len() + 2, "{others:?}");
    assert!(
        batches.iter().any(|n| n == "train_batch0.jpg"),
        "{batches:?}"
    );
    assert!(
        batches.iter().any(|n| n == "val_batch0_pred.jpg"),
        "{batches:?}"
    );
    for run in ["without", "val"] {
        assert_eq!(pictures(run), (vec![], vec![]));
    }
    let weights = |run: &str| fs::read(runs.join(run).join("weights/last.safetensors")).unwrap();
    assert!(weights("with") == weights("without"));
}

/// The picture shows every row that the run wrote, also the rows since it was last drawn.
#[cfg(unix)]
#[test]
fn an_interrupted_run_leaves_a_picture_of_all_its_rows() {
    let t = tempfile::tempdir().unwrap();
    data_set(t.path());
    let line = "train --epochs 1000 --data data.yaml --imgsz 64 --batch 2 --workers 1 --threads 1";
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("yolo-train"))
        .current_dir(t.path())
        .args(line.split(' '))
        .stderr(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let run = t.path().join("runs/detect/train");
    let rows =
        || fs::read_to_string(run.join("results.csv")).map_or(0, |text| text.lines().count());
    while rows() < 4 {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let kill = ["-INT", &child.id().to_string()].map(String::from);
    let killed = std::process::Command::new("kill").args(kill).status();
    assert!(killed.unwrap().success());
    child.wait().unwrap();

    let again = t.path().join("again/train");
    fs::create_dir_all(&again).unwrap();
    fs::copy(run.join("results.csv"), again.join("results.csv")).unwrap();
    yolo_train::report::plot::results::redraw(&again).unwrap();
    let [kept, drawn] = [run, again].map(|f| fs::read(f.join("results.png")).unwrap());
    assert!(kept == drawn, "the picture is older than the table");
}
