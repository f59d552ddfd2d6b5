//! YOLO txt splits and what all formats share. COCO files: `coco/tests.rs`.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::data::DataReport;
use crate::data::test_support::{shared, write, write_jpeg};

/// A data set in a folder of its own.
struct Set {
    folder: TempDir,
    yaml: String,
}

impl Set {
    fn new(yaml: &str) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            yaml: yaml.to_owned(),
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn image(self, path: &str) -> Self {
        write_jpeg(&self.path(path), 100, 50, 1);
        self
    }

    fn file(self, path: &str, text: impl AsRef<[u8]>) -> Self {
        write(&self.path(path), text);
        self
    }

    fn load(
        &self,
        which: SplitName,
        options: &IndexOptions,
    ) -> Result<(Split, SplitReport), DataError> {
        write(&self.path("d.yaml"), &self.yaml);
        load_split(&self.dataset(), which, options)
    }

    fn dataset(&self) -> DatasetYaml {
        write(&self.path("d.yaml"), &self.yaml);
        DatasetYaml::load_in("d.yaml", self.folder.path()).unwrap()
    }

    fn train(&self) -> (Split, SplitReport) {
        self.load(SplitName::Train, &IndexOptions::default())
            .unwrap_or_else(|error| panic!("{error}"))
    }

    fn error(&self) -> String {
        self.load(SplitName::Train, &IndexOptions::default())
            .expect_err("an error")
            .to_string()
            .replace(&self.folder.path().display().to_string(), "<set>")
    }
}

fn skip_bad() -> IndexOptions {
    IndexOptions {
        skip_bad: true,
        ..IndexOptions::default()
    }
}

fn kinds(report: &SplitReport) -> Vec<FindingKind> {
    report.findings.iter().map(|finding| finding.kind).collect()
}

const TWO: &str = "train: images/train\nval: images/val\nnames: [a, b]\n";

#[test]
fn a_folder_split_has_its_labels_from_the_parallel_tree() {
    let set = Set::new(TWO)
        .image("images/train/b.jpg")
        .image("images/train/a.jpg")
        .image("images/train/sub/c.jpg")
        .file(
            "labels/train/a.txt",
            "1 0.5 0.5 0.5 0.5\n0 0.25 0.5 0.2 0.4\n",
        )
        .file("labels/train/b.txt", "")
        .file("labels/train/sub/c.txt", "0 0.5 0.5 1 1");
    let (split, report) = set.train();
    assert_eq!(split.names, ["a", "b"]);
    assert_eq!(split.category_ids, [0, 1]);
    assert!(!split.image_id_in_file);
    let images: Vec<_> = split
        .images
        .iter()
        .map(|i| (i.id, i.file_name.as_str()))
        .collect();
    assert_eq!(
        images,
        [
            (1, "images/train/a.jpg"),
            (2, "images/train/b.jpg"),
            (3, "images/train/sub/c.jpg")
        ]
    );
    let a = &split.images[0];
    assert_eq!((a.width, a.height), (100, 50));
    assert_eq!(
        a.labels[0],
        LabelBox {
            class: 1,
            xyxy: [25.0, 12.5, 75.0, 37.5]
        }
    );
    assert_eq!(
        a.truths[0],
        Truth {
            id: 1,
            class: 1,
            bbox: [25.0, 12.5, 50.0, 25.0],
            area: 1250.0,
            crowd: false
        }
    );
    let ids: Vec<u64> = split
        .images
        .iter()
        .flat_map(|i| &i.truths)
        .map(|t| t.id)
        .collect();
    assert_eq!(ids, [1, 2, 3]);
    assert_eq!((report.images, report.backgrounds, report.boxes), (3, 1, 3));
    assert_eq!(report.classes[0].boxes, 2);
    assert_eq!(report.classes[0].images, 2);
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert!(
        report.lines()[0]
            .starts_with("train: 3 images (1 without boxes), 3 boxes, 2 classes, YOLO txt")
    );
}

#[test]
fn labels_beside_the_images_are_found_where_there_is_no_parallel_tree() {
    let set = Set::new("train: all\nnc: 1\n")
        .image("all/x.jpg")
        .file("all/x.txt", "0 0.5 0.5 0.5 0.5");
    let (split, _) = set.train();
    assert_eq!(split.names, ["class_0"]);
    assert_eq!(split.images[0].labels.len(), 1);
}

