//! Images by their addresses: begun, cut, resumed, retried, checked.

use super::*;

const WIDTH: u32 = 40;
const HEIGHT: u32 = 30;

/// A data set of `count` images that the server has, and where they go to.
fn set(work: &Path, server: &Server, count: u8) -> DatasetYaml {
    let root = work.join("datasets/d");
    fs::create_dir_all(&root).unwrap();
    let mut images = Vec::new();
    for number in 0..count {
        let path = format!("/train2017/{number}.png");
        server.serve(&path, Served::new(png(number, WIDTH, HEIGHT)));
        images.push(serde_json::json!({
            "id": number, "file_name": format!("{number}.png"), "width": WIDTH, "height": HEIGHT,
            "coco_url": format!("http://images.cocodataset.org{path}"),
        }));
    }
    let list = serde_json::json!({"images": images, "annotations": [], "categories": []});
    fs::write(root.join("a.json"), list.to_string()).unwrap();
    dataset(
        work,
        "path: d\ntrain: {images: images, annotations: a.json}\ndownload: coco_url\n",
    )
}

/// The one image of a set of one.
fn only() -> Vec<u8> {
    png(0, WIDTH, HEIGHT)
}

fn serve_only(server: &Server, faults: impl IntoIterator<Item = Fault>) {
    server.serve("/train2017/0.png", Served::new(only()).faults(faults));
}

