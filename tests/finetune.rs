//! Training that starts from weights, freezes layers, weighs classes, or uses MuSGD: runs of the binary on drawn images.

use assert_cmd::Command;
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// Eight training and four validation images with a square each, of the first two of `names` in turn.
fn data_set(folder: &Path, name: &str, names: &[String]) {
    let root = folder.join(name);
    fs::create_dir_all(root.join("images")).unwrap();
    for (split, from, to) in [("train", 0u32, 8u32), ("val", 8, 12)] {
        let (mut images, mut annotations) = (vec![], vec![]);
        for i in from..to {
            let (x, y, side, class) = (8 + i * 4, 6 + i * 3, 16 + i, i % 2);
            let image = image::RgbImage::from_fn(96, 72, |px, py| {
                let inside = (x..x + side).contains(&px) && (y..y + side).contains(&py);
                match (inside, class) {
                    (false, _) => image::Rgb([(px * 2) as u8, (py * 3) as u8, (i * 20) as u8]),
                    (true, 0) => image::Rgb([250, 30, 30]),
                    (true, _) => image::Rgb([30, 250, 60]),
                }
            });
            let file = format!("{i:03}.png");
            image.save(root.join("images").join(&file)).unwrap();
            images.push(json!({"id": i, "file_name": file, "width": 96, "height": 72}));
            annotations.push(json!({
                "id": i + 1, "image_id": i, "category_id": class + 1, "bbox": [x, y, side, side],
                "area": side * side, "iscrowd": 0,
            }));
        }
        let categories: Vec<Value> = names
            .iter()
            .zip(1..)
            .map(|(n, id)| json!({"id": id, "name": n}))
            .collect();
        let json = json!({"images": images, "annotations": annotations, "categories": categories});
        fs::write(root.join(format!("{split}.json")), json.to_string()).unwrap();
    }
    let yaml = "path: .\ntrain: train.json\nval: val.json\n";
    fs::write(root.join("data.yaml"), yaml).unwrap();
}

fn names(text: &str) -> Vec<String> {
    text.split(' ').map(String::from).collect()
}

fn yolo_train(folder: &Path, args: &[&str]) -> assert_cmd::assert::Assert {
    let mut c = Command::new(assert_cmd::cargo::cargo_bin!("yolo-train"));
    c.current_dir(folder).args(args).assert()
}

/// A run of one epoch; what it printed.
fn train(folder: &Path, data: &str, name: &str, more: &[&str]) -> String {
    let data = format!("{data}/data.yaml");
    let mut args = vec![
        "--data", &data, "--name", name, "--imgsz", "64", "--batch", "4",
    ];
    args.extend(["--epochs", "1", "--workers", "1", "--threads", "1"]);
    args.extend(more);
    let out = yolo_train(folder, &args).success().get_output().clone();
    String::from_utf8(out.stderr).unwrap()
}

fn weights(folder: &Path, name: &str) -> Vec<u8> {
    let path = format!("runs/detect/{name}/weights/last.safetensors");
    fs::read(folder.join(path)).unwrap()
}

fn metadata(bytes: &[u8]) -> Value {
    let (_, header) = SafeTensors::read_metadata(bytes).unwrap();
    serde_json::from_str(&header.metadata().as_ref().unwrap()["yolo-train"]).unwrap()
}

/// 70 classes: class branches are 70 wide, where two classes have 64.
fn workplace() -> TempDir {
    let t = tempfile::tempdir().unwrap();
    let mut many = names("red green");
    many.extend((2..70).map(|i| format!("c{i}")));
    data_set(t.path(), "many", &many);
    data_set(t.path(), "two", &names("Green blue"));
    t
}

#[test]
fn a_run_starts_from_another_ones_weights_and_its_own_can_be_validated() {
    let t = workplace();
    train(t.path(), "many", "first", &[]);
    let from = "runs/detect/first/weights/last.safetensors";
    let said = train(t.path(), "two", "second", &["--weights", from]);
    let line = said.lines().find(|l| l.contains("tensors taken")).unwrap();
    assert!(
        line.contains("classes by name: 1 of 2 (Green), new are blue"),
        "{line}"
    );
    assert!(!line.contains("not taken"), "{line}");
    assert!(
        said.contains("class branches are 70 channels wide"),
        "{said}"
    );
    let bytes = weights(t.path(), "second");
    let m = metadata(&bytes);
    assert_eq!(m["spec"]["class_width"], 70);
    assert_eq!(
        m["licence"],
        metadata(&weights(t.path(), "first"))["licence"]
    );
    let of_second = "runs/detect/second/weights/best.safetensors";
    let args = ["val", "--weights", of_second, "--data", "two/data.yaml"];
    yolo_train(t.path(), &args).success();

    // an equal run gives equal bytes; random weights would not
    train(
        t.path(),
        "two",
        "third",
        &["--weights", from, "--threads", "2"],
    );
    assert!(weights(t.path(), "third") == bytes);
    train(t.path(), "two", "fourth", &[]);
    assert!(weights(t.path(), "fourth") != bytes);
}