#[test]
fn lists_name_images_relative_to_the_root_or_to_themselves() {
    let set = Set::new("path: set\ntrain: [lists/one.txt, images/extra]\nnames: [a]\n")
        .image("set/images/a.jpg")
        .image("set/lists/near.jpg")
        .image("set/images/extra/e.jpg")
        .file("set/labels/a.txt", "0 0.5 0.5 0.5 0.5")
        .file(
            "set/lists/one.txt",
            "\u{feff}./near.jpg\r\n\r\nimages/a.jpg\nimages/extra/e.jpg\n",
        );
    let (split, report) = set.train();
    let names: Vec<_> = split.images.iter().map(|i| i.file_name.as_str()).collect();
    assert_eq!(
        names,
        ["images/a.jpg", "images/extra/e.jpg", "lists/near.jpg"]
    );
    assert_eq!(kinds(&report), [FindingKind::DuplicateImage]);
    let missing = set
        .file("set/lists/one.txt", "images/a.jpg\n./gone.jpg\n")
        .error();
    assert!(missing.contains("<set>/set/lists/gone.jpg: the image file is not there (listed in <set>/set/lists/one.txt:2)"), "{missing}");
}

#[test]
fn malformed_rows_stop_the_run_all_at_once_and_are_dropped_by_skip_bad() {
    let mut rows = String::from("0 0.5 0.5 0.5 0.5\n");
    for _ in 0..12 {
        rows.push_str("7 0.5 0.5 0.5 0.5\n");
    }
    let set = Set::new(TWO)
        .image("images/train/a.jpg")
        .file("images/train/bad.jpg", "no image")
        .file("labels/train/a.txt", rows);
    let error = set
        .load(SplitName::Train, &IndexOptions::default())
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("train: 13 problems in the data; correct them, or give --skip-bad"),
        "{text}"
    );
    assert!(text.contains("\n  labels/train/a.txt:2: `7 0.5 0.5 0.5 0.5`: class 7 does not exist: there are 2, numbered 0…1"), "{text}");
    assert!(text.ends_with("… and 3 more"), "{text}");
    assert_eq!(text.lines().count(), 12);
    assert_eq!(error.report().unwrap().malformed, 13);

    let (split, report) = set.load(SplitName::Train, &skip_bad()).unwrap();
    assert_eq!(split.images.len(), 1);
    assert_eq!(split.images[0].truths.len(), 1);
    assert_eq!(
        (
            report.malformed,
            report.boxes_dropped,
            report.images_dropped,
            report.images_listed
        ),
        (13, 12, 1, 2)
    );
}

#[test]
fn an_image_broken_inside_is_found_by_skip_bad() {
    let set = Set::new(TWO)
        .image("images/train/a.jpg")
        .file("labels/train/a.txt", "0 0.5 0.5 0.5 0.5");
    let png = set.path("images/train/b.png");
    image::RgbImage::from_fn(64, 64, |x, y| image::Rgb([x as u8, (x * y) as u8, 3]))
        .save(&png)
        .unwrap();
    let mut bytes = fs::read(&png).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(&png, bytes).unwrap();
    let (split, report) = set.load(SplitName::Train, &skip_bad()).unwrap();
    assert_eq!(split.images.len(), 1);
    assert_eq!(kinds(&report)[0], FindingKind::UnreadableImage);
    assert_eq!(report.findings[0].action, Action::ImageDropped);
}

#[test]
fn oddities_are_warnings_left_out_or_clipped_for_training_and_unchanged_in_truths() {
    let set = Set::new(TWO).image("images/train/a.jpg").file(
        "labels/train/a.txt",
        "0 0.5 0.5 0.5 0.5\n0 0.5 0.5 0.5 0.5\n1 0.5 0.5 0 0\n1 0.95 0.5 0.2 0.2\n1 0.5 0.5 0.5 0.5\n0 0.500001 0.5 1 1\n",
    );
    let (split, report) = set.train();
    let image = &split.images[0];
    assert_eq!(image.truths.len(), 6);
    assert_eq!(image.labels.len(), 4);
    assert_eq!(image.labels[1].xyxy, [85.0, 20.0, 100.0, 30.0]);
    let [x, _, w, _] = image.truths[3].bbox;
    assert!((x + w - 105.0).abs() < 1e-9);
    assert_eq!(
        kinds(&report),
        [
            FindingKind::Duplicate,
            FindingKind::ZeroArea,
            FindingKind::Overhang
        ]
    );
    let actions: Vec<_> = report.findings.iter().map(|f| f.action).collect();
    assert_eq!(
        actions,
        [Action::NotTrainedOn, Action::NotTrainedOn, Action::Clipped]
    );
    assert_eq!((report.malformed, report.warnings), (0, 3));
    let text = report.findings[2].text();
    assert_eq!(
        text,
        "labels/train/a.txt:4: `1 0.95 0.5 0.2 0.2`: the box sticks out of its image of 100 x 50 by 5.00 px"
    );
}

