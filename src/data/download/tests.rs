#[allow(dead_code)] // other tests use the rest of it
#[path = "../../../tests/support/server.rs"]
mod server;

mod archives;
mod safety;
mod transfer;

use std::collections::BTreeMap;
use std::fs;
use std::io::Cursor;
use std::path::Path;
use std::time::Duration;

use super::client::Retry;
use super::*;
use server::{Fault, Served, Server};

fn client(server: &Server) -> Client {
    Client::new(retry(4), Some(server.url("")), None)
}

fn retry(tries: u32) -> Retry {
    Retry {
        tries,
        few_tries: 2,
        first_delay: Duration::from_millis(1),
    }
}

/// What was told, in lines without progress.
fn quietly() -> impl FnMut(Step<'_>) -> ControlFlow<()> {
    |_| ControlFlow::Continue(())
}

fn never(step: Step<'_>) -> ControlFlow<()> {
    panic!("nothing is to be done, but: {step:?}")
}

fn fetch_all_of(yaml: &DatasetYaml, client: &Client) -> Result<(), DownloadError> {
    fetch(yaml, &SplitName::ALL, client, &mut quietly())
}

/// A picture that differs from number to number.
fn png(number: u8, width: u32, height: u32) -> Vec<u8> {
    let image = image::RgbImage::from_fn(width, height, |x, y| {
        image::Rgb([number, (x * 7 + y * 3) as u8, (x * y) as u8])
    });
    let mut bytes = Cursor::new(Vec::new());
    image
        .write_to(&mut bytes, image::ImageFormat::Png)
        .expect("encodes");
    bytes.into_inner()
}

/// All files below a folder with their contents, by their paths with `/`.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    fn walk(folder: &Path, root: &Path, found: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, root, found);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap();
                found.insert(name.to_owned(), fs::read(&path).unwrap());
            }
        }
    }
    let mut found = BTreeMap::new();
    if folder.is_dir() {
        walk(folder, folder, &mut found);
    }
    found
}

fn names(folder: &Path) -> Vec<String> {
    files(folder).into_keys().collect()
}

fn dataset(work: &Path, text: &str) -> DatasetYaml {
    fs::write(work.join("d.yaml"), text).unwrap();
    DatasetYaml::load_in("d.yaml", work).unwrap()
}
