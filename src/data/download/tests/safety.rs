//! Archives that are damaged or made to do harm.

use std::io::Write;

use super::archives::{gzip, tar_of, zip_of};
use super::*;

/// What comes of an archive that holds a good file besides what is wrong with it. Nothing is ever written.
fn refusal(archive: Vec<u8>) -> String {
    let work = tempfile::tempdir().unwrap();
    let server = Server::start();
    server.serve("/d", Served::new(archive));
    let yaml = dataset(
        work.path(),
        &format!(
            "path: d\ntrain: images\nnames: [a]\ndownload: {}\n",
            server.url("/d")
        ),
    );
    let error = fetch_all_of(&yaml, &client(&server)).unwrap_err();
    assert!(matches!(error, DownloadError::Archive { .. }), "{error:?}");
    assert_eq!(names(work.path()), ["d.yaml"], "{error}");
    error.to_string()
}

fn good() -> (String, Vec<u8>) {
    ("images/a.png".to_owned(), png(1, 20, 20))
}

/// A tar archive with an entry whose header is written as it is, links and names out of the folder included.
fn tar_with(name: &str, kind: ::tar::EntryType, link: &str) -> Vec<u8> {
    let mut start = tar_of(&[good()]);
    start.truncate(start.len() - 1024); // the end of an archive
    let mut tar = ::tar::Builder::new(start);
    let mut header = ::tar::Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_size(0);
    header.set_cksum();
    tar.append(&header, std::io::empty()).unwrap();
    tar.into_inner().unwrap()
}

#[test]
fn names_that_lead_out_of_the_folder_are_refused() {
    for name in [
        "../out.txt",
        "/tmp/out.txt",
        "images/../../out.txt",
        "C:\\out.txt",
    ] {
        let zip = refusal(zip_of(&[good(), (name.to_owned(), b"x".to_vec())]));
        assert!(zip.contains(&format!("`{name}` is refused")), "{zip}");
        let tar = tar_with(name, ::tar::EntryType::Regular, "");
        assert!(refusal(tar.clone()).contains(&format!("`{name}` is refused")));
        assert!(refusal(gzip(&tar)).contains("is refused"));
    }
}

#[test]
fn links_and_devices_are_refused() {
    use ::tar::EntryType;
    for kind in [
        EntryType::Symlink,
        EntryType::Link,
        EntryType::Fifo,
        EntryType::Block,
        EntryType::GNUSparse,
    ] {
        let error = refusal(tar_with("images/b.png", kind, "/etc/passwd"));
        assert!(
            error.contains("`images/b.png` is a link or a device"),
            "{error}"
        );
    }
    let mut zip = ::zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = ::zip::write::SimpleFileOptions::default();
    zip.add_symlink("images/b.png", "/etc/passwd", options)
        .unwrap();
    let error = refusal(zip.finish().unwrap().into_inner());
    assert!(
        error.contains("`images/b.png` is a link or a device"),
        "{error}"
    );
}

#[test]
fn bombs_are_refused_before_they_are_unpacked() {
    // 1.3 GB of zeros in a megabyte
    let block = vec![0_u8; 64 << 20];
    let one = zip_of(&[("a".to_owned(), block.clone())]);
    let mut one = ::zip::ZipArchive::new(Cursor::new(one)).unwrap();
    let mut zip = ::zip::ZipWriter::new(Cursor::new(Vec::new()));
    for number in 0..20 {
        let name = format!("images/{number}.png");
        let file = one.by_index_raw(0).unwrap();
        zip.raw_copy_file_rename(file, name.as_str()).unwrap();
    }
    let bytes = zip.finish().unwrap().into_inner();
    assert!(bytes.len() < 2 << 20);
    let error = refusal(bytes);
    assert!(error.contains("would unpack to more than"), "{error}");

    let mut header = ::tar::Header::new_gnu();
    header.set_path("images/a.bin").unwrap();
    header.set_size(20 * block.len() as u64);
    header.set_cksum();
    let mut bytes = gzip(header.as_bytes());
    bytes.extend(gzip(&block).repeat(20));
    assert!(bytes.len() < 2 << 20);
    let error = refusal(bytes);
    assert!(error.contains("would unpack to more than"), "{error}");
}

#[test]
fn damaged_archives_and_other_files_are_named() {
    assert!(refusal(b"<html>not here</html>".to_vec()).contains("neither a zip nor a tar"));
    assert!(refusal(Vec::new()).contains("neither a zip nor a tar"));
    let zip = zip_of(&[good()]);
    assert!(refusal(zip[..zip.len() - 30].to_vec()).contains("damaged"));
    let tar = gzip(&tar_of(&[good()]));
    refusal(tar[..tar.len() / 2].to_vec());
    // the checksum at its end
    let mut wrong = tar;
    let last = wrong.len() - 5;
    wrong[last] ^= 1;
    refusal(wrong);
}

#[test]
fn a_file_with_a_wrong_checksum_is_found_while_it_is_unpacked() {
    let work = tempfile::tempdir().unwrap();
    let server = Server::start();
    let mut zip = ::zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = ::zip::write::SimpleFileOptions::default()
        .compression_method(::zip::CompressionMethod::Stored);
    zip.start_file("images/a.png", options).unwrap();
    zip.write_all(b"a marked text").unwrap();
    let mut bytes = zip.finish().unwrap().into_inner();
    let at = bytes.windows(6).position(|six| six == b"marked").unwrap();
    bytes[at] = b'M';
    server.serve("/d", Served::new(bytes));
    let yaml = dataset(
        work.path(),
        &format!("path: d\ntrain: images\ndownload: {}\n", server.url("/d")),
    );
    let error = fetch_all_of(&yaml, &client(&server))
        .unwrap_err()
        .to_string();
    assert!(error.contains("damaged at `images/a.png`"), "{error}");
    assert_eq!(names(&yaml.root), [""; 0], "neither the part nor the file");
}
