//! `--data` with a folder alone, as a user gives it.

use assert_cmd::Command;
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

fn yolo_train(folder: &Path) -> Command {
    let mut c = Command::new(assert_cmd::cargo::cargo_bin!("yolo-train"));
    c.current_dir(folder);
    c
}

const SMALL: [&str; 10] = [
    "--imgsz",
    "64",
    "--batch",
    "2",
    "--epochs",
    "1",
    "--workers",
    "1",
    "--threads",
    "1",
];

fn picture(path: &Path, index: u32) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let image = image::RgbImage::from_fn(80, 60, |x, y| {
        if (20..60).contains(&x) && (15..45).contains(&y) {
            image::Rgb([240, 30, (index * 20) as u8])
        } else {
            image::Rgb([(x * 2) as u8, (y * 3) as u8, 90])
        }
    });
    image.save(path).unwrap();
}

fn file(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn report(folder: &Path) -> Value {
    let bytes = fs::read(folder.join("runs/detect/train/data-report.json")).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

/// What a failed run says: one line, exit code 1.
fn error(folder: &Path, more: &[&str]) -> String {
    let output = yolo_train(folder).args(SMALL).args(more).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    let last = stderr.lines().last().unwrap().to_owned();
    assert!(last.starts_with("yolo-train: error: "), "{stderr}");
    last
}

#[test]
fn a_folder_of_images_in_every_format_is_trained_on_with_a_part_held_out() {
    let t = TempDir::new().unwrap();
    let formats = ["jpg", "png", "webp", "bmp", "gif", "qoi", "ppm"];
    for (index, format) in formats.iter().enumerate() {
        let name = format!("{format}-{index}");
        picture(
            &t.path().join(format!("set/images/{name}.{format}")),
            index as u32,
        );
        let row = format!("{} 0.5 0.5 0.5 0.5\n", index % 2);
        file(&t.path().join(format!("set/labels/{name}.txt")), &row);
    }
    file(&t.path().join("set/classes.txt"), "cat\ndog\n");
    let output = yolo_train(t.path())
        .args(["--data", "set"])
        .args(SMALL)
        .assert()
        .success()
        .get_output()
        .clone();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let said = "set: YOLO txt, train images; 2 class names from set/classes.txt; no validation part, so 10 % of the training images";
    assert_eq!(stderr.matches(said).count(), 1, "{stderr}");
    let report = report(t.path());
    let images: Vec<u64> = report["splits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|split| split["images"].as_u64().unwrap())
        .collect();
    assert_eq!(images.iter().sum::<u64>(), 7, "{report}");
    assert!(images.iter().all(|&count| count > 0), "{report}");
    assert_eq!(report["splits"][0]["findings"], Value::Array(vec![]));
}

#[test]
fn a_voc_folder_stops_at_a_bad_object_and_goes_on_without_it() {
    let t = TempDir::new().unwrap();
    let object = |corners: [i32; 4], difficult: u8| {
        let [xmin, ymin, xmax, ymax] = corners;
        format!(
            "<object><name>thing</name><difficult>{difficult}</difficult><bndbox><xmin>{xmin}</xmin><ymin>{ymin}</ymin>\
             <xmax>{xmax}</xmax><ymax>{ymax}</ymax></bndbox></object>\n"
        )
    };
    for index in 0..6u32 {
        let at = |path: &str| t.path().join(format!("voc/{path}"));
        picture(&at(&format!("JPEGImages/{index}.jpg")), index);
        let mut objects = object([21, 16, 60, 45], 0);
        match index {
            1 => objects.push_str(&object([1, 1, 10, 10], 1)),
            2 => objects.push_str(&object([50, 1, 10, 10], 0)),
            _ => {}
        }
        let size = "<size><width>80</width><height>60</height></size>";
        let xml = format!("<annotation>{size}\n{objects}</annotation>");
        file(&at(&format!("Annotations/{index}.xml")), &xml);
    }
    file(
        &t.path().join("voc/ImageSets/Main/train.txt"),
        "0\n1\n2\n3\n",
    );
    file(&t.path().join("voc/ImageSets/Main/val.txt"), "4\n5\n");
    let last = error(t.path(), &["--data", "voc"]);
    assert!(
        last.contains("train: 1 problem in the data")
            && last.contains("Annotations/2.xml:3: `thing 50 1 10 10`: xmax and ymax must not be below xmin and ymin"),
        "{last}"
    );
    fs::remove_dir_all(t.path().join("runs")).unwrap();
    let output = yolo_train(t.path())
        .args(["--data", "voc", "--skip-bad"])
        .args(SMALL)
        .assert()
        .success()
        .get_output()
        .clone();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains(
            "voc: Pascal VOC, train ImageSets/Main/train.txt; val ImageSets/Main/val.txt"
        ),
        "{stderr}"
    );
    let train = &report(t.path())["splits"][0];
    assert_eq!(train["format"], "Pascal VOC");
    assert_eq!(
        (&train["boxes"], &train["difficult"]),
        (&5.into(), &1.into())
    );
    assert_eq!(train["boxes_dropped"], 1);
    assert_eq!(train["findings"][0]["line"], 3);
}

#[test]
fn folders_that_hold_no_or_two_data_sets_are_errors_in_one_line() {
    let t = TempDir::new().unwrap();
    picture(&t.path().join("set/images/a.jpg"), 0);
    let last = error(t.path(), &["--data", "set"]);
    assert!(
        last.contains(
            "set: no data set is recognised in this folder, which holds images; looked for"
        ),
        "{last}"
    );
    file(&t.path().join("set/labels/a.txt"), "0 0.5 0.5 0.5 0.5\n");
    file(
        &t.path().join("set/annotations/a.xml"),
        "<annotation><object/></annotation>",
    );
    let last = error(t.path(), &["--data", "set"]);
    assert!(
        last.contains("set: which data set is meant? found YOLO txt in set (train images); Pascal VOC in set (train images)"),
        "{last}"
    );
    assert!(!t.path().join("runs").exists());
}
