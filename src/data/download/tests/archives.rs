//! Archives: downloaded, unpacked, gone on with.

use std::io::Write;

use super::*;

const TEXT: &str = "path: d\ntrain: images/train\nval: images/val\nnames: [a]\n";

type Maker = fn(&[(String, Vec<u8>)]) -> Vec<u8>;

/// Files of a set, below a folder at the archive's top or not.
fn contents(top: &str) -> Vec<(String, Vec<u8>)> {
    let mut contents = Vec::new();
    for number in 0..6_u8 {
        let split = if number < 4 { "train" } else { "val" };
        contents.push((
            format!("{top}images/{split}/{number}.png"),
            png(number, 20, 20),
        ));
        contents.push((
            format!("{top}labels/{split}/{number}.txt"),
            b"0 .5 .5 .1 .1\n".repeat(50 * usize::from(number)),
        ));
    }
    contents
}

pub(super) fn zip_of(contents: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut zip = ::zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = ::zip::write::SimpleFileOptions::default();
    for (name, bytes) in contents {
        zip.start_file(name.as_str(), options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

pub(super) fn tar_of(contents: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut tar = ::tar::Builder::new(Vec::new());
    for (name, bytes) in contents {
        let mut header = ::tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, bytes.as_slice())
            .unwrap();
    }
    tar.into_inner().unwrap()
}

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gz.write_all(bytes).unwrap();
    gz.finish().unwrap()
}

fn expected() -> BTreeMap<String, Vec<u8>> {
    contents("").into_iter().collect()
}

#[test]
fn zip_and_tar_are_told_by_their_contents_and_unpacked_with_or_without_a_top_folder() {
    let server = Server::start();
    let makers: [Maker; 3] = [zip_of, tar_of, |contents| gzip(&tar_of(contents))];
    let long = "a folder whose name is longer than the hundred letters that the first kind of tar archive had room for/";
    for (number, make) in makers.iter().enumerate() {
        for top in ["", "my set/", long] {
            let work = tempfile::tempdir().unwrap();
            let path = format!("/{number}/get");
            server.serve(&path, Served::new(make(&contents(top))));
            let asked = server.requests().len();
            let yaml = dataset(
                work.path(),
                &format!("{TEXT}download: {}?v=1\n", server.url(&path)),
            );
            server.serve(&format!("{path}?v=1"), Served::new(make(&contents(top))));
            fetch_all_of(&yaml, &client(&server)).unwrap();
            assert_eq!(files(&yaml.root), expected(), "{number} {top}");
            fetch(&yaml, &SplitName::ALL, &client(&server), &mut never).unwrap();
            assert_eq!(server.requests().len(), asked + 1);
        }
    }
}

#[test]
fn an_archive_is_gone_on_with_after_a_cut_and_after_an_interrupted_unpacking() {
    let work = tempfile::tempdir().unwrap();
    let server = Server::start();
    let archive = zip_of(&contents(""));
    let cut = Fault::CutAfter(1000);
    server.serve("/d.zip", Served::new(archive.clone()).faults([cut]));
    let yaml = dataset(
        work.path(),
        &format!("{TEXT}download: {}\n", server.url("/d.zip")),
    );
    let once = Client::new(retry(1), None, None);
    let error = fetch_all_of(&yaml, &once).unwrap_err().to_string();
    assert!(
        error.contains("the connection was closed after 1000 of"),
        "{error}"
    );
    assert!(error.contains("put d.zip into"), "{error}");

    let result = fetch(&yaml, &SplitName::ALL, &once, &mut |step| match step {
        Step::Progress {
            unit: Unit::Files,
            done: 5,
            ..
        } => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert!(
        matches!(result, Err(DownloadError::Interrupted)),
        "{result:?}"
    );
    assert_eq!(
        server.ranges_of("/d.zip"),
        [None, Some("bytes=1000-".to_owned())]
    );
    let names = names(&yaml.root);
    assert!(names.contains(&"d.zip.part".to_owned()), "{names:?}");
    assert_eq!(names.len(), 5 + 2);

    // without a server: everything that is needed is there
    drop(server);
    fetch_all_of(&yaml, &once).unwrap();
    assert_eq!(files(&yaml.root), expected());
}

#[test]
fn an_archive_that_the_user_put_there_is_used_and_left() {
    let work = tempfile::tempdir().unwrap();
    let yaml = dataset(
        work.path(),
        &format!("{TEXT}download: http://127.0.0.1:9/x/d.tar.gz\n"),
    );
    fs::create_dir_all(&yaml.root).unwrap();
    let archive = gzip(&tar_of(&contents("d/")));
    fs::write(yaml.root.join("d.tar.gz"), &archive).unwrap();
    let client = Client::new(retry(1), None, None);
    let interrupted = fetch(&yaml, &SplitName::ALL, &client, &mut |step| match step {
        Step::Progress {
            unit: Unit::Files,
            done: 7,
            ..
        } => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert!(matches!(interrupted, Err(DownloadError::Interrupted)));
    assert!(yaml.root.join("d.tar.gz.unpacking").exists());
    fetch_all_of(&yaml, &client).unwrap();
    let mut expected = expected();
    expected.insert("d.tar.gz".to_owned(), archive);
    assert_eq!(files(&yaml.root), expected);
    fetch(&yaml, &SplitName::ALL, &client, &mut never).unwrap();
}

#[test]
fn only_what_the_splits_need_and_have_not_is_downloaded() {
    let work = tempfile::tempdir().unwrap();
    let server = Server::start();
    let part = |name: &str| {
        let mut part = contents("");
        part.retain(|(path, _)| path.contains(name));
        Served::new(zip_of(&part))
    };
    server.serve("/train.zip", part("/train/"));
    server.serve("/val.zip", part("/val/"));
    let url = |path: &str| server.url(path);
    let yaml = dataset(
        work.path(),
        &format!(
            "{TEXT}download:\n  train: {{url: '{}', gives: [images/train, elsewhere]}}\n  val: ['{}']\n",
            url("/train.zip"),
            url("/val.zip")
        ),
    );
    fetch(&yaml, &[SplitName::Val], &client(&server), &mut quietly()).unwrap();
    assert_eq!(names(&yaml.root).len(), 4);
    assert_eq!(server.requests().len(), 1);
    fs::create_dir(yaml.root.join("elsewhere")).unwrap();
    fetch(&yaml, &SplitName::ALL, &client(&server), &mut never).unwrap();
    fs::remove_dir(yaml.root.join("elsewhere")).unwrap();
    fetch_all_of(&yaml, &client(&server)).unwrap();
    assert_eq!(files(&yaml.root), expected());
    assert_eq!(server.requests().len(), 2);
}

#[test]
fn an_archive_that_two_splits_need_is_downloaded_once() {
    let work = tempfile::tempdir().unwrap();
    let server = Server::start();
    server.serve("/all.zip", Served::new(zip_of(&contents(""))));
    let url = server.url("/all.zip");
    let yaml = dataset(
        work.path(),
        &format!(
            "{TEXT}download:\n  train: {{url: '{url}', gives: images/train}}\n  val: {{url: '{url}', gives: images/val}}\n"
        ),
    );
    fetch_all_of(&yaml, &client(&server)).unwrap();
    assert_eq!(files(&yaml.root), expected());
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn files_that_are_there_are_kept_and_said() {
    let work = tempfile::tempdir().unwrap();
    let server = Server::start();
    for (number, archive) in [zip_of(&contents("")), tar_of(&contents(""))]
        .into_iter()
        .enumerate()
    {
        server.serve("/d", Served::new(archive));
        let yaml = dataset(
            work.path(),
            &format!(
                "path: d{number}\n{}download: {}\n",
                &TEXT[8..],
                server.url("/d")
            ),
        );
        let mut expected = expected();
        let own = expected.get_mut("labels/train/1.txt").unwrap();
        own[0] = b'7';
        let own = own.clone();
        expected.insert("labels/val/4.txt".to_owned(), b"own".to_vec());
        fs::create_dir_all(yaml.root.join("labels/train")).unwrap();
        fs::create_dir_all(yaml.root.join("labels/val")).unwrap();
        fs::write(yaml.root.join("labels/train/1.txt"), own).unwrap();
        fs::write(yaml.root.join("labels/val/4.txt"), "own").unwrap();
        let mut warnings = Vec::new();
        fetch(&yaml, &SplitName::ALL, &client(&server), &mut |step| {
            if let Step::Warning(line) = step {
                warnings.push(line.to_owned());
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(files(&yaml.root), expected);
        assert_eq!(warnings.len(), 1);
        assert!(
            warnings[0].starts_with("2 of the files of http"),
            "{warnings:?}"
        );
        assert!(warnings[0].contains("labels/train/1.txt"), "{warnings:?}");
    }
}

#[test]
fn an_archive_without_what_the_splits_name_is_said_and_not_downloaded_again() {
    let work = tempfile::tempdir().unwrap();
    let server = Server::start();
    server.serve("/d.zip", Served::new(zip_of(&contents(""))));
    let text = TEXT.replace("images/val", "valid/images");
    let yaml = dataset(
        work.path(),
        &format!("{text}download: {}\n", server.url("/d.zip")),
    );
    for _ in 0..2 {
        let error = fetch_all_of(&yaml, &client(&server))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("`val` names `valid/images`")
                && error.contains("it holds images, labels."),
            "{error}"
        );
        assert_eq!(names(&yaml.root), ["d.zip.part", "d.zip.part.json"]);
    }
    assert_eq!(server.requests().len(), 1);
    let corrected = dataset(
        work.path(),
        &format!("{TEXT}download: {}\n", server.url("/d.zip")),
    );
    fetch_all_of(&corrected, &client(&server)).unwrap();
    assert_eq!(files(&yaml.root), expected());
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn names_of_archives_come_from_their_addresses() {
    for (url, name) in [
        ("https://a.org/x/data.zip?token=1#top", "data.zip"),
        ("https://a.org/", "archive"),
        ("https://a.org", "archive"),
        ("https://a.org/..", "archive"),
        ("https://a.org/%2e%2e%2fpasswd", "_2e_2e_2fpasswd"),
        ("https://a.org/x/.hidden", "hidden"),
    ] {
        assert_eq!(file_name(url), name, "{url}");
    }
    let work = tempfile::tempdir().unwrap();
    let text = "download:\n  train: http://a.org/1/d.zip\n  val: http://a.org/2/d.zip\n";
    let yaml = dataset(work.path(), &format!("{TEXT}{text}"));
    let names = |splits: &[SplitName]| -> Vec<String> {
        let plan = Plan::of(&yaml, splits).unwrap();
        plan.archives
            .iter()
            .map(|a| file_name_of(&a.path))
            .collect()
    };
    assert_eq!(names(&SplitName::ALL), ["d.zip", "2-d.zip"]);
    assert_eq!(names(&[SplitName::Val]), ["2-d.zip"], "always the same");
}
