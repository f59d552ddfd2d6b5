use proptest::prelude::*;

use super::*;
use crate::config::dataset::{DatasetYaml, SplitName};
use crate::data::report::FindingKind;
use crate::data::test_support::{shared, write, write_jpeg};
use crate::data::{DataError, IndexOptions, Split, SplitReport, load_split};

fn object(name: &str, corners: &str, more: &str) -> String {
    let [xmin, ymin, xmax, ymax]: [&str; 4] = corners
        .split_whitespace()
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
    format!(
        "<object>\n<name>{name}</name>{more}<bndbox><xmax>{xmax}</xmax><xmin>{xmin}</xmin>\
         <ymin>{ymin}</ymin><ymax>{ymax}</ymax></bndbox></object>\n"
    )
}

fn xml(objects: &[String]) -> String {
    format!(
        "<annotation>\n<filename>a.jpg</filename><size><width>100</width><height>50</height><depth>3</depth></size>\n{}</annotation>",
        objects.concat()
    )
}

fn reason(text: &str) -> String {
    parse(text.as_bytes()).expect_err(text)
}

#[test]
fn pixels_count_from_one_and_include_the_last() {
    let text = xml(&[
        object("cat", "1 2 3 4", ""),
        object("dog", "10.5 1 20 50", "<difficult> 1 </difficult>"),
    ]);
    let annotation = parse(text.as_bytes()).unwrap();
    assert_eq!(annotation.size, Some((100, 50)));
    assert_eq!(annotation.bad, []);
    let [cat, dog] = &annotation.objects[..] else {
        panic!("{annotation:?}");
    };
    assert_eq!((cat.line, dog.line), (3, 5));
    assert!(!cat.difficult && dog.difficult);
    assert_eq!(cat.to_pixels(false), [0.0, 1.0, 3.0, 3.0]);
    assert_eq!(cat.to_pixels(true), [1.0, 2.0, 2.0, 2.0]);
    assert_eq!(dog.to_pixels(false), [9.5, 0.0, 10.5, 50.0]);
    assert!(!cat.is_from_zero());
    let zero = Object {
        corners: [0.0, 5.0, 7.0, 9.0],
        ..cat.clone()
    };
    assert!(zero.is_from_zero());
}

#[test]
fn parts_do_not_count_and_polygons_give_their_extent() {
    let part = "<part><name>head</name><bndbox><xmin>5</xmin><ymin>6</ymin><xmax>7</xmax><ymax>8</ymax></bndbox></part>";
    let polygon = "<object><name>x</name><polygon><x1>5</x1><y1>9</y1><x2>8</x2><y2>2</y2></polygon></object>";
    let points = "<object><name>y</name><polygon><pt><x>5</x><y>9</y></pt><pt><x>8</x><y>2</y></pt></polygon></object>";
    let text = xml(&[
        object("cat", "1 2 3 4", part),
        polygon.to_owned(),
        points.to_owned(),
    ]);
    let annotation = parse(text.as_bytes()).unwrap();
    let names: Vec<&str> = annotation.objects.iter().map(|o| o.name.as_str()).collect();
    assert_eq!(names, ["cat", "x", "y"]);
    assert_eq!(annotation.objects[1].corners, [5.0, 2.0, 8.0, 9.0]);
    assert_eq!(annotation.objects[2].corners, [5.0, 2.0, 8.0, 9.0]);
}

#[test]
fn malformed_objects_say_what_is_wrong_and_the_others_are_kept() {
    let text = xml(&[
        object("cat", "1 2 3 4", ""),
        object("cat", "9 2 3 4", ""),
        object("cat", "1 2 nan 4", ""),
        object("cat", "1 2 x 4", ""),
        object("", "1 2 3 4", ""),
        "<object><name>a</name></object>\n".to_owned(),
        "<object><name>a</name><bndbox><xmin>1</xmin></bndbox></object>\n".to_owned(),
        "<object><name>a</name><robndbox><cx>1</cx></robndbox></object>\n".to_owned(),
    ]);
    let annotation = parse(text.as_bytes()).unwrap();
    assert_eq!(annotation.objects.len(), 1);
    let bad: Vec<(usize, &str, &str)> = annotation
        .bad
        .iter()
        .map(|bad| (bad.line, bad.value.as_str(), bad.reason.as_str()))
        .collect();
    assert_eq!(
        bad,
        [
            (
                5,
                "cat 9 2 3 4",
                "xmax and ymax must not be below xmin and ymin"
            ),
            (7, "cat, xmax: nan", "a corner is a finite number"),
            (9, "cat, xmax: x", "a corner is a finite number"),
            (11, "", "the object has no name, so no class"),
            (13, "a", "it has no bndbox"),
            (14, "a", "its bndbox has no ymin"),
            (
                15,
                "a",
                "it has a rotated box (robndbox); only upright boxes (bndbox) are trained on"
            ),
        ]
    );
}

