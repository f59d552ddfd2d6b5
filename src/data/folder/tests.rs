//! Data sets that are given as a folder: generated ones of every layout, and those of the nasty folders.

use std::rc::Rc;

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::data::test_support::{shared, write, write_jpeg};
use crate::data::{IndexOptions, Split, SplitReport, load_split};

/// A folder that is filled file by file.
#[derive(Clone)]
struct Folder(Rc<TempDir>);

impl Folder {
    fn new() -> Self {
        Self(Rc::new(tempfile::tempdir().unwrap()))
    }

    fn image(self, path: &str) -> Self {
        write_jpeg(&self.0.path().join(path), 100, 50, 1);
        self
    }

    fn file(self, path: &str, text: impl AsRef<[u8]>) -> Self {
        write(&self.0.path().join(path), text);
        self
    }

    /// An image with a YOLO label of `class`.
    fn yolo(self, image: &str, label: &str, class: usize) -> Self {
        self.image(image)
            .file(label, format!("{class} 0.5 0.5 0.5 0.5\n"))
    }

    fn voc(self, image: &str, xml: &str, name: &str) -> Self {
        self.image(image).file(
            xml,
            format!(
                "<annotation><object><name>{name}</name><bndbox><xmin>1</xmin><ymin>2</ymin>\
                 <xmax>30</xmax><ymax>40</ymax></bndbox></object></annotation>"
            ),
        )
    }

    /// A COCO file of these images, a dog each.
    fn coco(self, path: &str, images: &[&str]) -> Self {
        let list: Vec<_> = images
            .iter()
            .enumerate()
            .map(|(id, name)| json!({"id": id, "file_name": name}))
            .collect();
        let annotations: Vec<_> = (0..images.len())
            .map(|id| json!({"id": id, "image_id": id, "category_id": 7, "bbox": [1, 2, 30, 40]}))
            .collect();
        let json = json!({
            "images": list, "annotations": annotations, "categories": [{"id": 7, "name": "dog"}]
        });
        self.file(path, json.to_string())
    }

    fn open(&self) -> Result<DatasetYaml, DataError> {
        open(&self.0.path().display().to_string())
    }

    fn opened(&self) -> Opened {
        let yaml = self.open().unwrap_or_else(|error| panic!("{error}"));
        Opened(yaml, self.clone())
    }

    fn error(&self) -> String {
        let error = self.open().expect_err("an error").to_string();
        assert!(!error.contains('\n'), "{error}");
        error.replace(&self.0.path().display().to_string(), "<dir>")
    }
}

/// The folder stays as long as what was read of it.
struct Opened(
    DatasetYaml,
    #[expect(dead_code, reason = "kept, not read")] Folder,
);

impl Opened {
    fn note(&self) -> String {
        assert_eq!(self.0.notes.len(), 1, "{:?}", self.0.notes);
        self.0.notes[0].replace(&self.0.root.display().to_string(), "<dir>")
    }

    fn load(&self, which: SplitName) -> (Split, SplitReport) {
        load_split(&self.0, which, &IndexOptions::default())
            .unwrap_or_else(|error| panic!("{which}: {error}"))
    }

    /// Names of the images of a split.
    fn images(&self, which: SplitName) -> Vec<String> {
        let (split, _) = self.load(which);
        split.images.into_iter().map(|i| i.file_name).collect()
    }
}

const HELD_OUT: &str = "; no validation part, so 10 % of the training images, at least one, by a hash of their names, are held out as that";