#[test]
fn files_that_are_passed_over_are_named() {
    let set = Set::new(TWO)
        .image("images/train/a.jpg")
        .image("images/train/.hidden.jpg")
        .file("images/train/b.avif", "")
        .file("images/train/c.JP2", "")
        .file("images/train/d.jp2", "")
        .file("images/train/notes.md", "")
        .file("labels/train/a.txt", "0 0.5 0.5 0.5 0.5\n1 0.2 0.2 0.1 0.1");
    image::RgbImage::new(10, 10)
        .save(set.path("images/train/a.png"))
        .unwrap();
    let (split, report) = set.train();
    assert_eq!(split.images.len(), 2);
    assert_eq!(
        kinds(&report),
        [
            FindingKind::UnreadFormat,
            FindingKind::HiddenFile,
            FindingKind::SharedLabels
        ]
    );
    assert_eq!(report.findings[0].value, "1 .avif, 2 .jp2");
    assert_eq!(
        report.findings[2].value,
        "images/train/a.jpg, images/train/a.png"
    );
}

#[test]
fn nothing_to_train_on_says_what_was_looked_for() {
    let set = Set::new(TWO).file("images/train/x.heic", "");
    let error = set.error();
    assert!(error.contains("the `train` split has no images; looked for images (.jpg, .jpeg, .jpe, .jfif, .mpo, .png, .webp, .bmp, .dib, .gif, .tif, .tiff, .qoi, .pbm, .pgm, .pnm, .ppm) in <set>/images/train"), "{error}");
    assert!(error.contains("1 .heic"), "{error}");
    let set = set
        .image("images/train/a.jpg")
        .file("images/train/_annotations.coco.json", "{}");
    let error = set.error();
    assert!(error.contains("has 1 images and not one box to train on; looked for rows in label files such as <set>/labels/train/a.txt or <set>/images/train/a.txt for images/train/a.jpg; 0 of 1 images have a label file"), "{error}");
    assert!(
        error.contains("if it is a COCO file, give `train: images/train/_annotations.coco.json`"),
        "{error}"
    );
    let set = set.image("images/val/v.jpg");
    let (_, report) = set.load(SplitName::Val, &IndexOptions::default()).unwrap();
    assert_eq!(kinds(&report), [FindingKind::NoLabels]);
}

#[test]
fn missing_files_name_every_place_and_the_way_out() {
    let set = Set::new(
        "path: far\ntrain: images\nval: v.csv\nnames: [a]\ndownload: https://example.org/a.zip\n",
    );
    let error = set.error();
    assert_eq!(
        error,
        "d.yaml: the `train` split is missing; looked for <set>/far/images, <set>/datasets/far/images. \
         get https://example.org/a.zip and unpack it into <set>/datasets/far"
    );
    let load = |which| {
        set.load(which, &IndexOptions::default())
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        load(SplitName::Test),
        "d.yaml: names no `test` split (it names train, val)"
    );
    write(&set.path("far/v.csv"), "");
    assert!(
        load(SplitName::Val)
            .contains("is neither a folder, a .txt list of images nor a COCO .json")
    );
    let set = Set::new("train: images\n").image("images/a.jpg");
    assert_eq!(
        set.error(),
        "d.yaml: YOLO txt labels have no class names: give `names` (or `nc`)"
    );
}

#[test]
fn classes_and_single_cls_select_and_merge_labels_and_truths() {
    let set = Set::new("train: images\nval: images\nnames: [a, b, c]\n")
        .image("images/a.jpg")
        .file(
            "labels/a.txt",
            "0 .5 .5 .1 .1\n1 .5 .5 .2 .2\n2 .5 .5 .3 .3\n1 .5 .5 .4 .4\n",
        );
    let load = |classes: Option<Vec<usize>>, single_cls| {
        let options = IndexOptions {
            classes,
            single_cls,
            ..IndexOptions::default()
        };
        set.load(SplitName::Train, &options)
    };
    let classes = |split: &Split| -> Vec<usize> {
        split.images[0]
            .truths
            .iter()
            .map(|truth| truth.class)
            .collect()
    };
    let (split, report) = load(Some(vec![1, 2]), false).unwrap();
    assert_eq!(split.names.len(), 3);
    assert_eq!(classes(&split), [1, 2, 1]);
    assert_eq!(report.other_classes.get("a"), Some(&1));
    assert!(report.findings.is_empty());
    let (split, report) = load(Some(vec![1]), true).unwrap();
    assert_eq!(
        (split.names, split.category_ids),
        (vec!["item".to_owned()], vec![0])
    );
    assert_eq!(
        split.images[0]
            .labels
            .iter()
            .map(|l| l.class)
            .collect::<Vec<_>>(),
        [0, 0]
    );
    assert_eq!(report.classes[0].boxes, 2);
    let error = load(Some(vec![3]), false).unwrap_err().to_string();
    assert_eq!(error, "--classes 3: there are 3 classes, 0…2 (a, b, c)");
    assert!(load(Some(vec![]), false).is_err());
}