#[test]
fn entity_bombs_and_other_xml_are_refused_in_one_line() {
    let bomb = "<!DOCTYPE lolz [<!ENTITY a \"lol\"><!ENTITY b \"&a;&a;&a;&a;\">]><annotation>&b;</annotation>";
    assert!(reason(bomb).starts_with("it has a document type"));
    let file =
        "<!DOCTYPE a [<!ENTITY x SYSTEM \"file:///etc/passwd\">]><annotation>&x;</annotation>";
    assert!(reason(file).starts_with("it has a document type"));
    assert!(reason("<annotation>&x;</annotation>").starts_with("not valid XML: "));
    assert!(reason("<annotation><object></annotation>").starts_with("not valid XML: "));
    assert!(reason("").starts_with("not valid XML: "));
    assert!(reason("<annotations><image/></annotations>").starts_with("its root is <annotations>"));
    let deep = format!("<annotation>{}", "<a>".repeat(100_000));
    assert!(!reason(&deep).contains('\n'));
}

#[test]
fn encodings_of_other_tools_are_read() {
    let text = "<?xml version=\"1.0\" encoding=\"ISO-8859-1\"?>\n<annotation><filename>Größe.jpg</filename></annotation>";
    let latin: Vec<u8> = text.chars().map(|c| c as u8).collect();
    let utf16: Vec<u8> = "\u{feff}<annotation><filename>Größe.jpg</filename></annotation>"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    let mark = "\u{feff}<annotation><filename>Größe.jpg</filename></annotation>".as_bytes();
    for bytes in [&latin[..], &utf16, mark] {
        let annotation = parse(bytes).unwrap();
        assert_eq!(annotation.filename.as_deref(), Some("Größe.jpg"));
    }
    assert!(
        parse(b"<annotation>\xff</annotation>")
            .unwrap_err()
            .contains("UTF-8")
    );
}

proptest! {
    #[test]
    fn any_text_is_read_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn a_file_with_noise_in_it_is_read_or_an_error(
        at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>(),
    ) {
        let text = xml(&[object("cat", "1 2 3 4", ""), object("dog", "1 2 3 4", "<difficult>1</difficult>")]);
        let mut bytes = text.into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        bytes.truncate(cut.index(bytes.len()) + 1);
        if let Ok(annotation) = parse(&bytes) {
            prop_assert!(annotation.objects.len() + annotation.bad.len() <= 2);
            for object in annotation.objects {
                prop_assert!(object.corners.iter().all(|v| v.is_finite()));
            }
        }
    }
}

/// A VOC folder of three images of 100 x 50.
struct Set {
    folder: tempfile::TempDir,
}