#[test]
fn yolo_folders_of_every_layout_are_found() {
    // images/SPLIT + labels/SPLIT
    let set = Folder::new()
        .yolo("images/train/a.jpg", "labels/train/a.txt", 1)
        .yolo("images/val/b.jpg", "labels/val/b.txt", 0)
        .yolo("images/test/c.jpg", "labels/test/c.txt", 0)
        .file("classes.txt", "cat\r\ndog\r\n")
        .opened();
    assert_eq!(
        set.note(),
        "<dir>: YOLO txt, train images/train; val images/val; test images/test; 2 class names from <dir>/classes.txt"
    );
    let (split, report) = set.load(SplitName::Train);
    assert_eq!(split.names, ["cat", "dog"]);
    assert_eq!((report.boxes, report.format.as_str()), (1, "YOLO txt"));
    assert_eq!(set.images(SplitName::Test), ["images/test/c.jpg"]);

    // SPLIT/images + SPLIT/labels, names beside the labels
    let set = Folder::new()
        .yolo("train/images/a.jpg", "train/labels/a.txt", 1)
        .yolo("valid/images/b.jpg", "valid/labels/b.txt", 0)
        .file("train/labels/classes.txt", "cat\ndog\n")
        .file("valid/labels/classes.txt", "cat\ndog\n")
        .opened();
    assert_eq!(
        set.note(),
        "<dir>: YOLO txt, train train/images; val valid/images; 2 class names from <dir>/train/labels/classes.txt"
    );

    // SPLIT with the labels beside the images, and a dataset file of no use beside them
    let set = Folder::new()
        .yolo("train/a.jpg", "train/a.txt", 0)
        .yolo("val/b.jpg", "val/b.txt", 0)
        .file("obj.names", "cat\n")
        .file("hyp.yaml", "lr0: 0.1\n")
        .opened();
    assert_eq!(set.images(SplitName::Val), ["val/b.jpg"]);

    // One folder of images: no validation part
    for (image, label) in [
        ("images/deep/a.jpg", "labels/deep/a.txt"),
        ("a.jpg", "a.txt"),
        ("Images/a.jpg", "Annotations/a.txt"),
    ] {
        let mut set = Folder::new().file("x.names", "cat\n");
        for name in ["a", "b", "c"] {
            let named = |path: &str| path.replace("a.", &format!("{name}."));
            set = set.yolo(&named(image), &named(label), 0);
        }
        let set = set.opened();
        assert!(set.note().ends_with(HELD_OUT), "{}", set.note());
        let (train, val) = (set.images(SplitName::Train), set.images(SplitName::Val));
        assert_eq!((train.len(), val.len()), (2, 1), "{image}");
        assert!(!train.contains(&val[0]));
        let (_, report) = set.load(SplitName::Train);
        assert_eq!((report.images_listed, report.boxes), (2, 2));
    }
}

#[test]
fn without_names_classes_go_up_to_the_highest_number() {
    let set = Folder::new()
        .yolo("images/a.jpg", "labels/a.txt", 4)
        .yolo("images/b.jpg", "labels/b.txt", 1)
        .opened();
    assert_eq!(set.0.nc, Some(5));
    assert!(set.0.warnings[0].contains("the 5 classes up to the highest number"));
    let (split, _) = set.load(SplitName::Train);
    assert_eq!(split.names[4], "class_4");
    let error = Folder::new()
        .yolo("a.jpg", "a.txt", 0)
        .file("classes.txt", "cat\n")
        .file("obj.names", "dog\n")
        .error();
    assert_eq!(
        error,
        "<dir>/classes.txt and <dir>/obj.names give different class names: remove the wrong one"
    );
    let error = Folder::new()
        .yolo("a.jpg", "a.txt", 0)
        .file("classes.txt", "cat\n\ndog\n")
        .error();
    assert!(error.contains("line 2 has no class name"), "{error}");
}

#[test]
fn darknet_lists_are_found_from_the_folder_they_were_written_for() {
    let set = Folder::new()
        .yolo("obj_train_data/a.jpg", "obj_train_data/a.txt", 1)
        .yolo("obj_train_data/b.jpg", "obj_train_data/b.txt", 0)
        .file("train.txt", "data/obj_train_data/a.jpg\r\n")
        .file("valid.txt", "data/obj_train_data/b.jpg\n")
        .file("obj.names", "cat\ndog\n")
        .file(
            "obj.data",
            "classes = 2\ntrain = data/train.txt\nvalid = data/valid.txt\nnames = data/obj.names\nbackup = backup/\n",
        )
        .opened();
    assert_eq!(
        set.note(),
        "<dir>: Darknet's lists of YOLO txt, train train.txt; val valid.txt; 2 class names from <dir>/obj.names"
    );
    assert_eq!(set.images(SplitName::Train), ["obj_train_data/a.jpg"]);
    assert_eq!(set.images(SplitName::Val), ["obj_train_data/b.jpg"]);
}

