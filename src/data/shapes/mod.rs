//! The embedded data set "shapes": drawn, so that a fresh machine can train without a download.
//!
//! Eight classes that differ in shape, not in colour; textured backgrounds, figures of no class, occlusion, light,
//! rotation, noise; 8 pixels to three quarters of the image. Only additions, multiplications, divisions and square
//! roots are used, and the crate's own random numbers, so every platform draws the same bytes.

mod canvas;
mod form;
mod noise;
mod scene;

pub use form::CLASSES;
pub use scene::{Object, Scene};

use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use image::ExtendedColorType;
use image::codecs::jpeg::JpegEncoder;
use rayon::prelude::*;
use serde::Serialize;

/// The splits' names and numbers of images.
pub const SPLITS: [(&str, usize); 2] = [("train", 400), ("val", 100)];

/// Draws the data set into `dir`: `images/{train,val}/NNNN.jpg` and, as COCO JSON, `annotations/{train,val}.json`.
/// `progress` is told (images done, images in all). The same bytes everywhere.
///
/// Everything is written to a folder beside `dir` that is renamed at the end; a folder at `dir` is never touched, and it
/// is an error unless it appeared, complete, while this one was being drawn.
pub fn generate(dir: &Path, progress: &mut dyn FnMut(usize, usize)) -> Result<()> {
    generate_some(dir, &SPLITS, progress)
}

fn generate_some(
    dir: &Path,
    splits: &[(&str, usize)],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<()> {
    if dir.exists() {
        return Err(Error::new(
            ErrorKind::AlreadyExists,
            format!(
                "{} exists already; remove or rename it to draw the set anew",
                dir.display()
            ),
        ));
    }
    let name = dir.file_name().ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidInput,
            format!("{} has no name to draw a data set under", dir.display()),
        )
    })?;
    let mut temporary = name.to_os_string();
    temporary.push(format!(".tmp-{}", std::process::id()));
    let temporary = dir.with_file_name(temporary);
    let result = write_all(&temporary, splits, progress).and_then(|()| {
        match fs::rename(&temporary, dir) {
            // Another process drew the same set meanwhile: the bytes are the same.
            Err(_) if dir.join("annotations/val.json").is_file() => fs::remove_dir_all(&temporary),
            other => other,
        }
    });
    if result.is_err() {
        // What is left there is of no use; the first error is the one that matters.
        let _ = fs::remove_dir_all(&temporary);
    }
    result
}

fn write_all(
    dir: &Path,
    splits: &[(&str, usize)],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<()> {
    /// Images drawn in parallel before progress is told.
    const CHUNK: usize = 16;
    let total = splits.iter().map(|(_, count)| count).sum();
    let mut done = 0;
    progress(done, total);
    fs::create_dir_all(dir.join("annotations"))?;
    for (split, &(name, count)) in splits.iter().enumerate() {
        let images = dir.join("images").join(name);
        fs::create_dir_all(&images)?;
        let mut scenes = Vec::with_capacity(count);
        let numbers: Vec<usize> = (0..count).collect();
        for chunk in numbers.chunks(CHUNK) {
            let drawn: Vec<Scene> = chunk
                .par_iter()
                .map(|&number| {
                    let mut scene = Scene::draw(split as u64, number);
                    write_synced(&images.join(file_name(number)), &jpeg(&scene)?)?;
                    scene.pixels = Vec::new();
                    Ok(scene)
                })
                .collect::<Result<_>>()?;
            scenes.extend(drawn);
            done += chunk.len();
            progress(done, total);
        }
        let json = coco(&scenes)?;
        write_synced(&dir.join("annotations").join(format!("{name}.json")), &json)?;
    }
    Ok(())
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = fs::File::create(path)?;
    std::io::Write::write_all(&mut file, bytes)?;
    file.sync_all()
}

fn file_name(number: usize) -> String {
    format!("{number:04}.jpg")
}

fn jpeg(scene: &Scene) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    JpegEncoder::new_with_quality(&mut bytes, scene.quality)
        .encode(
            &scene.pixels,
            scene.width as u32,
            scene.height as u32,
            ExtendedColorType::Rgb8,
        )
        .map_err(Error::other)?;
    Ok(bytes)
}

#[derive(Serialize)]
struct Coco {
    info: Info,
    images: Vec<CocoImage>,
    annotations: Vec<Annotation>,
    categories: Vec<Category>,
}

#[derive(Serialize)]
struct Info {
    description: &'static str,
    version: &'static str,
}

#[derive(Serialize)]
struct CocoImage {
    id: usize,
    file_name: String,
    width: usize,
    height: usize,
}

#[derive(Serialize)]
struct Annotation {
    id: usize,
    image_id: usize,
    category_id: usize,
    /// x, y, width, height.
    bbox: [usize; 4],
    area: usize,
    iscrowd: u8,
}

#[derive(Serialize)]
struct Category {
    id: usize,
    name: &'static str,
}

