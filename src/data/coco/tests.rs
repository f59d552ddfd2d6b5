//! COCO splits from file to [`Split`].

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::classes::check_categories;
use super::index::read_box;
use super::*;
use crate::config::dataset::{DatasetYaml, SplitName};
use crate::data::report::FindingKind;
use crate::data::test_support::{shared, write, write_jpeg};
use crate::data::{IndexOptions, Split, SplitReport, Truth, load_split};

const IMAGE: (u32, u32) = (100, 50);

/// A COCO set: `ann/train.json` and images in `images/`.
struct Set {
    folder: TempDir,
    yaml: &'static str,
    json: Value,
}

impl Set {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_jpeg(&folder.path().join("images/a.jpg"), IMAGE.0, IMAGE.1, 1);
        let json = json!({
            "info": null,
            "images": [{"id": 5, "file_name": "a.jpg", "width": 100, "height": 50}],
            "categories": [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}],
            "annotations": [{"id": 11, "image_id": 5, "category_id": 7, "bbox": [10, 5, 20, 30]}]
        });
        Self {
            folder,
            yaml: "train: ann/train.json\nval: ann/val.json\n",
            json,
        }
    }

    fn yaml(mut self, yaml: &'static str) -> Self {
        self.yaml = yaml;
        self
    }

    fn annotations(mut self, annotations: Value) -> Self {
        self.json["annotations"] = annotations;
        self
    }

    fn images(mut self, images: Value) -> Self {
        self.json["images"] = images;
        self
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn load_as(&self, which: SplitName, skip_bad: bool) -> Result<(Split, SplitReport), DataError> {
        write(&self.path("d.yaml"), self.yaml);
        write(&self.path("ann/train.json"), self.json.to_string());
        let yaml = DatasetYaml::load_in("d.yaml", self.folder.path()).unwrap();
        let options = IndexOptions {
            skip_bad,
            ..IndexOptions::default()
        };
        load_split(&yaml, which, &options)
    }

    fn train(&self) -> (Split, SplitReport) {
        self.load_as(SplitName::Train, false)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    fn error(&self) -> String {
        let error = self.load_as(SplitName::Train, false).expect_err("an error");
        let folder = self.folder.path().display().to_string();
        error.to_string().replace(&folder, "<set>")
    }
}

fn kinds(report: &SplitReport) -> Vec<FindingKind> {
    report.findings.iter().map(|finding| finding.kind).collect()
}

#[test]
fn ids_with_gaps_are_classes_by_id_and_original_ids_are_kept() {
    let (split, report) = Set::new().train();
    assert_eq!(split.names, ["cat", "dog"]);
    assert_eq!(split.category_ids, [3, 7]);
    assert!(split.image_id_in_file);
    let image = &split.images[0];
    assert_eq!((image.id, image.file_name.as_str()), (5, "a.jpg"));
    assert_eq!(image.labels[0].class, 1);
    assert_eq!(image.labels[0].xyxy, [10.0, 5.0, 30.0, 35.0]);
    let expected = Truth {
        id: 11,
        class: 1,
        bbox: [10.0, 5.0, 20.0, 30.0],
        area: 600.0,
        crowd: false,
    };
    assert_eq!(image.truths, [expected]);
    assert_eq!(kinds(&report), [FindingKind::UnusedCategory]);
    assert_eq!(report.findings[0].value, "cat");
}

#[test]
fn names_select_and_order_categories_and_the_others_are_counted() {
    let set = Set::new()
        .yaml("train: ann/train.json\nnames: [dog]\n")
        .annotations(json!([
            {"id": 1, "image_id": 5, "category_id": 7, "bbox": [1, 1, 5, 5]},
            {"id": 2, "image_id": 5, "category_id": 3, "bbox": [2, 2, 5, 5]},
            {"id": 3, "image_id": 5, "category_id": 3, "bbox": ["bad"]},
        ]));
    let (split, report) = set.train();
    assert_eq!(
        (split.names, split.category_ids),
        (vec!["dog".to_owned()], vec![7])
    );
    assert_eq!(split.images[0].truths.len(), 1);
    assert_eq!(report.other_categories.get("cat"), Some(&2));
    assert!(
        report.lines()[1].contains("2 annotations of 1 categories not in names are left out (cat)")
    );
    let set = set.yaml("train: ann/train.json\nnames: [dog, cats]\n");
    assert_eq!(
        set.error(),
        "d.yaml: `names` has `cats`, which is no category of <set>/ann/train.json; did you mean `cat`?; it has: cat, dog"
    );
    let set = set.yaml("train: ann/train.json\nnc: 3\n");
    assert!(
        set.error()
            .contains("nc is 3, but <set>/ann/train.json has 2 categories (cat, dog)")
    );
}

#[test]
fn validation_has_the_classes_of_training_whatever_its_own_file_lists() {
    let set = Set::new();
    let val = json!({
        "images": [{"id": 1, "file_name": "a.jpg"}],
        "categories": [{"id": 3, "name": "dog"}, {"id": 4, "name": "cow"}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 1, 5, 5]},
            {"id": 2, "image_id": 1, "category_id": 4, "bbox": [1, 1, 5, 5]}
        ]
    });
    write(&set.path("ann/val.json"), val.to_string());
    let (split, report) = set.load_as(SplitName::Val, false).unwrap();
    assert_eq!(split.names, ["cat", "dog"]);
    // cat's id in training, 3, is taken here by dog, and 4 by cow.
    assert_eq!(split.category_ids, [5, 3]);
    assert_eq!(split.images[0].truths[0].class, 1);
    assert_eq!(kinds(&report), [FindingKind::MissingCategory]);
    assert_eq!(report.other_categories.get("cow"), Some(&1));
}

