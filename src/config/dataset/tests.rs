use std::fs;

use super::*;

fn parse(text: &str) -> DatasetYaml {
    DatasetYaml::parse(text, "d.yaml", None, Path::new(""))
        .unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn message(text: &str) -> String {
    match DatasetYaml::parse(text, "d.yaml", None, Path::new("")) {
        Ok(yaml) => panic!("{text} was read as {yaml:?}"),
        Err(error) => {
            let message = error.to_string();
            assert!(!message.contains('\n'), "{message}");
            message
        }
    }
}

fn paths(source: &Option<SplitSource>) -> Vec<&str> {
    match source {
        Some(SplitSource::Paths(paths)) => paths.iter().map(String::as_str).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_split_has_every_documented_shape() {
    let yaml = parse(
        "train: [images/a, b.txt]\nval: {images: img, annotations: val.json}\ntest:\nnames: [x]\n",
    );
    assert_eq!(paths(&yaml.train), ["images/a", "b.txt"]);
    assert_eq!(
        yaml.val,
        Some(SplitSource::Pair {
            images: "img".to_owned(),
            annotations: "val.json".to_owned()
        })
    );
    assert_eq!(yaml.test, None);
    assert_eq!(yaml.splits_given(), ["train", "val"]);
    assert!(yaml.warnings.is_empty());
    assert_eq!(paths(&parse("validation: v\n").val), ["v"]);
    assert!(message("val: a\nvalidation: b\n").contains("the same key"));
    assert!(message("names: [a]\n").contains("names no split"));
    assert!(message("train: {images: a}\n").contains("needs both"));
    assert!(message("train: {images: a, labels: b}\n").contains("unknown key `labels`"));
    assert!(message("train: a\n b: [\n").starts_with("d.yaml: "));
}

#[test]
fn names_are_a_list_or_a_map_without_gaps() {
    let names = |text: &str| parse(&format!("train: a\n{text}")).class_names().unwrap();
    assert_eq!(names("names: [cat, 7, no, 007]"), ["cat", "7", "no", "007"]);
    assert_eq!(names("names: {1: dog, 0: cat}"), ["cat", "dog"]);
    assert_eq!(
        names("names:\n  0: traffic light\n  1: Größe"),
        ["traffic light", "Größe"]
    );
    assert_eq!(names("nc: 2"), ["class_0", "class_1"]);
    assert_eq!(names("nc: 1\nnames: [a]"), ["a"]);
    assert_eq!(parse("train: a").class_names(), None);
    let bad = |text: &str| message(&format!("train: a\n{text}"));
    assert!(bad("names: {1: dog, 2: cat}").contains("0 is missing"));
    assert!(bad("names: {a: dog}").contains("`a` in names is not a class number"));
    assert!(bad("names: []").contains("at least one name"));
    assert!(bad("names: [a, b, a]").contains("classes 0 and 2 have the same name"));
    assert!(bad("names: ['']").contains("must not be empty"));
    assert!(bad("nc: 3\nnames: [a, b]").contains("nc is 3, but `names` holds 2"));
    assert!(bad("nc: 0").contains("at least one class"));
    assert!(bad("nc: many").starts_with("d.yaml: "));
}

#[test]
fn unknown_keys_are_named_with_the_likely_one() {
    let yaml = parse("train: a\nvalid: b\nroboflow: {workspace: x}\nchannels: 3\nzzz: 1\n");
    assert_eq!(
        yaml.warnings,
        [
            "d.yaml: unknown key `valid` is ignored; did you mean `val`?",
            "d.yaml: unknown key `zzz` is ignored"
        ]
    );
}

#[test]
fn code_to_download_is_refused_and_an_address_is_named() {
    let url = parse("path: d\ntrain: a\ndownload: https://example.org/d.zip\n");
    assert_eq!(
        url.missing_hint(),
        "get https://example.org/d.zip and unpack it into datasets/d"
    );
    for code in [
        "download: bash get.sh",
        "download: |\n  import os\n  os.system('rm -r /')\n",
        "download: https://a.org/x && rm -r /",
    ] {
        let yaml = parse(&format!("train: a\n{code}"));
        assert!(
            matches!(yaml.download, Some(Download::Code { .. })),
            "{code}"
        );
        assert!(yaml.warnings[0].contains("which is never executed"));
        assert!(yaml.missing_hint().contains("never executed"));
    }
    assert_eq!(parse("train: a\ndownload:\n").download, None);
    let mixed = parse("train: a\ndownload: [https://a.org/d.zip, gdown 123]\n");
    assert!(matches!(mixed.download, Some(Download::Code { .. })));
    assert!(message("train: a\ngenerate: circles\n").contains("the only generator is `shapes`"));
}

#[test]
fn path_is_relative_to_the_file_then_to_datasets() {
    let folder = tempfile::tempdir().unwrap();
    let work = folder.path();
    let make = |path: &str| fs::create_dir_all(work.join(path)).unwrap();
    make("conf");
    fs::write(work.join("conf/d.yaml"), "path: d\ntrain: images\n").unwrap();
    let load = || DatasetYaml::load_in("conf/d.yaml", work).unwrap();

    let missing = load();
    assert_eq!(missing.root, work.join("datasets/d"));
    assert_eq!(
        missing.root_tried,
        [work.join("conf/d"), work.join("datasets/d")]
    );
    make("datasets/d");
    assert_eq!(load().root, work.join("datasets/d"));
    assert!(load().root_tried.is_empty());
    make("conf/d");
    assert_eq!(load().root, work.join("conf/d"));

    fs::write(work.join("conf/d.yaml"), "train: images\n").unwrap();
    assert_eq!(load().root, work.join("conf"));
    let absolute = work.join("elsewhere");
    let text = format!("path: {}\ntrain: images\n", absolute.display());
    fs::write(work.join("conf/d.yaml"), text).unwrap();
    assert_eq!(load().root_tried, std::slice::from_ref(&absolute));
    make("elsewhere");
    assert_eq!(load().root, absolute);
}

#[test]
fn an_entry_one_level_off_is_found_where_the_labelling_site_means_it() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("set");
    fs::create_dir_all(root.join("train/images")).unwrap();
    fs::write(
        root.join("data.yaml"),
        "train: ../train/images\nnames: [a]\n",
    )
    .unwrap();
    let yaml = DatasetYaml::load_in("set/data.yaml", folder.path()).unwrap();
    assert_eq!(
        yaml.resolve("../train/images"),
        Ok(root.join("train/images"))
    );
    assert_eq!(
        yaml.resolve("../valid"),
        Err(vec![root.join("../valid"), root.join("valid")])
    );
}

#[test]
fn data_is_a_file_then_a_built_in_name() {
    let folder = tempfile::tempdir().unwrap();
    let load = |data: &str| DatasetYaml::load_in(data, folder.path());
    for name in ["shapes", "shapes.yaml"] {
        let yaml = load(name).unwrap();
        assert_eq!(yaml.generate, Some(Generator::Shapes));
        assert_eq!(yaml.label, "shapes.yaml (built in)");
        assert_eq!(yaml.root, folder.path().join("datasets/shapes"));
        assert!(yaml.warnings.is_empty(), "{:?}", yaml.warnings);
        assert!(yaml.train.is_some() && yaml.val.is_some());
    }
    fs::write(
        folder.path().join("shapes.yaml"),
        "train: a\nnames: [own]\n",
    )
    .unwrap();
    assert_eq!(load("shapes.yaml").unwrap().names.unwrap(), ["own"]);

    let error = |data: &str| load(data).unwrap_err().to_string();
    assert_eq!(
        error("shaps.yaml"),
        "no data set `shaps.yaml`: there is no such file, and no built-in one of that name; \
         did you mean `shapes.yaml`?; built in: shapes.yaml, coco8.yaml, coco128.yaml, coco.yaml"
    );
    assert!(!error("quite/other.yaml").contains("did you mean"));
    fs::write(folder.path().join("a.json"), "{}").unwrap();
    assert!(error("a.json").contains("`a.json` is a JSON file; --data takes a dataset file"));
    assert!(error("").contains("is a folder"));
}

fn archive(url: &str, gives: &[&str]) -> Source {
    Source::Archive {
        url: url.to_owned(),
        gives: gives.iter().map(|path| (*path).to_owned()).collect(),
    }
}

#[test]
fn download_is_an_address_a_list_or_what_each_split_needs() {
    let sources = |text: &str, splits: &[SplitName]| -> Vec<Source> {
        let yaml = parse(&format!("train: a\n{text}"));
        assert!(yaml.warnings.is_empty(), "{:?}", yaml.warnings);
        let download = yaml.download.expect("given");
        let sources = download.sources(splits);
        sources.into_iter().map(|(s, _)| s.clone()).collect()
    };
    let a = "https://a.org/a.zip";
    let b = "http://b.org/x/b.tar.gz?key=1";
    let train: &[SplitName] = &[SplitName::Train];
    assert_eq!(sources(&format!("download: {a}"), train), [archive(a, &[])]);
    assert_eq!(
        sources(&format!("download: [{a}, '{b}', {a}, coco_url]"), train),
        [archive(a, &[]), archive(b, &[]), Source::ImageUrls]
    );
    assert_eq!(
        sources(&format!("download: {{url: {a}, gives: images}}"), train),
        [archive(a, &["images"])]
    );
    let by_split =
        format!("download:\n  train: [{a}, {{url: '{b}', gives: [x, y]}}]\n  val: {a}\n");
    assert_eq!(
        sources(&by_split, train),
        [archive(a, &[]), archive(b, &["x", "y"])]
    );
    assert_eq!(sources(&by_split, &[SplitName::Val]), [archive(a, &[])]);
    assert_eq!(sources(&by_split, &SplitName::ALL).len(), 2);
    assert_eq!(sources(&by_split, &[SplitName::Test]), []);
    let yaml = parse(&format!("train: a\n{by_split}"));
    let download = yaml.download.unwrap();
    let needed_by: Vec<Vec<SplitName>> = download
        .sources(&SplitName::ALL)
        .into_iter()
        .map(|(_, splits)| splits)
        .collect();
    let both = vec![SplitName::Train, SplitName::Val];
    assert_eq!(needed_by, [both, vec![SplitName::Train]]);

    let bad = |text: &str| message(&format!("train: a\ndownload: {text}\n"));
    assert!(bad("embedded:coco9").contains("the program holds annotations of coco8 and coco128"));
    assert!(bad("{url: ftp://a.org/x}").contains("begins with http:// or https://"));
    assert!(bad("{trian: https://a.org/x}").contains("`trian`"));
    assert!(bad("{gives: x}").contains("url and gives"));
    assert!(bad("{url: https://a.org/x, train: z}").contains("url and gives"));
    assert!(bad("[[a]]").contains("an entry of download is an address"));
}

#[test]
fn the_built_in_coco_sets_are_read_without_a_word_and_bring_their_annotations() {
    let folder = tempfile::tempdir().unwrap();
    for (name, files) in [("coco8", 3), ("coco128", 2), ("coco", 0)] {
        let yaml = DatasetYaml::load_in(&format!("{name}.yaml"), folder.path()).unwrap();
        assert!(yaml.warnings.is_empty(), "{:?}", yaml.warnings);
        assert_eq!(yaml.root, folder.path().join("datasets").join(name));
        let download = yaml.download.expect("something to get");
        let sources = download.sources(&[SplitName::Train, SplitName::Val]);
        let embedded: Vec<&EmbeddedFile> = sources
            .iter()
            .filter_map(|(source, _)| match source {
                Source::Embedded(files) => Some(files.iter()),
                _ => None,
            })
            .flatten()
            .collect();
        assert_eq!(embedded.len(), files, "{name}");
        for (path, text) in embedded {
            assert!(
                text.contains("CC BY 4.0"),
                "{path} says where it comes from"
            );
        }
    }
}