#[test]
fn coco_folders_of_every_layout_are_found() {
    let files = |train: &str, val: &str, a: &str, b: &str| {
        Folder::new()
            .coco(train, &["a.jpg"])
            .coco(val, &["b.jpg"])
            .image(a)
            .image(b)
            .opened()
    };
    for (train, val, a, b) in [
        (
            "annotations/instances_train2017.json",
            "annotations/instances_val2017.json",
            "train2017/a.jpg",
            "val2017/b.jpg",
        ),
        (
            "train/_annotations.coco.json",
            "valid/_annotations.coco.json",
            "train/a.jpg",
            "valid/b.jpg",
        ),
        ("train.json", "val.json", "images/a.jpg", "images/b.jpg"),
        (
            "annotations/my-set.train.json",
            "annotations/my-set.val.json",
            "images/a.jpg",
            "images/b.jpg",
        ),
    ] {
        let set = files(train, val, a, b);
        assert_eq!(
            set.note(),
            format!("<dir>: COCO JSON, train {train}; val {val}")
        );
        let (split, _) = set.load(SplitName::Train);
        assert_eq!(
            (split.names, split.images.len()),
            (vec!["dog".to_owned()], 1)
        );
        assert_eq!(set.images(SplitName::Val), ["b.jpg"]);
    }
    // One file, and others that are none of a detector's.
    let whole = Folder::new()
        .coco("labels.json", &["a.jpg", "b.jpg", "c.jpg"])
        .file("package.json", "{\"name\": \"x\"}")
        .file("results.json", "[]")
        .image("data/a.jpg")
        .image("data/b.jpg")
        .image("data/c.jpg");
    let set = whole.opened();
    assert_eq!(
        set.note(),
        format!("<dir>: COCO JSON, train labels.json{HELD_OUT}")
    );
    let (train, val) = (set.images(SplitName::Train), set.images(SplitName::Val));
    assert_eq!((train.len(), val.len()), (2, 1));
    assert!(!train.contains(&val[0]));
    // The file itself is as good as its folder.
    let file = whole.0.path().join("labels.json").display().to_string();
    let given = Opened(open(&file).unwrap(), whole.clone());
    assert_eq!(given.images(SplitName::Val), val);
    let error = open(&whole.0.path().join("results.json").display().to_string()).unwrap_err();
    assert!(error.to_string().contains("it is a list"), "{error}");
}

#[test]
fn voc_folders_of_every_layout_are_found() {
    let devkit = |folder: Folder, year: &str| {
        let at = |path: &str| format!("{year}{path}");
        folder
            .voc(&at("JPEGImages/a.jpg"), &at("Annotations/a.xml"), "dog")
            .voc(&at("JPEGImages/b.jpg"), &at("Annotations/b.xml"), "cat")
            .file(&at("ImageSets/Main/train.txt"), "a\n")
            .file(&at("ImageSets/Main/val.txt"), "b\n")
            .file(&at("ImageSets/Main/cat_train.txt"), "a -1\n")
    };
    let set = devkit(Folder::new(), "").opened();
    assert_eq!(
        set.note(),
        "<dir>: Pascal VOC, train ImageSets/Main/train.txt; val ImageSets/Main/val.txt"
    );
    assert_eq!(set.images(SplitName::Val), ["JPEGImages/b.jpg"]);
    // Two years in their development kit, one folder down.
    let set = devkit(
        devkit(Folder::new(), "VOCdevkit/VOC2007/"),
        "VOCdevkit/VOC2012/",
    )
    .opened();
    assert_eq!(set.images(SplitName::Train).len(), 2);
    assert!(
        set.0.notes[0]
            .contains("VOC2007/ImageSets/Main/train.txt, VOC2012/ImageSets/Main/train.txt")
    );
    // Only trainval.
    let set = Folder::new()
        .voc("JPEGImages/a.jpg", "Annotations/a.xml", "dog")
        .voc("JPEGImages/b.jpg", "Annotations/b.xml", "cat")
        .file("ImageSets/Main/trainval.txt", "a\nb\n")
        .opened();
    assert!(set.note().ends_with(HELD_OUT));
    let (split, _) = set.load(SplitName::Val);
    assert_eq!((split.names.len(), split.images.len()), (2, 1));
    // No lists; and XML beside the images.
    for (image, xml) in [
        ("images/a.jpg", "annotations/a.xml"),
        ("JPEGImages/a.jpg", "Annotations/a.xml"),
        ("train/a.jpg", "train/a.xml"),
        ("a.jpg", "a.xml"),
    ] {
        let other = |path: &str| path.replace("a.", "b.");
        let set = Folder::new()
            .voc(image, xml, "dog")
            .voc(&other(image), &other(xml), "dog")
            .opened();
        assert!(
            set.note().starts_with("<dir>: Pascal VOC, train "),
            "{}",
            set.note()
        );
        let (split, report) = set.load(SplitName::Train);
        assert_eq!((split.names.len(), report.boxes), (1, 1), "{image}");
    }
}

