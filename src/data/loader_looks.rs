//! Not tests: what one runs to measure the loader or to look at what it makes.

use super::*;
use crate::data::ImageEntry;
use std::path::Path;
use std::time::Instant;

fn number(path: &Path) -> usize {
    let stem = path.file_stem().and_then(|s| s.to_str()).expect("a stem");
    stem.parse().expect("a number")
}

/// Not a test: `cargo test --release --lib data::loader::looks::rate -- --ignored --nocapture`.
#[test]
#[ignore = "measures, on the images of ../shared"]
fn rate_of_samples_from_shared_images() {
    let folder = std::env::var_os("YOLO_TRAIN_SHARED")
        .map(PathBuf::from)
        .unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../shared").into())
        .join("data/bccd/images");
    let Ok(files) = std::fs::read_dir(&folder) else {
        println!("skipped: no {}", folder.display());
        return;
    };
    let mut paths: Vec<PathBuf> = files.flatten().map(|f| f.path()).collect();
    paths.sort();
    let labels: Vec<LabelBox> = (0..15)
        .map(|i| {
            let at = 10.0 + 30.0 * i as f32;
            LabelBox {
                class: 0,
                xyxy: [at, at, at + 80.0, at + 20.0],
            }
        })
        .collect();
    let images = paths
        .into_iter()
        .map(|path| ImageEntry {
            id: 0,
            file_name: String::new(),
            path,
            width: 640,
            height: 480,
            labels: labels.clone(),
            truths: vec![],
        })
        .collect();
    let split = Arc::new(Split {
        names: vec!["cell".into()],
        category_ids: vec![1],
        images,
        image_id_in_file: true,
    });
    for imgsz in [320, 640] {
        for (name, cache_bytes, augment) in [
            ("default, nothing kept", 0, AugmentConfig::default()),
            ("default, window kept", 256 << 20, AugmentConfig::default()),
            (
                "no mosaic, nothing kept",
                0,
                AugmentConfig::default().without_mosaic(),
            ),
        ] {
            let config = LoaderConfig {
                imgsz,
                cache_bytes,
                augment,
                ..LoaderConfig::default()
            };
            let l = Loader::new(split.clone(), config).expect("valid");
            for pass in 0..2 {
                let start = Instant::now();
                let n: usize = l
                    .train_epoch(pass, 0)
                    .map(|b| b.expect("loads").len())
                    .sum();
                let rate = n as f64 / start.elapsed().as_secs_f64();
                println!("{imgsz} {name}, epoch {pass}: {rate:.0} images/s on one thread");
            }
        }
        let l = Loader::new(
            split.clone(),
            LoaderConfig {
                imgsz,
                cache_bytes: 0,
                ..LoaderConfig::default()
            },
        )
        .expect("valid");
        let start = Instant::now();
        let n: usize = l.val_batches(16).map(|b| b.expect("loads").len()).sum();
        println!(
            "{imgsz} validation: {:.0} images/s",
            n as f64 / start.elapsed().as_secs_f64()
        );
    }
}

/// Not a test: writes augmented drawn images with their boxes to a folder to look at.
#[test]
#[ignore = "writes PNGs to look at"]
fn look_at_batches() {
    use crate::data::shapes::Scene;
    let folder = std::env::temp_dir().join("yolo-train-batches-look");
    std::fs::create_dir_all(&folder).expect("a folder");
    let scenes: Vec<Scene> = (0..40).map(|n| Scene::draw(0, n)).collect();
    let images = scenes
        .iter()
        .enumerate()
        .map(|(i, scene)| ImageEntry {
            id: i as u64,
            file_name: String::new(),
            path: format!("{i}.jpg").into(),
            width: scene.width as u32,
            height: scene.height as u32,
            labels: scene
                .objects
                .iter()
                .map(|o| LabelBox {
                    class: o.class,
                    xyxy: o.bounds.map(|v| v as f32),
                })
                .collect(),
            truths: vec![],
        })
        .collect();
    let split = Arc::new(Split {
        names: vec![],
        category_ids: vec![],
        images,
        image_id_in_file: true,
    });
    let decode = move |path: &Path| {
        let scene = &scenes[number(path)];
        Ok(Rgb {
            width: scene.width,
            height: scene.height,
            pixels: scene.pixels.clone(),
        })
    };
    let decode = Arc::new(decode);
    for (name, augment) in [
        ("default", AugmentConfig::default()),
        (
            "all",
            AugmentConfig {
                degrees: 15.0,
                shear: 5.0,
                perspective: 0.0008,
                ..AugmentConfig::default()
            },
        ),
        (
            "cutmix",
            AugmentConfig {
                cutmix: 1.0,
                ..AugmentConfig::default()
            },
        ),
        (
            "mixup",
            AugmentConfig {
                mixup: 1.0,
                ..AugmentConfig::default()
            },
        ),
        ("plain", AugmentConfig::default().without_mosaic()),
    ] {
        let config = LoaderConfig {
            imgsz: 320,
            batch: 4,
            augment,
            ..LoaderConfig::default()
        };
        let decode = decode.clone();
        let l = Loader::with_decode(split.clone(), config, Box::new(move |p| decode(p)))
            .expect("valid");
        let mut batch = l.train_epoch(0, 0).next().expect("one").expect("loads");
        for b in &batch.boxes {
            let [x1, y1, x2, y2] = b.xyxy.map(|v| (v as usize).min(319));
            let mut mark = |x: usize, y: usize| {
                batch.pixels[((b.image * 320 + y) * 320 + x) * 3..][..3]
                    .copy_from_slice(&[255, 0, 0]);
            };
            (x1..x2).for_each(|x| {
                mark(x, y1);
                mark(x, y2);
            });
            (y1..y2).for_each(|y| {
                mark(x1, y);
                mark(x2, y);
            });
        }
        let file = folder.join(format!("{name}.png"));
        let size = (320, 320 * batch.len() as u32);
        image::save_buffer(
            file,
            &batch.pixels,
            size.0,
            size.1,
            image::ExtendedColorType::Rgb8,
        )
        .expect("written");
    }
}