#[test]
fn frozen_layers_come_out_as_they_went_in() {
    let t = workplace();
    train(t.path(), "two", "first", &[]);
    let from = "runs/detect/first/weights/last.safetensors";
    let before = weights(t.path(), "first");
    let before = SafeTensors::deserialize(&before).unwrap();
    for (name, freeze, optimizer) in [
        ("layers", "22", "SGD"),
        ("names", "model.23.one2one_cv3,0", "MuSGD"),
    ] {
        let more = [
            "--weights",
            from,
            "--freeze",
            freeze,
            "--optimizer",
            optimizer,
        ];
        let said = train(t.path(), "two", name, &more);
        assert!(said.contains(&format!("frozen ({freeze}): ")), "{said}");
        assert!(said.contains("batch norms in evaluation mode"), "{said}");
        let after = weights(t.path(), name);
        let after = SafeTensors::deserialize(&after).unwrap();
        let mut moved = 0;
        for (tensor, now) in after.iter() {
            let layer: usize = tensor.split('.').nth(1).unwrap().parse().unwrap();
            let frozen = match name {
                "layers" => layer < 22,
                _ => layer == 0 || tensor.starts_with("model.23.one2one_cv3."),
            };
            let same = now.data() == before.tensor(tensor).unwrap().data();
            assert!(same || !frozen || tensor.ends_with("tracked"), "{tensor}");
            moved += usize::from(!same);
        }
        assert!(moved > 20);
    }
}

#[test]
fn musgd_has_its_eight_rates_and_the_same_bytes_with_any_number_of_threads() {
    let t = workplace();
    let said = train(t.path(), "two", "one", &["--optimizer", "MuSGD"]);
    assert!(
        said.contains("optimizer MuSGD") && said.contains("Muon's part"),
        "{said}"
    );
    train(
        t.path(),
        "two",
        "more",
        &["--optimizer", "musgd", "--threads", "3"],
    );
    assert!(weights(t.path(), "one") == weights(t.path(), "more"));
    let csv = fs::read_to_string(t.path().join("runs/detect/one/results.csv")).unwrap();
    let rows: Vec<Vec<&str>> = csv.lines().map(|l| l.split(',').collect()).collect();
    let of = |group: usize| {
        let name = format!("lr/pg{group}");
        let at = rows[0].iter().position(|c| *c == name).unwrap();
        rows[1][at].parse::<f64>().unwrap()
    };
    assert!((of(4) / of(0) - 3.0).abs() < 1e-3, "class branches");
    assert!(
        (of(3) < of(0)) && (of(7) / of(3) - 3.0).abs() < 1e-3,
        "Muon's part"
    );
    assert!(!rows[0].contains(&"lr/pg8"));
}

#[test]
fn class_weights_are_printed_and_change_the_loss_and_wrong_ones_are_refused() {
    let t = workplace();
    let class_loss = |name: &str| -> f64 {
        let path = t.path().join(format!("runs/detect/{name}/results.csv"));
        let csv = fs::read_to_string(path).unwrap();
        csv.lines()
            .nth(1)
            .unwrap()
            .split(',')
            .nth(3)
            .unwrap()
            .parse()
            .unwrap()
    };
    train(t.path(), "two", "plain", &[]);
    let said = train(
        t.path(),
        "two",
        "balanced",
        &["--class-weights", "balanced"],
    );
    assert!(
        said.contains("class weights (balanced): Green 1.000, blue 1.000"),
        "{said}"
    );
    assert!(weights(t.path(), "plain") == weights(t.path(), "balanced"));
    fs::write(t.path().join("w.yaml"), "blue: 4\n").unwrap();
    let said = train(t.path(), "two", "file", &["--class-weights", "w.yaml"]);
    assert!(
        said.contains("class weights (w.yaml): Green 1.000, blue 4.000"),
        "{said}"
    );
    assert!(class_loss("file") > 1.5 * class_loss("plain"));

    let refused = |args: &[&str]| {
        let mut all = vec!["--data", "two/data.yaml", "--imgsz", "64", "--epochs", "1"];
        all.extend(args);
        let out = yolo_train(t.path(), &all).failure().get_output().clone();
        let text = String::from_utf8(out.stderr).unwrap();
        let last = text.lines().last().unwrap_or_default().to_string();
        assert!(last.starts_with("yolo-train: error: "), "{text}");
        last
    };
    fs::write(t.path().join("w.yaml"), "blu: 4\n").unwrap();
    assert!(refused(&["--class-weights", "w.yaml"]).ends_with("did you mean blue?"));
    assert!(refused(&["--freeze", "23.cv8"]).contains("did you mean 23.cv"));
    assert!(refused(&["--weights", "none.safetensors"]).contains("none.safetensors"));
    assert_eq!(
        fs::read_dir(t.path().join("runs/detect")).unwrap().count(),
        3,
        "a run that cannot start leaves no folder"
    );
}