#[test]
fn a_dataset_file_in_the_folder_wins_and_a_stale_path_in_it_does_not_matter() {
    let set = Folder::new()
        .yolo("train/images/a.jpg", "train/labels/a.txt", 0)
        .yolo("train/images/b.jpg", "train/labels/b.txt", 0)
        .file(
            "data.yaml",
            "path: /content/elsewhere\ntrain: ../train/images\nnames: [cat]\n",
        );
    let opened = set.opened();
    assert_eq!(
        opened.note(),
        format!("<dir>: described by <dir>/data.yaml{HELD_OUT}")
    );
    assert!(opened.0.warnings[0].contains("its `path` is not here (/content/elsewhere)"));
    assert_eq!(opened.images(SplitName::Val).len(), 1);
    let error = set.file("data.yaml", "train: [\n").error();
    assert!(error.starts_with("<dir>/data.yaml: "), "{error}");
    let error = Folder::new()
        .file("a.yaml", "train: x\nnames: [a]\n")
        .file("b.yaml", "train: z\nnames: [a]\n")
        .error();
    assert!(
        error.contains("which data set is meant? found <dir>/a.yaml; <dir>/b.yaml"),
        "{error}"
    );
}

#[test]
fn what_could_be_meant_in_two_ways_is_an_error_that_lists_both() {
    let error = Folder::new()
        .yolo("images/a.jpg", "labels/a.txt", 0)
        .voc("images/b.jpg", "annotations/b.xml", "dog")
        .coco("annotations/all.json", &["a.jpg"])
        .error();
    assert_eq!(
        error,
        "<dir>: which data set is meant? found COCO JSON in <dir> (train annotations/all.json); \
         YOLO txt in <dir> (train images); Pascal VOC in <dir> (train images); \
         give the one that you mean as --data, or write a dataset file"
    );
    let error = Folder::new()
        .coco("annotations/instances_train2014.json", &["a.jpg"])
        .coco("annotations/instances_train2017.json", &["a.jpg"])
        .error();
    assert!(
        error.contains("instances_train2014.json; <dir>/annotations/instances_train2017.json"),
        "{error}"
    );
    let error = Folder::new()
        .yolo("one/images/a.jpg", "one/labels/a.txt", 0)
        .yolo("two/images/a.jpg", "two/labels/a.txt", 0)
        .error();
    assert!(
        error.contains("YOLO txt in <dir>/one (train images); YOLO txt in <dir>/two"),
        "{error}"
    );
    let error = Folder::new()
        .yolo("val/a.jpg", "val/a.txt", 0)
        .yolo("valid/a.jpg", "valid/a.txt", 0)
        .error();
    assert!(error.contains("found <dir>/val; <dir>/valid"), "{error}");
    // One folder down is fine where it is the only one.
    let set = Folder::new()
        .yolo("export/images/a.jpg", "export/labels/a.txt", 0)
        .yolo("export/images/b.jpg", "export/labels/b.txt", 0)
        .file("readme.md", "x")
        .open()
        .unwrap();
    assert!(set.notes[0].contains("YOLO txt in "), "{:?}", set.notes);
}

