//! Looks at pictures for the tests of this folder.

use super::Picture;
use crate::report::raster::render;
use resvg::usvg::roxmltree::Document;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Names that break careless writers.
pub fn nasty_names() -> Vec<String> {
    let mut names: Vec<String> = [
        "<&\"",
        "]]>",
        "红细胞",
        "🙂 👩‍👩‍👧‍👦",
        "",
        "  ",
        "خلايا الدم",
        "שלום <b>",
        "\u{202e}reversed",
        "line\nfeed\0nul",
    ]
    .map(String::from)
    .into();
    names.push("long ".repeat(40));
    names
}

/// All texts of a picture, which must be well-formed XML.
pub fn texts(picture: &Picture) -> Vec<String> {
    let document = Document::parse(&picture.svg).expect("well-formed");
    let nodes = document.descendants().filter(|n| n.has_tag_name("text"));
    nodes.map(|n| n.text().unwrap_or("").to_string()).collect()
}

/// The picture can be drawn in its size, more than this part of it is not white, and no text lies outside it.
pub fn assert_drawn(picture: &Picture, least: f64) {
    texts(picture);
    let (w, h) = (picture.width, picture.height);
    let drawn = render(&picture.svg, w, h).expect("it can be drawn");
    show(picture);
    let png = image::load_from_memory(&drawn.to_png().unwrap()).unwrap();
    assert_eq!((png.width(), png.height()), (w, h));
    let inked = png.to_rgb8().pixels().filter(|p| p.0 != [255; 3]).count();
    let part = inked as f64 / (f64::from(w) * f64::from(h));
    assert!(part >= least, "{part} of the picture is not white");
    assert!(part < 0.9, "{part} of the picture is not white");
    // A margin without ink: nothing was cut off at an edge.
    let rgb = png.to_rgb8();
    let edge = rgb
        .enumerate_pixels()
        .filter(|(x, y, p)| (*x < 1 || *y < 1 || *x >= w - 1 || *y >= h - 1) && p.0 != [255; 3])
        .count();
    assert_eq!(edge, 0, "pixels at the very edge");
}

/// Keeps the pictures of the tests in a folder, for whoever changes how they look.
fn show(picture: &Picture) {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    if let Some(folder) = std::env::var_os("YOLO_TRAIN_SHOW_PLOTS") {
        let test = std::thread::current().name().unwrap_or("").to_string();
        let test = test.rsplit("::").next().unwrap_or("").to_string();
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::path::PathBuf::from(folder).join(format!("{test}-{n:03}.png"));
        picture.save(&path).unwrap();
    }
}