/// COCO JSON of a split; ids begin at 1.
fn coco(scenes: &[Scene]) -> Result<Vec<u8>> {
    let mut annotations = Vec::new();
    let mut images = Vec::with_capacity(scenes.len());
    for (number, scene) in scenes.iter().enumerate() {
        images.push(CocoImage {
            id: number + 1,
            file_name: file_name(number),
            width: scene.width,
            height: scene.height,
        });
        for object in &scene.objects {
            let [x1, y1, x2, y2] = object.bounds;
            annotations.push(Annotation {
                id: annotations.len() + 1,
                image_id: number + 1,
                category_id: object.class + 1,
                bbox: [x1, y1, x2 - x1, y2 - y1],
                area: object.area,
                iscrowd: 0,
            });
        }
    }
    let set = Coco {
        info: Info {
            description: "shapes: a drawn data set for object detection",
            version: "1",
        },
        images,
        annotations,
        categories: CLASSES
            .iter()
            .enumerate()
            .map(|(i, name)| Category { id: i + 1, name })
            .collect(),
    };
    serde_json::to_vec(&set).map_err(Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FNV-1a.
    fn hash(bytes: &[u8]) -> u64 {
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| {
            (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
        })
    }

    #[test]
    fn the_set_is_the_same_on_every_platform() {
        let first = Scene::draw(0, 0);
        let scenes: Vec<Scene> = (0..SPLITS[1].1)
            .into_par_iter()
            .map(|number| Scene::draw(1, number))
            .collect();
        let hashes = (
            hash(&first.pixels),
            hash(&jpeg(&first).expect("encodes")),
            hash(&coco(&scenes).expect("serialises")),
        );
        assert_eq!(hashes, PINNED);
    }
    const PINNED: (u64, u64, u64) = (
        13_319_283_568_948_717_039,
        12_163_778_415_727_564_089,
        6_116_757_799_865_332_722,
    );

    #[test]
    fn a_set_is_written_whole_and_never_over_an_existing_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().join("shapes");
        let mut told = Vec::new();
        let splits = [("train", 3), ("val", 2)];
        generate_some(&dir, &splits, &mut |done, total| told.push((done, total))).expect("drawn");
        assert_eq!(told.last(), Some(&(5, 5)));
        let entries = fs::read_dir(folder.path()).expect("readable").count();
        assert_eq!(entries, 1, "nothing temporary is left");
        let image = image::open(dir.join("images/val/0001.jpg")).expect("a JPEG");
        let scene = Scene::draw(1, 1);
        assert_eq!(
            (image.width() as usize, image.height() as usize),
            (scene.width, scene.height)
        );
        let json = fs::read(dir.join("annotations/train.json")).expect("there");
        let json: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
        assert_eq!(json["images"].as_array().map(Vec::len), Some(3));
        assert_eq!(json["categories"][7]["name"], "crescent");
        let error = generate_some(&dir, &splits, &mut |_, _| {}).expect_err("exists");
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    }

    /// Not a test: `cargo test --release --lib shapes -- --ignored`, then look at the images.
    #[test]
    #[ignore = "writes the whole set and PNGs with boxes to a folder to look at"]
    fn look() {
        let folder = std::env::temp_dir().join("yolo-train-shapes-look");
        let _ = fs::remove_dir_all(&folder);
        let start = std::time::Instant::now();
        generate(&folder.join("shapes"), &mut |_, _| {}).expect("drawn");
        println!("{:?} in {}", start.elapsed(), folder.display());
        let start = std::time::Instant::now();
        let scenes: Vec<Scene> = (0..40).map(|n| Scene::draw(0, n)).collect();
        println!("{:?} to draw an image on one thread", start.elapsed() / 40);
        let start = std::time::Instant::now();
        let bytes: usize = scenes.iter().map(|s| jpeg(s).expect("encodes").len()).sum();
        println!("{:?} to encode {} bytes", start.elapsed() / 40, bytes / 40);
        for number in 0..12 {
            let mut scene = Scene::draw(0, number);
            let width = scene.width;
            let save = |pixels: &[u8], name: String| {
                let (w, h) = (width as u32, (pixels.len() / width / 3) as u32);
                image::save_buffer(folder.join(name), pixels, w, h, ExtendedColorType::Rgb8)
                    .expect("written");
            };
            save(&scene.pixels, format!("{number:02}.png"));
            for object in &scene.objects {
                let [x1, y1, x2, y2] = object.bounds;
                let mut mark = |x: usize, y: usize| {
                    scene.pixels[(y * width + x) * 3..][..3].copy_from_slice(&[255, 0, 0]);
                };
                (x1..x2).for_each(|x| {
                    mark(x, y1);
                    mark(x, y2 - 1);
                });
                (y1..y2).for_each(|y| {
                    mark(x1, y);
                    mark(x2 - 1, y);
                });
            }
            save(&scene.pixels, format!("{number:02}-boxes.png"));
        }
    }
}