#[test]
fn a_folder_without_labels_says_what_it_holds() {
    let error = Folder::new()
        .image("a.jpg")
        .image("b.png")
        .file("notes.md", "x")
        .error();
    assert!(
        error.starts_with("<dir>: no data set is recognised in this folder, which holds 2 images, notes.md; looked for a dataset YAML"),
        "{error}"
    );
    assert!(Folder::new().error().contains("which holds nothing"));
}

#[test]
fn a_single_image_is_trained_on_and_validated_with_which_is_said() {
    let set = Folder::new()
        .yolo("images/a.jpg", "labels/a.txt", 0)
        .file("classes.txt", "cat\n")
        .opened();
    assert_eq!(set.images(SplitName::Val), set.images(SplitName::Train));
    let (_, report) = set.load(SplitName::Val);
    assert!(
        report.lines()[1]
            .contains("there is one image, so it is both trained on and validated with")
    );
}

#[test]
fn adding_images_leaves_the_held_out_ones_where_they_were() {
    let fill = |count: usize| {
        let mut set = Folder::new().file("classes.txt", "cat\n");
        for index in 0..count {
            let (image, label) = (
                format!("images/{index:04}.jpg"),
                format!("labels/{index:04}.txt"),
            );
            set = set.yolo(&image, &label, 0);
        }
        set.opened().images(SplitName::Val)
    };
    let (few, many) = (fill(60), fill(120));
    assert!(few.len() >= 2 && many.len() > few.len(), "{few:?} {many:?}");
    assert!(few.iter().all(|name| many.contains(name)));
}

/// What a folder of the nasty sets is found to be.
#[test]
fn nasty_folders_are_recognised_shared() {
    let Some(root) = shared("data/nasty") else {
        return;
    };
    let open = |folder: &str| open(&root.join(folder).display().to_string());
    // Folder, format, and images, boxes and classes of its training split.
    for (folder, format, images, boxes, classes) in [
        ("coco/datumaro/coco", "COCO JSON", 1, 1, 3),
        ("coco/datumaro/coco_instances", "COCO JSON", 1, 1, 3),
        ("coco/datumaro/coco_roboflow", "COCO JSON", 1, 1, 3),
        ("coco/datumaro/mmdet_coco", "COCO JSON", 1, 1, 3),
        ("yolo/yolo_dataset/labels", "YOLO txt", 1, 2, 10),
        ("yolo/yolo_dataset/annotations", "YOLO txt", 1, 2, 10),
        (
            "yolo/yolo_dataset/strict",
            "Darknet's lists of YOLO txt",
            1,
            2,
            10,
        ),
        ("voc/voc_dataset/voc_dataset1", "Pascal VOC", 1, 2, 2),
        ("voc/voc_dataset/voc_dataset3", "Pascal VOC", 1, 1, 1),
    ] {
        let yaml = open(folder).unwrap_or_else(|error| panic!("{folder}: {error}"));
        assert!(
            yaml.notes[0].contains(&format!(": {format}, ")),
            "{:?}",
            yaml.notes
        );
        println!("{}", yaml.notes[0]);
        let load = |which| load_split(&yaml, which, &IndexOptions::default());
        let (split, report) =
            load(SplitName::Train).unwrap_or_else(|error| panic!("{folder}: {error}"));
        let found = (report.images, report.boxes, split.names.len());
        assert_eq!(found, (images, boxes, classes), "{folder}");
        load(SplitName::Val).unwrap_or_else(|error| panic!("{folder}: {error}"));
    }
    for (folder, words) in [
        ("coco/datumaro", "which data set is meant?"),
        ("yolo/yolo_dataset", "which data set is meant?"),
        ("images", "no data set is recognised in this folder"),
    ] {
        let error = open(folder).expect_err(folder).to_string();
        assert!(error.contains(words), "{folder}: {error}");
    }
    // No images are there for these; the annotations are recognised all the same.
    for folder in ["voc/voc_dataset/voc_dataset2", "coco/roboflow", "coco"] {
        let yaml = open(folder).unwrap_or_else(|error| panic!("{folder}: {error}"));
        let error = load_split(&yaml, SplitName::Val, &IndexOptions::default()).unwrap_err();
        assert!(
            error.to_string().contains("none of its images is there"),
            "{folder}: {error}"
        );
    }
}