#[test]
fn the_classes_of_a_network_come_before_the_files_own_order() {
    let set = Set::new();
    write(&set.path("d.yaml"), set.yaml);
    write(&set.path("ann/train.json"), set.json.to_string());
    let mut yaml = DatasetYaml::load_in("d.yaml", set.folder.path()).unwrap();
    yaml.class_order = Some(["dog", "cow", "cat"].map(str::to_owned).to_vec());
    let mut options = IndexOptions::default();
    let (split, report) = load_split(&yaml, SplitName::Train, &options).unwrap();
    assert_eq!(split.names, ["dog", "cow", "cat"]);
    assert_eq!(split.category_ids, [7, 1, 3]);
    assert_eq!(split.images[0].labels[0].class, 0);
    assert_eq!(
        report.findings[0].text(),
        format!(
            "{}: `cow`: this class of the network is no category here",
            set.path("ann/train.json").display()
        )
    );
    options.single_cls = true;
    yaml.class_order = Some(vec!["item".to_owned()]);
    let (split, _) = load_split(&yaml, SplitName::Train, &options).unwrap();
    assert_eq!(
        (split.names, split.category_ids),
        (vec!["item".to_owned()], vec![1])
    );
    assert_eq!(split.images[0].labels.len(), 1);
}

#[test]
fn categories_of_the_same_name_stay_apart() {
    let mut set = Set::new();
    set.json["categories"] = json!([{"id": 3, "name": "cat"}, {"id": 7, "name": "cat"}]);
    let (split, report) = set.train();
    assert_eq!(split.names, ["cat", "cat"]);
    assert_eq!(split.images[0].labels[0].class, 1);
    assert_eq!(kinds(&report)[0], FindingKind::SameName);
    write(&set.path("ann/val.json"), set.json.to_string());
    let (split, _) = set.load_as(SplitName::Val, false).unwrap();
    assert_eq!(split.category_ids, [3, 7]);
    assert_eq!(split.images[0].truths[0].class, 1);
    let error = set.yaml("train: ann/train.json\nnames: [cat]\n").error();
    assert!(
        error.contains("`names` selects it, but ids 3 and 7 both have this name"),
        "{error}"
    );
}

#[test]
fn crowd_regions_are_truths_and_no_labels() {
    let set = Set::new().annotations(json!([
        {"id": 1, "image_id": 5, "category_id": 7, "bbox": [1, 1, 5, 5], "iscrowd": 0, "area": 12.5},
        {"id": 2, "image_id": 5, "category_id": 7, "iscrowd": 1, "area": 9,
         "segmentation": {"counts": [55, 5, 40, 10, 4890], "size": [50, 100]}},
    ]));
    let (split, report) = set.train();
    let image = &split.images[0];
    assert_eq!(image.labels.len(), 1);
    assert_eq!(image.truths[0].area, 12.5);
    assert!(image.truths[1].crowd);
    // Runs 55…60 (column 1, rows 5…9) and 100…109 (column 2, rows 0…9).
    assert_eq!(image.truths[1].bbox, [1.0, 0.0, 2.0, 10.0]);
    assert_eq!((report.crowd, report.boxes, report.truths), (1, 1, 2));
}

