use super::*;
use crate::data::ImageEntry;
use crate::data::batch::Batch;
use crate::data::sampler::mosaic_off_from;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SIZES: [(u32, u32); 4] = [(64, 48), (50, 90), (40, 40), (100, 30)];

fn split(images: usize) -> Arc<Split> {
    let entry = |i: usize| {
        let (width, height) = SIZES[i % 4];
        let (w, h) = (width as f32, height as f32);
        ImageEntry {
            id: i as u64,
            file_name: format!("{i}.jpg"),
            path: format!("/nowhere/{i}.jpg").into(),
            width,
            height,
            labels: vec![
                LabelBox {
                    class: i % 3,
                    xyxy: [0.0, 0.0, w, h],
                },
                LabelBox {
                    class: 0,
                    xyxy: [0.2 * w, 0.3 * h, 0.6 * w, 0.9 * h],
                },
            ],
            truths: vec![],
        }
    };
    Arc::new(Split {
        names: vec!["a".into(), "b".into(), "c".into()],
        category_ids: vec![1, 2, 3],
        images: (0..images).map(entry).collect(),
        image_id_in_file: true,
    })
}

fn number(path: &Path) -> usize {
    let stem = path.file_stem().and_then(|s| s.to_str()).expect("a stem");
    stem.parse().expect("a number")
}

/// An image that depends on its number and has the size of its entry.
fn draw(path: &Path) -> Rgb {
    let i = number(path);
    let (width, height) = SIZES[i % 4];
    let (width, height) = (width as usize, height as usize);
    let pixels = (0..width * height * 3)
        .map(|k| (k * (i + 3) % 251) as u8)
        .collect();
    Rgb {
        width,
        height,
        pixels,
    }
}

fn everything() -> LoaderConfig {
    LoaderConfig {
        imgsz: 64,
        batch: 7,
        seed: 3,
        augment: AugmentConfig {
            degrees: 10.0,
            shear: 3.0,
            perspective: 0.0005,
            flipud: 0.3,
            mosaic: 0.7,
            mixup: 0.4,
            cutmix: 0.4,
            ..AugmentConfig::default()
        },
        multi_scale: 0.5,
        ..LoaderConfig::default()
    }
}

fn loader(images: usize, config: LoaderConfig) -> Loader {
    Loader::with_decode(split(images), config, Box::new(|path| Ok(draw(path)))).expect("valid")
}

fn epoch(loader: &Loader, epoch: usize, first: usize) -> Vec<Batch> {
    loader
        .train_epoch(epoch, first)
        .map(|batch| batch.expect("loads"))
        .collect()
}

#[test]
fn batches_do_not_depend_on_workers_cache_or_history() {
    let reference = loader(30, everything());
    let want = epoch(&reference, 4, 0);
    assert_eq!(want.len(), 5);
    assert_eq!(want.last().map(Batch::len), Some(2));
    assert!(want.iter().any(|b| b.width != 64) && want.iter().all(|b| b.width % 32 == 0));
    assert!(
        want.iter()
            .all(|b| b.pixels.len() == b.len() * b.width * b.height * 3)
    );
    assert_ne!(want, epoch(&reference, 5, 0));
    assert_eq!(want, epoch(&reference, 4, 0));
    for (workers, cache_bytes) in [(1, 1 << 20), (3, 1 << 20), (3, 0), (2, 30_000)] {
        let other = loader(
            30,
            LoaderConfig {
                workers,
                cache_bytes,
                ..everything()
            },
        );
        assert_eq!(want, epoch(&other, 4, 0), "{workers} {cache_bytes}");
    }
}

#[test]
fn an_epoch_can_be_entered_at_any_batch() {
    for workers in [0, 2] {
        let l = loader(
            30,
            LoaderConfig {
                workers,
                ..everything()
            },
        );
        let whole = epoch(&l, 1, 0);
        for first in 0..=5 {
            assert_eq!(whole[first..], epoch(&l, 1, first));
        }
        assert!(epoch(&l, 1, 99).is_empty());
    }
}

#[test]
fn shards_are_parts_of_the_same_batch() {
    let whole = epoch(&loader(30, everything()), 0, 0);
    let parts: Vec<Vec<Batch>> = (0..3)
        .map(|index| {
            let shard = Shard { index, count: 3 };
            epoch(
                &loader(
                    30,
                    LoaderConfig {
                        shard,
                        workers: index,
                        ..everything()
                    },
                ),
                0,
                0,
            )
        })
        .collect();
    for (k, batch) in whole.iter().enumerate() {
        let pixels: Vec<u8> = parts.iter().flat_map(|p| p[k].pixels.clone()).collect();
        assert_eq!(pixels, batch.pixels);
        let boxes: usize = parts.iter().map(|p| p[k].boxes.len()).sum();
        assert_eq!(boxes, batch.boxes.len());
        // The last batch has two images for three shards: one of them is empty, and says so with its shape.
        assert!(parts.iter().all(|p| p[k].width == batch.width));
    }
}

#[test]
fn memory_does_not_grow_over_epochs() {
    let limit = 60_000;
    let l = loader(
        40,
        LoaderConfig {
            cache_bytes: limit,
            workers: 2,
            ..everything()
        },
    );
    for e in 0..4 {
        epoch(&l, e, 0);
        assert!(l.cached_bytes() <= limit);
    }
}