#[test]
fn missing_images_are_downloaded_once_and_a_second_run_asks_nobody() {
    let work = tempfile::tempdir().unwrap();
    let server = Server::start();
    let yaml = set(work.path(), &server, 20);
    fs::create_dir(yaml.root.join("images")).unwrap();
    fs::write(yaml.root.join("images/3.png"), "the user's").unwrap();
    let mut told = Vec::new();
    fetch(&yaml, &SplitName::ALL, &client(&server), &mut |step| {
        if let Step::Progress { done, total, .. } = step {
            told.push((done, total));
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(told.last(), Some(&(19, Some(19))));
    assert!(told.is_sorted());
    let found = files(&yaml.root);
    assert_eq!(found.len(), 21, "{:?}", found.keys());
    for number in 0..20 {
        let expected = match number {
            3 => b"the user's".to_vec(),
            _ => png(number, WIDTH, HEIGHT),
        };
        assert_eq!(found[&format!("images/{number}.png")], expected);
    }
    assert_eq!(server.requests().len(), 19);
    fetch(&yaml, &SplitName::ALL, &client(&server), &mut never).unwrap();
    assert_eq!(server.requests().len(), 19);
}

#[test]
fn a_cut_connection_is_gone_on_with_where_it_was_cut() {
    let work = tempfile::tempdir().unwrap();
    let server = Server::start();
    let yaml = set(work.path(), &server, 1);
    // More cuts than tries: each brings the file further.
    let cuts = [100, 50, 0, 60, 70, 80].map(Fault::CutAfter);
    serve_only(&server, cuts);
    fetch_all_of(&yaml, &client(&server)).unwrap();
    assert_eq!(fs::read(yaml.root.join("images/0.png")).unwrap(), only());
    let starts: Vec<Option<String>> = server.ranges_of("/train2017/0.png");
    let starts: Vec<Option<&str>> = starts.iter().map(Option::as_deref).collect();
    assert_eq!(
        starts,
        [
            None,
            Some("bytes=100-"),
            Some("bytes=150-"),
            Some("bytes=150-"),
            Some("bytes=210-"),
            Some("bytes=280-"),
            Some("bytes=360-")
        ]
    );
    for request in &server.requests()[1..] {
        assert_eq!(request.if_range.as_deref(), Some("\"v1\""));
    }
    assert_eq!(names(&yaml.root), ["a.json", "images/0.png"]);
}

#[test]
fn a_later_process_goes_on_with_the_part_unless_the_file_has_changed() {
    let work = tempfile::tempdir().unwrap();
    let server = Server::start();
    let yaml = set(work.path(), &server, 1);
    let once = Client::new(retry(1), Some(server.url("")), None);
    serve_only(&server, [Fault::CutAfter(100), Fault::CutAfter(50)]);
    fetch_all_of(&yaml, &once).unwrap_err();
    assert_eq!(
        names(&yaml.root),
        ["a.json", "images/0.png.part", "images/0.png.part.json"]
    );
    fetch_all_of(&yaml, &once).unwrap_err();
    let part = fs::read(yaml.root.join("images/0.png.part")).unwrap();
    assert_eq!(part, only()[..150]);

    let newer = png(77, WIDTH, HEIGHT);
    let mut changed = Served::new(newer.clone());
    changed.etag = Some("\"v2\"".to_owned());
    server.serve("/train2017/0.png", changed);
    fetch_all_of(&yaml, &once).unwrap();
    assert_eq!(fs::read(yaml.root.join("images/0.png")).unwrap(), newer);
    let ranges = server.ranges_of("/train2017/0.png");
    assert_eq!(ranges[2].as_deref(), Some("bytes=150-"), "asked, refused");
    assert_eq!(names(&yaml.root), ["a.json", "images/0.png"]);
}

#[test]
fn a_torn_or_foreign_description_of_a_part_means_a_new_beginning() {
    let work = tempfile::tempdir().unwrap();
    let server = Server::start();
    let yaml = set(work.path(), &server, 1);
    fs::create_dir(yaml.root.join("images")).unwrap();
    let part = yaml.root.join("images/0.png.part");
    let description = yaml.root.join("images/0.png.part.json");
    let foreign = r#"{"url":"http://a.org/0.png","etag":"\"v1\"","length":999}"#;
    for text in ["{\"url\"", foreign] {
        fs::write(&part, "something else").unwrap();
        fs::write(&description, text).unwrap();
        fetch_all_of(&yaml, &client(&server)).unwrap();
        assert_eq!(fs::read(yaml.root.join("images/0.png")).unwrap(), only());
        fs::remove_file(yaml.root.join("images/0.png")).unwrap();
    }
    assert_eq!(server.ranges_of("/train2017/0.png"), [None, None]);
}

#[test]
fn a_server_without_ranges_or_tags_starts_over() {
    let work = tempfile::tempdir().unwrap();
    let server = Server::start();
    let yaml = set(work.path(), &server, 1);
    for (etag, length) in [(true, None), (false, None)] {
        let mut served = Served::new(only()).faults([Fault::CutAfter(100), Fault::CutAfter(120)]);
        served.ranges = false;
        served.length = length;
        served.etag = served.etag.filter(|_| etag);
        server.serve("/train2017/0.png", served);
        fetch_all_of(&yaml, &client(&server)).unwrap();
        let image = yaml.root.join("images/0.png");
        assert_eq!(fs::read(&image).unwrap(), only());
        fs::remove_file(&image).unwrap();
    }
}

#[test]
fn an_overloaded_server_is_asked_again_and_a_missing_file_is_not() {
    let work = tempfile::tempdir().unwrap();
    let server = Server::start();
    let yaml = set(work.path(), &server, 3);
    serve_only(&server, [500, 503, 429].map(Fault::Status));
    fetch_all_of(&yaml, &client(&server)).unwrap();
    assert_eq!(server.ranges_of("/train2017/0.png").len(), 4);

    let work = tempfile::tempdir().unwrap();
    let yaml = set(work.path(), &server, 3);
    serve_only(&server, [500, 500, 500, 500].map(Fault::Status));
    server.serve(
        "/train2017/1.png",
        Served::new("").faults([Fault::Status(404)]),
    );
    let before = server.ranges_of("/train2017/1.png").len();
    let error = fetch_all_of(&yaml, &client(&server)).unwrap_err();
    let text = error.to_string();
    assert_eq!(server.ranges_of("/train2017/1.png").len(), before + 1);
    // the other one was downloaded all the same
    assert_eq!(names(&yaml.root), ["a.json", "images/2.png"]);
    assert!(
        text.starts_with("2 of 3 images could not be downloaded"),
        "{text}"
    );
    assert!(text.contains(&server.url("/train2017/0.png")), "{text}");
    assert!(text.contains("the server answers 500"), "{text}");
    assert!(!text.contains('\n'), "{text}");
}

#[test]
fn what_is_not_the_annotated_image_never_gets_its_name() {
    let work = tempfile::tempdir().unwrap();
    let server = Server::start();
    let yaml = set(work.path(), &server, 1);
    let whole = only();
    let cases: [(Vec<u8>, &str); 4] = [
        (b"<html>log in first</html>".to_vec(), "not an image file"),
        (whole[..whole.len() / 2].to_vec(), "truncated"),
        (
            png(1, HEIGHT, WIDTH),
            "is 30 x 40, but 40 x 30 is annotated",
        ),
        (Vec::new(), "empty"),
    ];
    for (bytes, reason) in cases {
        serve_only(&server, [bytes.clone(), bytes].map(Fault::Instead));
        let error = fetch_all_of(&yaml, &client(&server))
            .unwrap_err()
            .to_string();
        assert!(error.contains(reason), "{error}");
        assert_eq!(names(&yaml.root), ["a.json"], "{reason}");
    }
    // wrong once, right the second time
    serve_only(&server, [Fault::Instead(b"<html>".to_vec())]);
    fetch_all_of(&yaml, &client(&server)).unwrap();
    assert_eq!(fs::read(yaml.root.join("images/0.png")).unwrap(), whole);
}

#[test]
fn a_server_that_lies_about_the_length_is_given_up() {
    let work = tempfile::tempdir().unwrap();
    let server = Server::start();
    let yaml = set(work.path(), &server, 1);
    let mut served = Served::new(only());
    served.length = Some(only().len() + 10);
    server.serve("/train2017/0.png", served);
    let error = fetch_all_of(&yaml, &client(&server))
        .unwrap_err()
        .to_string();
    assert!(error.contains("cannot download"), "{error}");
    assert!(!yaml.root.join("images/0.png").exists());

    let mut served = Served::new(only());
    served.length = Some(only().len() - 10);
    server.serve("/train2017/0.png", served);
    let error = fetch_all_of(&yaml, &client(&server))
        .unwrap_err()
        .to_string();
    assert!(error.contains("truncated"), "{error}");
    assert!(!yaml.root.join("images/0.png").exists());
}

#[test]
fn without_a_network_the_error_names_the_address_and_the_folder() {
    let work = tempfile::tempdir().unwrap();
    let server = Server::start();
    let yaml = set(work.path(), &server, 9);
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", nowhere.local_addr().unwrap());
    drop(nowhere);
    let client = Client::new(retry(2), Some(address.clone()), None);
    let error = fetch_all_of(&yaml, &client).unwrap_err().to_string();
    assert!(error.contains(&format!("{address}/train2017/")), "{error}");
    let folder = yaml.root.join("images").display().to_string();
    assert!(
        error.contains(&format!("into {folder} and start again")),
        "{error}"
    );
    assert!(
        error.starts_with("cannot download") && error.contains("refused"),
        "{error}"
    );
}

#[test]
fn an_interruption_ends_even_silent_connections_and_leaves_what_came() {
    let work = tempfile::tempdir().unwrap();
    let server = Server::start();
    let yaml = set(work.path(), &server, 1);
    serve_only(&server, [Fault::StallAfter(100)]);
    let part = yaml.root.join("images/0.png.part");
    let result = fetch(
        &yaml,
        &SplitName::ALL,
        &client(&server),
        &mut |_| match fs::metadata(&part) {
            Ok(metadata) if metadata.len() == 100 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        },
    );
    assert!(matches!(result, Err(DownloadError::Interrupted)));
    fetch_all_of(&yaml, &client(&server)).unwrap();
    assert_eq!(
        server.ranges_of("/train2017/0.png"),
        [None, Some("bytes=100-".to_owned())]
    );
    assert_eq!(names(&yaml.root), ["a.json", "images/0.png"]);
}

#[test]
fn two_runs_at_once_download_each_file_once() {
    let work = tempfile::tempdir().unwrap();
    let server = Server::start();
    let yaml = set(work.path(), &server, 12);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| fetch_all_of(&yaml, &client(&server)).unwrap());
        }
    });
    assert_eq!(server.requests().len(), 12);
    assert_eq!(names(&yaml.root).len(), 13, "nothing else is left");
}