#[test]
fn boxes_come_from_polygons_where_there_is_no_bbox() {
    let set = Set::new().annotations(json!([
        {"id": 1, "image_id": 5, "category_id": 7, "bbox": null, "segmentation": [[1, 2, 5, 2, 5, 9]]},
        {"id": 2, "image_id": "5", "category_id": 7.0, "segmentation": [], "bbox": [1, 1, 2, 2]},
    ]));
    let (split, report) = set.train();
    assert_eq!(split.images[0].truths[0].bbox, [1.0, 2.0, 4.0, 7.0]);
    assert_eq!(split.images[0].truths[0].area, 28.0);
    assert_eq!(split.images[0].truths[1].id, 2);
    assert_eq!(report.malformed, 0);
}

#[test]
fn malformed_annotations_are_named_by_id_with_value_and_reason() {
    let set = Set::new().annotations(json!([
        {"id": 1, "image_id": 5, "category_id": 7, "bbox": [1, 1, 5, 5]},
        {"id": 2, "image_id": 6, "category_id": 7, "bbox": [1, 1, 5, 5]},
        {"id": 3, "image_id": 5, "category_id": 9, "bbox": [1, 1, 5, 5]},
        {"id": 4, "image_id": 5, "category_id": 7, "bbox": [1, 1, 5]},
        {"id": 5, "image_id": 5, "category_id": 7},
        {"id": 6, "image_id": 5, "category_id": 7, "bbox": [1, 1, -5, 5]},
        {"id": 7, "image_id": 5, "category_id": 7, "bbox": [300, 1, 5, 5]},
        {"id": "x", "image_id": 5, "category_id": 7, "bbox": [1, 1, 5, 5]},
        {"id": 8, "image_id": 5, "category_id": 7, "bbox": [1, 1, 5, 5], "iscrowd": "maybe"},
        {"id": 9, "image_id": 5, "category_id": 7, "bbox": [1, 1, 5, 5], "area": "big"},
    ]));
    let error = set.error();
    let expected = [
        "train: 9 problems in the data",
        "annotation 2: `image_id: 6`: no image has this id",
        "annotation 3: `category_id: 9`: no category has this id",
        "annotation 4: `bbox: [1, 1, 5]`: a box is four numbers",
        "annotation 5: it has neither a bbox nor a segmentation",
        "annotation 6: `bbox: [1.0, 1.0, -5.0, 5.0]`: width and height of a box must not be negative",
        "annotation 7: `bbox: [300.0, 1.0, 5.0, 5.0]`: the box lies outside of its image of 100 x 50",
        "<set>/ann/train.json, annotations, entry 7: `id: \"x\"`",
        "annotation 8: `iscrowd: \"maybe\"`",
        "annotation 9: `area: \"big\"`",
    ];
    for part in expected {
        assert!(error.contains(part), "{part} in {error}");
    }
    let (split, report) = set.load_as(SplitName::Train, true).unwrap();
    assert_eq!(split.images[0].truths.len(), 1);
    assert_eq!(report.boxes_dropped, 9);
}

#[test]
fn annotation_ids_given_twice_or_not_at_all_are_warnings() {
    let set = Set::new().annotations(json!([
        {"id": 4, "image_id": 5, "category_id": 7, "bbox": [1, 1, 5, 5]},
        {"id": 4, "image_id": 5, "category_id": 7, "bbox": [2, 1, 5, 5]},
        {"image_id": 5, "category_id": 3, "bbox": [3, 1, 5, 5]},
    ]));
    let (split, report) = set.train();
    let ids: Vec<u64> = split.images[0]
        .truths
        .iter()
        .map(|truth| truth.id)
        .collect();
    assert_eq!(ids, [4, 4, 5]);
    assert_eq!(
        kinds(&report),
        [
            FindingKind::DuplicateAnnotationId,
            FindingKind::NoAnnotationId
        ]
    );
}