impl Set {
    fn new() -> Self {
        let set = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        for name in ["a", "b", "c"] {
            write_jpeg(&set.path(&format!("JPEGImages/{name}.jpg")), 100, 50, 1);
        }
        set.annotate("a", &[object("dog", "1 1 20 30", "")]);
        set.annotate(
            "b",
            &[
                object("cat", "11 5 30 34", ""),
                object("cat", "1 1 100 50", "<difficult>1</difficult>"),
            ],
        );
        write(&set.path("ImageSets/Main/train.txt"), "# list\n\na\nb  1\n");
        write(&set.path("ImageSets/Main/val.txt"), "c.jpg\n");
        set
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn annotate(&self, name: &str, objects: &[String]) {
        write(&self.path(&format!("Annotations/{name}.xml")), xml(objects));
    }

    fn load(
        &self,
        text: &str,
        which: SplitName,
        skip_bad: bool,
    ) -> Result<(Split, SplitReport), DataError> {
        write(&self.path("d.yaml"), text);
        let yaml = DatasetYaml::load_in("d.yaml", self.folder.path()).unwrap();
        let options = IndexOptions {
            skip_bad,
            ..IndexOptions::default()
        };
        load_split(&yaml, which, &options)
    }

    fn error(&self, text: &str) -> String {
        let error = self
            .load(text, SplitName::Train, false)
            .expect_err("an error");
        let folder = self.folder.path().display().to_string();
        error.to_string().replace(&folder, "<set>")
    }
}

const LISTS: &str = "train: ImageSets/Main/train.txt\nval: ImageSets/Main/val.txt\n";

fn kinds(report: &SplitReport) -> Vec<FindingKind> {
    report.findings.iter().map(|finding| finding.kind).collect()
}

#[test]
fn lists_name_images_classes_are_the_sorted_names_and_difficult_is_trained_on_but_neutral() {
    let set = Set::new();
    let (split, report) = set.load(LISTS, SplitName::Train, false).unwrap();
    assert_eq!(report.format, "Pascal VOC");
    assert_eq!(split.names, ["cat", "dog"]);
    assert_eq!(split.category_ids, [0, 1]);
    assert!(!split.image_id_in_file);
    let names: Vec<_> = split
        .images
        .iter()
        .map(|i| (i.id, i.file_name.as_str()))
        .collect();
    assert_eq!(names, [(1, "JPEGImages/a.jpg"), (2, "JPEGImages/b.jpg")]);
    assert_eq!(split.images[0].labels[0].xyxy, [0.0, 0.0, 20.0, 30.0]);
    let b = &split.images[1];
    assert_eq!(b.labels.len(), 2);
    assert_eq!(b.labels[0].xyxy, [10.0, 4.0, 30.0, 34.0]);
    let neutral: Vec<bool> = b.truths.iter().map(|truth| truth.crowd).collect();
    assert_eq!(neutral, [false, true]);
    assert_eq!((report.boxes, report.truths, report.difficult), (3, 3, 1));
    assert!(
        report.lines()[0]
            .ends_with("; 1 difficult objects are trained on and neutral in evaluation"),
        "{:?}",
        report.lines()
    );
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    // An image without an annotation file is one without objects, which is told.
    let (split, report) = set.load(LISTS, SplitName::Val, false).unwrap();
    assert_eq!(split.names, ["cat", "dog"]);
    assert_eq!(report.backgrounds, 1);
    assert_eq!(
        kinds(&report),
        [FindingKind::NoAnnotationFile, FindingKind::NoLabels]
    );
}

#[test]
fn names_select_classes_and_others_are_counted() {
    let set = Set::new();
    let text = format!("{LISTS}names: [dog]\n");
    let (split, report) = set.load(&text, SplitName::Train, false).unwrap();
    assert_eq!(split.names, ["dog"]);
    assert_eq!(report.other_categories.get("cat"), Some(&2));
    let error = set.error(&format!("{LISTS}nc: 3\n"));
    assert!(
        error.contains("nc is 3") && error.contains("2 categories (cat, dog)"),
        "{error}"
    );
}

#[test]
fn coordinates_from_zero_are_recognised_for_the_whole_split() {
    let set = Set::new();
    set.annotate("a", &[object("dog", "0 5 20 30", "")]);
    let (split, report) = set.load(LISTS, SplitName::Train, false).unwrap();
    assert_eq!(split.images[0].truths[0].bbox, [0.0, 5.0, 20.0, 25.0]);
    assert_eq!(split.images[1].truths[0].bbox, [11.0, 5.0, 19.0, 29.0]);
    assert_eq!(kinds(&report), [FindingKind::ZeroBased]);
    assert!(report.findings[0].text().contains("dog 0 5 20 30"));
}

#[test]
fn a_wrong_size_a_missing_image_and_a_broken_file_stop_the_run_or_drop_the_image() {
    let set = Set::new();
    let wrong = xml(&[object("cat", "1 1 5 5", "")]).replace("<width>100<", "<width>640<");
    write(&set.path("Annotations/a.xml"), wrong);
    write(&set.path("Annotations/c.xml"), "<annotation><object>");
    write(&set.path("ImageSets/Main/train.txt"), "a\nb\nc\ngone\n");
    let error = set.error(LISTS);
    for part in [
        "train: 3 problems in the data",
        "JPEGImages/a.jpg: `640 x 50`: the image is 100 x 50: the boxes would be wrong",
        "Annotations/c.xml: not valid XML: ",
        "<set>/JPEGImages/gone.jpg: the image file is not there (listed in <set>/ImageSets/Main/train.txt:4)",
    ] {
        assert!(error.contains(part), "{part} in {error}");
    }
    let (split, report) = set.load(LISTS, SplitName::Train, true).unwrap();
    assert_eq!((split.images.len(), report.images_dropped), (1, 3));
}

#[test]
fn bad_objects_are_named_by_file_and_line() {
    let set = Set::new();
    set.annotate(
        "a",
        &[
            object("dog", "1 1 20 30", ""),
            object("dog", "7 1 2 30", ""),
            object("dog", "300 1 320 30", ""),
            object("dog", "90 1 120 30", ""),
        ],
    );
    let error = set.error(LISTS);
    assert!(
        error.contains("Annotations/a.xml:5: `dog 7 1 2 30`: xmax and ymax"),
        "{error}"
    );
    assert!(
        error.contains("Annotations/a.xml:7: `dog 300 1 320 30`: the box lies outside"),
        "{error}"
    );
    let (_, report) = set.load(LISTS, SplitName::Train, true).unwrap();
    assert_eq!(report.boxes_dropped, 2);
    assert!(kinds(&report).contains(&FindingKind::Overhang));
}

#[test]
fn folders_of_images_with_xml_files_need_no_lists() {
    let set = Set::new();
    // In the tree beside the images.
    let (split, _) = set
        .load("train: JPEGImages\n", SplitName::Train, false)
        .unwrap();
    assert_eq!((split.images.len(), split.names.len()), (3, 2));
    // An image whose annotation is called otherwise, and an annotation without an image.
    std::fs::rename(set.path("JPEGImages/a.jpg"), set.path("JPEGImages/z.jpg")).unwrap();
    let text = xml(&[object("dog", "1 1 5 5", "")]).replace("a.jpg", "z.jpg");
    write(&set.path("Annotations/a.xml"), text);
    write(&set.path("Annotations/lost.xml"), xml(&[]));
    let error = set.error("train: JPEGImages\n");
    assert!(error.contains("train: 1 problem in the data"), "{error}");
    assert!(
        error.contains("<set>/Annotations/lost.xml: no image of this name in <set>/JPEGImages"),
        "{error}"
    );
    let (split, report) = set
        .load("train: JPEGImages\n", SplitName::Train, true)
        .unwrap();
    let z = split
        .images
        .iter()
        .find(|i| i.file_name == "JPEGImages/z.jpg")
        .unwrap();
    assert_eq!((z.labels.len(), report.images_dropped), (1, 1));
    // Beside the images.
    for name in ["a", "b"] {
        write_jpeg(&set.path(&format!("flat/{name}.jpg")), 100, 50, 1);
        write(
            &set.path(&format!("flat/{name}.xml")),
            xml(&[object("cat", "1 1 5 5", "")]),
        );
    }
    let (split, _) = set.load("train: flat\n", SplitName::Train, false).unwrap();
    assert_eq!(
        split.images.iter().map(|i| i.labels.len()).sum::<usize>(),
        2
    );
    let error = set.error("train: [JPEGImages, ImageSets/Main/train.txt, labels.txt]\n");
    assert!(error.contains("labels.txt"), "{error}");
}

/// The three sets of the nasty folder: 1 has `part`s, an object without `difficult` and a test image without
/// annotation; 2 has no images; 3 has a comment and a blank line in its list.
#[test]
fn nasty_voc_sets_are_read_as_they_should_be_shared() {
    let Some(root) = shared("data/nasty/voc/voc_dataset") else {
        return;
    };
    let load = |set: &str, which| {
        let text = format!(
            "path: {}\ntrain: ImageSets/Main/{}.txt\ntest: ImageSets/Main/test.txt\n",
            root.join(set).display(),
            if set == "voc_dataset2" {
                "trainval"
            } else {
                "train"
            }
        );
        let yaml = DatasetYaml::parse(&text, "t.yaml", None, Path::new("")).unwrap();
        load_split(&yaml, which, &IndexOptions::default())
    };
    let (split, report) = load("voc_dataset1", SplitName::Train).unwrap();
    assert_eq!(split.names, ["cat", "person"]);
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    let boxes: Vec<_> = split.images[0].truths.iter().map(|t| t.bbox).collect();
    assert_eq!(boxes, [[0.0, 1.0, 3.0, 3.0], [3.0, 4.0, 3.0, 3.0]]);
    let (split, report) = load("voc_dataset1", SplitName::Test).unwrap();
    assert_eq!(split.images[0].file_name, "JPEGImages/2007_000002.jpg");
    assert_eq!(
        kinds(&report),
        [FindingKind::NoAnnotationFile, FindingKind::NoLabels]
    );
    let error = load("voc_dataset2", SplitName::Train)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("none of its images is there; looked for JPEGImages/@.jpg"),
        "{error}"
    );
    let (split, _) = load("voc_dataset3", SplitName::Train).unwrap();
    assert_eq!(
        (split.images.len(), &split.names[..]),
        (1, &["cat".to_owned()][..])
    );
}