#[test]
fn the_program_brings_the_annotations_of_the_built_in_sets() {
    let work = tempfile::tempdir().unwrap();
    let server = Server::start();
    let yaml = DatasetYaml::load_in("coco8.yaml", work.path()).unwrap();
    let error = fetch(&yaml, &[SplitName::Val], &client(&server), &mut quietly()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("4 of 4 images could not be downloaded"),
        "{text}"
    );
    assert!(
        text.contains("the server answers 404 (Not Found)"),
        "{text}"
    );
    let folder = work.path().join("datasets/coco8");
    assert!(
        text.contains(&folder.join("images/val").display().to_string()),
        "{text}"
    );
    assert_eq!(
        names(&folder),
        [
            "ATTRIBUTION.md",
            "annotations/train.json",
            "annotations/val.json"
        ]
    );
}

#[test]
fn images_by_address_need_a_folder_to_go_into() {
    let work = tempfile::tempdir().unwrap();
    let server = Server::start();
    let yaml = dataset(work.path(), "train: a.json\ndownload: coco_url\n");
    let error = fetch_all_of(&yaml, &client(&server))
        .unwrap_err()
        .to_string();
    assert!(error.contains("give `train: {images: FOLDER"), "{error}");
}

#[test]
fn https_speaks_tls_and_takes_no_other_answer() {
    let work = tempfile::tempdir().unwrap();
    let server = Server::start();
    let yaml = set(work.path(), &server, 1);
    let secure = server.url("").replace("http://", "https://");
    let once = Client::new(retry(1), Some(secure.clone()), None);
    let error = fetch_all_of(&yaml, &once).unwrap_err().to_string();
    assert!(
        error.contains(&format!("cannot download {secure}/train2017/0.png")),
        "{error}"
    );
    assert!(
        server
            .requests()
            .iter()
            .all(|request| request.path != "/train2017/0.png")
    );
    assert!(!yaml.root.join("images/0.png").exists());
}