#[test]
fn image_entries_are_checked() {
    let twice = json!({"id": 5, "file_name": "b.jpg"});
    let first = json!({"id": 5, "file_name": "a.jpg"});
    let set = Set::new().images(json!([first, twice]));
    assert_eq!(
        set.error(),
        "<set>/ann/train.json: image id 5 is given twice, for a.jpg and b.jpg: annotations cannot be told apart"
    );
    let (split, report) = Set::new().images(json!([first, first])).train();
    assert_eq!(split.images.len(), 1);
    assert_eq!(kinds(&report)[0], FindingKind::DuplicateImage);
    let set = Set::new().images(json!([first, {"id": 1.5, "file_name": "c.jpg"}, {"id": 2}]));
    let error = set.error();
    assert!(
        error.contains("images, entry 1: `id: 1.5`: the id is not a whole number"),
        "{error}"
    );
    assert!(
        error.contains("images, entry 2: `file_name: nothing`"),
        "{error}"
    );
    let (_, report) = set.load_as(SplitName::Train, true).unwrap();
    assert_eq!(report.images_dropped, 2);
    let error = Set::new()
        .images(json!([first, {"id": 6, "file_name": "gone.jpg"}]))
        .error();
    assert!(
        error.contains("<set>/images/gone.jpg: the image file is not there"),
        "{error}"
    );
}

#[test]
fn an_annotated_size_must_be_that_of_the_upright_image() {
    let with_size = |orientation: u8, width: u32, height: u32| {
        let set = Set::new().images(json!([
            {"id": 5, "file_name": "a.jpg", "width": width, "height": height}
        ]));
        write_jpeg(&set.path("images/a.jpg"), IMAGE.0, IMAGE.1, orientation);
        set
    };
    let set = with_size(6, 50, 100).annotations(json!([
        {"id": 1, "image_id": 5, "category_id": 7, "bbox": [10, 60, 20, 30]},
        {"id": 2, "image_id": 5, "category_id": 3, "bbox": [10, 60, 20, 35]},
    ]));
    let (split, report) = set.train();
    assert_eq!((split.images[0].width, split.images[0].height), (50, 100));
    assert!(report.findings.is_empty(), "{:?}", report.findings);

    let error = with_size(6, 100, 50).error();
    assert!(error.contains("a.jpg: `100 x 50`: annotated as stored, before its EXIF orientation 6, which makes it 50 x 100: the boxes would be wrong"), "{error}");
    let error = with_size(1, 50, 100).error();
    assert!(
        error.contains("the image is 100 x 50 (width and height are exchanged)"),
        "{error}"
    );
    let error = with_size(1, 640, 480).error();
    assert!(
        error.contains("`640 x 480`: the image is 100 x 50: the boxes would be wrong"),
        "{error}"
    );
    let (_, report) = with_size(3, 100, 50).train();
    assert_eq!(kinds(&report)[0], FindingKind::OrientedImages);
    let (_, report) = with_size(1, 0, 0).train();
    assert_eq!(report.malformed, 0);
}

#[test]
fn images_are_searched_in_the_documented_order() {
    let found = |place: &str, file_name: &str, json: &str, yaml: &str| {
        let folder = tempfile::tempdir().unwrap();
        let work = folder.path();
        write_jpeg(&work.join(place), IMAGE.0, IMAGE.1, 1);
        let content = json!({
            "images": [{"id": 5, "file_name": file_name}],
            "categories": [{"id": 7, "name": "dog"}],
            "annotations": [{"id": 1, "image_id": 5, "category_id": 7, "bbox": [1, 1, 5, 5]}]
        });
        write(&work.join(json), content.to_string());
        write(&work.join("d.yaml"), yaml);
        let yaml = DatasetYaml::load_in("d.yaml", work).unwrap();
        let (split, _) = load_split(&yaml, SplitName::Train, &IndexOptions::default())
            .unwrap_or_else(|error| panic!("{place}: {error}"));
        assert_eq!(split.images[0].path, work.join(place), "{place}");
        assert_eq!(split.images[0].file_name, file_name);
    };
    let yaml = "path: set\ntrain: ann/instances_train2017.json\n";
    let json = "set/ann/instances_train2017.json";
    for place in [
        "set/ann/a.jpg",
        "set/ann/images/a.jpg",
        "set/images/a.jpg",
        "set/a.jpg",
        "set/train2017/a.jpg",
        "set/images/train2017/a.jpg",
        "set/images/instances_train2017/a.jpg",
    ] {
        found(place, "a.jpg", json, yaml);
    }
    found("set/images/sub/a.jpg", "sub\\a.jpg", json, yaml);
    found("set/images/a.jpg", "../upload/7/a.jpg", json, yaml);
    found(
        "pics/x/a.jpg",
        "x/a.jpg",
        "ann.json",
        "train: {images: pics, annotations: ann.json}\n",
    );
    let error = Set::new()
        .images(
            json!([{"id": 1, "file_name": "z.jpg", "coco_url": "http://images.example.org/z.jpg"}]),
        )
        .error();
    assert!(error.contains("<set>/ann/train.json: none of its images is there; looked for z.jpg in <set>/ann, <set>/ann/images, <set>/images, <set>, "), "{error}");
    assert!(
        error.contains(
            "its address is http://images.example.org/z.jpg; put the images into <set>/ann/images"
        ),
        "{error}"
    );
}