#[test]
fn the_last_epochs_show_letterboxed_images_in_the_epochs_order() {
    let (off, _) = mosaic_off_from(4, 2);
    let config = LoaderConfig {
        imgsz: 64,
        batch: 4,
        mosaic_off_from: off,
        augment: AugmentConfig {
            mosaic: 1.0,
            mixup: 1.0,
            cutmix: 1.0,
            ..AugmentConfig::NONE
        },
        ..LoaderConfig::default()
    };
    let l = loader(8, config);
    let (before, after) = (epoch(&l, 1, 0), epoch(&l, 2, 0));
    let order = l.sampler().order(2);
    let shown: Vec<usize> = after
        .iter()
        .flat_map(|b| b.images.iter().map(|i| i.index))
        .collect();
    assert_eq!(shown, order);
    let counts: Vec<usize> = (0..4)
        .map(|i| after[0].boxes.iter().filter(|b| b.image == i).count())
        .collect();
    assert_eq!(counts, [2; 4]);
    assert!(before[0].boxes.len() > after[0].boxes.len());
}

#[test]
fn each_image_is_validated_once_and_its_boxes_map_back() {
    for (rect, workers) in [(true, 0), (true, 2), (false, 1)] {
        let l = loader(
            10,
            LoaderConfig {
                imgsz: 64,
                rect,
                workers,
                ..LoaderConfig::default()
            },
        );
        let batches: Vec<Batch> = l.val_batches(4).map(|b| b.expect("loads")).collect();
        let mut seen = Vec::new();
        for batch in &batches {
            seen.extend(batch.images.iter().map(|i| i.index));
            for b in &batch.boxes {
                let image = batch.images[b.image];
                let entry = &split(10).images[image.index];
                let back = image
                    .letterbox
                    .to_original(b.xyxy, entry.width, entry.height);
                let matched = entry.labels.iter().any(|label| {
                    label.class == b.class
                        && label
                            .xyxy
                            .iter()
                            .zip(back)
                            .all(|(a, c)| (a - c).abs() < 1e-3)
                });
                assert!(matched, "{back:?}");
            }
        }
        assert_eq!(batches.iter().map(|b| b.boxes.len()).sum::<usize>(), 20);
        seen.sort_unstable();
        assert_eq!(seen, (0..10).collect::<Vec<_>>());
    }
}

#[test]
fn an_unreadable_image_ends_the_epoch_with_its_name() {
    for workers in [0, 2] {
        let config = LoaderConfig {
            workers,
            imgsz: 64,
            augment: AugmentConfig::NONE,
            batch: 3,
            ..LoaderConfig::default()
        };
        let bad = |path: &Path| {
            if number(path) == 5 {
                read_rgb(path)
            } else {
                Ok(draw(path))
            }
        };
        let l = Loader::with_decode(split(12), config, Box::new(bad)).expect("valid");
        let at = l
            .sampler()
            .order(0)
            .iter()
            .position(|&i| i == 5)
            .expect("there")
            / 3;
        let results: Vec<_> = l.train_epoch(0, 0).collect();
        assert_eq!(results.len(), at + 1);
        let error = results[at].as_ref().expect_err("unreadable");
        assert!(error.to_string().contains("5.jpg"), "{error}");
        assert!(matches!(error, LoaderError::Decode { .. }));
    }
}

#[test]
fn a_panic_becomes_an_error_with_the_file() {
    for workers in [0, 3] {
        let config = LoaderConfig {
            workers,
            imgsz: 64,
            batch: 4,
            ..LoaderConfig::default()
        };
        let decode = |path: &Path| {
            assert!(number(path) != 2, "a defect");
            Ok(draw(path))
        };
        let l = Loader::with_decode(split(4), config, Box::new(decode)).expect("valid");
        let error = l
            .val_batches(4)
            .next()
            .expect("one batch")
            .expect_err("panics");
        assert!(error.to_string().contains("2.jpg") && error.to_string().contains("a defect"));
    }
}

#[test]
fn prefetch_is_bounded_and_dropping_ends_the_workers_at_once() {
    let (workers, batch) = (2, 4);
    let count = Arc::new(AtomicUsize::new(0));
    let config = LoaderConfig {
        workers,
        batch,
        imgsz: 64,
        cache_bytes: 0,
        augment: AugmentConfig::NONE,
        ..LoaderConfig::default()
    };
    let counted = count.clone();
    let decode = move |path: &Path| {
        counted.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(2));
        Ok(draw(path))
    };
    let l = Loader::with_decode(split(4000), config, Box::new(decode)).expect("valid");
    let mut batches = l.train_epoch(0, 0);
    batches.next().expect("a batch").expect("loads");
    std::thread::sleep(Duration::from_millis(300));
    // The batch taken and workers + 2 more.
    assert_eq!(count.load(Ordering::SeqCst), (1 + workers + 2) * batch);
    batches.next().expect("a batch").expect("loads");
    let start = Instant::now();
    drop(batches);
    assert!(start.elapsed() < Duration::from_millis(200));
    let after = count.load(Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(count.load(Ordering::SeqCst), after);
    // The workers are gone: nobody but this test and the loader's own closure holds the counter.
    drop(l);
    assert_eq!(Arc::strong_count(&count), 1);
}

#[test]
fn an_impossible_configuration_is_named() {
    let error = |config| {
        Loader::new(split(1), config)
            .err()
            .expect("refused")
            .to_string()
    };
    let base = LoaderConfig::default;
    assert!(error(LoaderConfig { batch: 0, ..base() }).contains("batch"));
    assert!(
        error(LoaderConfig {
            imgsz: 100,
            ..base()
        })
        .contains("imgsz is 100")
    );
    let shard = Shard { index: 2, count: 2 };
    assert!(error(LoaderConfig { shard, ..base() }).contains("shard"));
}

/// Not a test: `cargo test --release --lib data::loader::tests::rate -- --ignored --nocapture`.
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
