//! The built-in COCO sets, downloaded by the binary from a server on this machine.

#[allow(dead_code)] // other tests use the rest of it
#[path = "support/server.rs"]
mod server;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;
use server::{Served, Server};

fn program(folder: &Path, mirror: &str) -> Command {
    let mut program = Command::new(cargo_bin!("yolo-train"));
    program
        .current_dir(folder)
        .env("YOLO_TRAIN_COCO_URL", mirror);
    for variable in [
        "ALL_PROXY",
        "all_proxy",
        "HTTPS_PROXY",
        "https_proxy",
        "HTTP_PROXY",
        "http_proxy",
    ] {
        program.env_remove(variable);
    }
    program
}

fn train(folder: &Path, mirror: &str) -> Output {
    program(folder, mirror).args(WORDS).output().unwrap()
}

const WORDS: [&str; 12] = [
    "--data",
    "coco8.yaml",
    "--imgsz",
    "64",
    "--batch",
    "4",
    "--epochs",
    "1",
    "--workers",
    "1",
    "--threads",
    "1",
];

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Serves a picture of the annotated size for each image of a file of annotations; the paths that it has.
fn serve_images(server: &Server, annotations: &str) -> Vec<String> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/datasets/");
    let json = fs::read(format!("{root}{annotations}")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let mut paths = Vec::new();
    for image in json["images"].as_array().unwrap() {
        let side = |name: &str| image[name].as_u64().unwrap() as u32;
        let picture = image::RgbImage::from_fn(side("width"), side("height"), |x, y| {
            image::Rgb([(x / 3) as u8, (y / 2) as u8, ((x + y) / 5) as u8])
        });
        let mut bytes = std::io::Cursor::new(Vec::new());
        picture
            .write_to(&mut bytes, image::ImageFormat::Jpeg)
            .unwrap();
        let url = image["coco_url"].as_str().unwrap();
        let path = url.strip_prefix("http://images.cocodataset.org").unwrap();
        server.serve(path, Served::new(bytes.into_inner()));
        paths.push(path.to_owned());
    }
    paths
}

#[test]
fn coco8_is_downloaded_trained_on_and_not_downloaded_again() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start();
    serve_images(&server, "coco8/annotations/train.json");
    serve_images(&server, "coco8/annotations/val.json");
    let output = train(folder.path(), &server.url(""));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("downloading images to datasets/coco8: 8 images in"),
        "{said}"
    );
    assert!(!said.contains("warning"), "{said}");
    assert!(text(&output.stdout).contains("umbrella"), "names of COCO");
    assert_eq!(server.requests().len(), 8);
    let run = folder.path().join("runs/detect/train");
    let report = fs::read(run.join("data-report.json")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    for (split, images) in [(0, 4), (1, 4)] {
        assert_eq!(report["splits"][split]["images"], images, "{report}");
    }
    assert!(run.join("weights/best.safetensors").is_file());

    let nobody = "http://127.0.0.1:9";
    let output = train(folder.path(), nobody);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(!said.contains("download"), "{said}");
}

#[test]
fn without_a_network_one_line_names_the_address_and_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let output = train(folder.path(), "http://127.0.0.1:9");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("yolo-train: error: "), "{said}");
    assert!(
        last.contains("http://127.0.0.1:9/train2017/0000000000"),
        "{said}"
    );
    assert!(last.contains("datasets/coco8/images/train"), "{said}");
    assert!(!folder.path().join("runs").exists());
}

#[cfg(unix)]
#[test]
fn an_interrupted_download_ends_with_130_and_the_next_run_goes_on_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start();
    let paths = serve_images(&server, "coco8/annotations/train.json");
    serve_images(&server, "coco8/annotations/val.json");
    let json = fs::read(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/datasets/coco8/annotations/train.json"
    ))
    .unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let name = json["images"][0]["file_name"].as_str().unwrap();
    server.stall(&paths[0], 2000);
    let child = program(folder.path(), &server.url(""))
        .args(WORDS)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let part = folder
        .path()
        .join(format!("datasets/coco8/images/train/{name}.part"));
    let start = Instant::now();
    while fs::metadata(&part).map_or(0, |metadata| metadata.len()) < 2000 {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing came");
        std::thread::sleep(Duration::from_millis(20));
    }
    let killed = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(killed.unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert_eq!(fs::metadata(&part).unwrap().len(), 2000);

    let output = train(folder.path(), &server.url(""));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let ranges = server.ranges_of(&paths[0]);
    assert_eq!(ranges, [None, Some("bytes=2000-".to_owned())]);
    assert!(!part.exists());
}

#[test]
fn code_in_a_dataset_file_is_never_executed() {
    let folder = tempfile::tempdir().unwrap();
    let code = "path: d\ntrain: images\nnames: [a]\ndownload: |\n  import pathlib\n  pathlib.Path('executed').touch()\n";
    fs::write(folder.path().join("d.yaml"), code).unwrap();
    for script in ["bash -c 'touch executed'", "touch executed"] {
        let text = format!("path: d\ntrain: images\nnames: [a]\ndownload: {script}\n");
        fs::write(folder.path().join("e.yaml"), text).unwrap();
        for data in ["d.yaml", "e.yaml"] {
            let output = program(folder.path(), "http://127.0.0.1:9")
                .args(["--data", data])
                .output()
                .unwrap();
            let said = text_of(&output);
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains("which is never executed"), "{said}");
        }
    }
    assert!(!folder.path().join("executed").exists());
}

fn text_of(output: &Output) -> String {
    text(&output.stderr)
}