#[test]
fn files_that_are_no_coco_detection_file_say_why() {
    let message = |text: &str| {
        let set = Set::new();
        write(&set.path("d.yaml"), set.yaml);
        write(&set.path("ann/train.json"), text);
        let yaml = DatasetYaml::load_in("d.yaml", set.folder.path()).unwrap();
        load_split(&yaml, SplitName::Train, &IndexOptions::default())
            .unwrap_err()
            .to_string()
            .replace(&set.folder.path().display().to_string(), "<set>")
    };
    assert!(message("[]").contains("it is a list, as results of detection are"));
    assert!(message("{}").contains("it has none of `images`, `annotations`, `categories`"));
    assert!(message(r#"{"annotations": []}"#).contains("it has no `images`"));
    assert!(message(r#"{"images": []}"#).contains("it has no `categories`"));
    assert!(
        message(r#"{"images": [], "categories": [{"id": 1, "name": "a"}]}"#)
            .contains("has no images")
    );
    let twice = r#"{"images": [], "categories": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}"#;
    assert!(message(twice).contains("category \"b\" (id 1): the category `a` has the same id"));
    let broken = message("{\"images\": [\n  {\"id\": 1,}\n]}");
    assert!(
        broken.starts_with("<set>/ann/train.json:2:12: not valid JSON: "),
        "{broken}"
    );
    let nan = message(r#"{"images": [], "annotations": [{"area": NaN}]}"#);
    assert!(nan.contains("NaN and Infinity are not JSON"), "{nan}");
    let panoptic = r#"{"images": [], "annotations": [{"image_id": 1, "segments_info": []}]}"#;
    assert!(message(panoptic).contains("panoptic"));
}

fn load_shared(
    yaml: &str,
    which: SplitName,
    options: &IndexOptions,
) -> Result<(Split, SplitReport), DataError> {
    let yaml = DatasetYaml::parse(yaml, "t.yaml", None, Path::new("")).unwrap();
    load_split(&yaml, which, options)
}

#[test]
fn bccd_is_read_with_its_zero_area_boxes_as_warnings_shared() {
    let Some(root) = shared("data/bccd") else {
        return;
    };
    let yaml = format!(
        "path: {}\ntrain: annotations/train.json\nval: annotations/val.json\ntest: annotations/test.json\n",
        root.display()
    );
    for (which, images, truths, zero) in [
        (SplitName::Train, 205, 2805, 1),
        (SplitName::Val, 87, 1138, 1),
        (SplitName::Test, 72, 945, 0),
    ] {
        let (split, report) = load_shared(&yaml, which, &IndexOptions::default()).unwrap();
        assert_eq!(split.names, ["RBC", "WBC", "Platelets"]);
        assert_eq!(split.category_ids, [1, 2, 3]);
        assert_eq!(
            (report.images, report.truths, report.malformed),
            (images, truths, 0)
        );
        let zero_area: Vec<_> = report
            .findings
            .iter()
            .filter(|finding| finding.kind == FindingKind::ZeroArea)
            .collect();
        assert_eq!(zero_area.len(), zero, "{which}");
        let duplicates = kinds(&report)
            .iter()
            .filter(|kind| **kind == FindingKind::Duplicate)
            .count();
        assert_eq!(report.boxes + zero + duplicates, truths);
        for line in report.lines() {
            println!("{line}");
        }
        if which == SplitName::Train {
            assert_eq!(zero_area[0].annotation_id, Some(2288));
            let image = split.images.iter().find(|image| image.id == 343).unwrap();
            let truth = image.truths.iter().find(|truth| truth.id == 2288).unwrap();
            assert_eq!(truth.bbox, [181.0, 329.0, 0.0, 0.0]);
        }
    }
}

#[test]
fn coco66_keeps_ids_and_crowds_and_masks_give_the_annotated_boxes_shared() {
    let Some(root) = shared("data/coco66") else {
        return;
    };
    let yaml = format!("path: {}\ntrain: annotations/all.json\n", root.display());
    let (split, report) = load_shared(&yaml, SplitName::Train, &IndexOptions::default()).unwrap();
    for line in report.lines() {
        println!("{line}");
    }
    assert_eq!((report.images, report.truths, report.crowd), (66, 560, 8));
    assert_eq!(split.names[..3], ["person", "bicycle", "car"]);
    assert!(split.category_ids.windows(2).all(|pair| pair[0] < pair[1]));
    assert!(*split.category_ids.last().unwrap() > split.names.len() as u64);
    let labels: usize = split.images.iter().map(|image| image.labels.len()).sum();
    assert_eq!(labels, report.boxes);

    // Against the official boxes: polygons to their rounding, masks of crowds exactly or within a pixel.
    let file = read(&root.join("annotations/all.json")).unwrap();
    for annotation in file.annotations.unwrap() {
        let (BoxField::Box(bbox), Extent::Box(extent)) =
            (&annotation.bbox, &annotation.segmentation)
        else {
            panic!("{annotation:?}");
        };
        for (a, b) in bbox.iter().zip(extent) {
            assert!((a - b).abs() <= 1.0, "{annotation:?}");
        }
    }
}

/// Every annotation file of the nasty folder is read or refused with a reason, without a panic; images are
/// not there for the labelling site's files, so these are read as JSON only.
#[test]
fn exported_coco_files_are_read_or_refused_shared() {
    let Some(root) = shared("data/nasty/coco") else {
        return;
    };
    let load = |train: &str| {
        let yaml = format!("path: {}\ntrain: {train}\n", root.display());
        load_shared(&yaml, SplitName::Train, &IndexOptions::default())
    };
    for (train, boxes, crowd) in [
        ("datumaro/coco/annotations/instances_train.json", 1, 0),
        ("datumaro/coco/annotations/instances_val.json", 1, 1),
        (
            "datumaro/coco_instances/annotations/instances_train.json",
            1,
            0,
        ),
        ("datumaro/coco_roboflow/train/_annotations.coco.json", 1, 0),
        ("datumaro/coco_roboflow/val/_annotations.coco.json", 1, 1),
        ("datumaro/mmdet_coco/annotations/instances_train.json", 1, 0),
        (
            "datumaro/coco/annotations/person_keypoints_train.json",
            1,
            0,
        ),
    ] {
        let (split, report) = load(train).unwrap_or_else(|error| panic!("{train}: {error}"));
        assert_eq!(
            (report.boxes, report.crowd),
            (boxes, crowd),
            "{train}: {report:?}"
        );
        assert!(split.names.iter().any(|name| name == "a"), "{train}");
    }
    for (train, reason) in [
        (
            "datumaro/coco/annotations/captions_train.json",
            "it has no `categories`",
        ),
        (
            "datumaro/coco/annotations/image_info_train.json",
            "it has no `categories`",
        ),
        (
            "datumaro/coco/annotations/labels_train.json",
            "neither a bbox nor a segmentation",
        ),
        ("datumaro/coco/annotations/panoptic_train.json", "panoptic"),
        (
            "coco_wrong_format_sample.json",
            "none of its images is there; looked for fake1.jpg",
        ),
        (
            "roboflow/instances_val2017.json",
            "none of its images is there",
        ),
    ] {
        let error = load(train).expect_err(train).to_string();
        assert!(error.contains(reason), "{train}: {error}");
    }
    let file = read(&root.join("roboflow/instances_test2017.json")).unwrap();
    let categories = check_categories(Path::new("x"), &file.categories.unwrap()).unwrap();
    assert_eq!(
        categories[0],
        (0, "apple-boat-bicycle-person-bird".to_owned())
    );
    let annotations = file.annotations.unwrap();
    assert_eq!(annotations.len(), 189);
    assert!(
        annotations
            .iter()
            .all(|annotation| read_box(annotation).is_ok())
    );
}