#[test]
fn fraction_takes_evenly_spread_images_in_training_alone() {
    let mut set = Set::new("train: images\nval: images\nnames: [a]\n");
    for index in 0..10 {
        set = set
            .image(&format!("images/{index}.jpg"))
            .file(&format!("labels/{index}.txt"), "0 .5 .5 .5 .5");
    }
    let options = |fraction| IndexOptions {
        fraction,
        ..IndexOptions::default()
    };
    let ids = |which, fraction| -> Vec<u64> {
        let (split, report) = set.load(which, &options(fraction)).unwrap();
        assert_eq!(report.images_listed, 10);
        split.images.iter().map(|image| image.id).collect()
    };
    assert_eq!(ids(SplitName::Train, 0.3), [4, 7, 10]);
    assert_eq!(ids(SplitName::Train, 0.5), [2, 4, 6, 8, 10]);
    assert_eq!(ids(SplitName::Train, 0.001), [10]);
    assert_eq!(ids(SplitName::Train, 1.0).len(), 10);
    assert_eq!(ids(SplitName::Val, 0.3).len(), 10);
}

#[test]
fn the_result_does_not_depend_on_the_number_of_threads() {
    let mut set = Set::new("train: images\nnames: [a, b]\n");
    for index in 0..40 {
        let rows = format!("{} .5 .5 .5 .5\n0 .9 .5 .3 .{}\n", index % 2, index + 1);
        set = set
            .image(&format!("images/{index}.jpg"))
            .file(&format!("labels/{index}.txt"), rows);
    }
    let load = |threads| {
        let options = IndexOptions {
            threads: Some(threads),
            ..IndexOptions::default()
        };
        let (split, report) = set.load(SplitName::Train, &options).unwrap();
        (split.images, report)
    };
    assert_eq!(load(1), load(4));
}

#[test]
fn exif_orientation_is_noted_where_nothing_confirms_the_frame() {
    let set = Set::new("train: images\nnames: [a]\n")
        .image("images/a.jpg")
        .file("labels/a.txt", "0 .5 .5 .5 .5")
        .file("labels/b.txt", "0 .5 .5 .5 .5");
    write_jpeg(&set.path("images/b.jpg"), 40, 20, 6);
    let (split, report) = set.train();
    assert_eq!((split.images[1].width, split.images[1].height), (20, 40));
    assert_eq!(kinds(&report), [FindingKind::OrientedImages]);
}

#[test]
fn the_report_is_json_with_every_problem() {
    let set = Set::new(TWO).image("images/train/a.jpg").file(
        "labels/train/a.txt",
        "0 .5 .5 .5 .5\n1 .5 .5 0 0\n9 .5 .5 .1 .1\n",
    );
    let (_, report) = set.load(SplitName::Train, &skip_bad()).unwrap();
    let mut all = DataReport::new("d.yaml");
    all.push(report);
    let json: serde_json::Value = serde_json::from_str(&all.to_json()).unwrap();
    let split = &json["splits"][0];
    assert_eq!(split["classes"][1]["truths"], 1);
    let findings = split["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 2);
    assert_eq!(findings[0]["line"], 3);
    assert_eq!(findings[0]["severity"], "malformed");
    assert_eq!(findings[0]["action"], "box dropped");
    assert_eq!(findings[1]["kind"], "zero_area");
    assert_eq!(findings[1]["value"], "1 0.5 0.5 0 0");
    assert!(findings[1].get("annotation_id").is_none());
}

#[test]
fn exported_yolo_sets_are_read_shared() {
    let Some(root) = shared("data/nasty/yolo/yolo_dataset") else {
        return;
    };
    let names: Vec<String> = (0..10).map(|class| format!("label_{class}")).collect();
    for train in ["labels/images/train", "strict/obj_train_data"] {
        let set = Set::new(&format!(
            "path: {}\ntrain: {train}\nnames: [{}]\n",
            root.display(),
            names.join(", ")
        ));
        let (split, report) = set.train();
        assert_eq!((report.images, report.boxes), (1, 2), "{train}");
        let classes: Vec<usize> = split.images[0].labels.iter().map(|l| l.class).collect();
        assert_eq!(classes, [2, 4]);
    }
}
