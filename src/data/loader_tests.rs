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
    assert!(want.iter().any(|b| b.input != (64, 64)));
    assert!(
        want.iter()
            .all(|b| b.width == 64 && b.input.0 % 32 == 0 && b.input.0 == b.input.1)
    );
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
            let shard = Shard {
                index,
                count: 3,
                lanes: 4,
            };
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
        assert!(parts.iter().all(|p| p[k].input == batch.input));
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
fn ranks_validate_consecutive_whole_batches_that_are_those_of_one_rank() {
    for rect in [true, false] {
        for images in [0, 1, 13] {
            let config = LoaderConfig {
                rect,
                workers: images % 3,
                ..everything()
            };
            let l = loader(images, config);
            let whole: Vec<Batch> = l.val_batches(4).map(|b| b.expect("loads")).collect();
            for ranks in [1, 2, 3, 5, 7] {
                let mut joined = vec![];
                for rank in 0..ranks {
                    let part = l.val_batches_of(4, rank, ranks);
                    let announced = part.images();
                    let part: Vec<Batch> = part.map(|b| b.expect("loads")).collect();
                    assert_eq!(announced, part.iter().map(Batch::len).sum::<usize>());
                    let n = whole.len();
                    assert_eq!(part.len(), (rank + 1) * n / ranks - rank * n / ranks);
                    joined.extend(part);
                }
                assert_eq!(joined, whole, "{images} images, {ranks} ranks");
            }
        }
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

/// A loader of plain images that take 2 ms each, and the number of images decoded so far.
fn slow_loader(workers: usize, batch: usize) -> (Loader, Arc<AtomicUsize>) {
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
    (l, count)
}

#[test]
fn prefetch_is_bounded() {
    let (workers, batch) = (2, 4);
    let (l, count) = slow_loader(workers, batch);
    let mut batches = l.train_epoch(0, 0);
    batches.next().expect("a batch").expect("loads");
    let enough = (1 + workers + 2) * batch;
    let start = Instant::now();
    while count.load(Ordering::SeqCst) < enough && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(60));
    // The batch taken and workers + 2 more.
    assert_eq!(count.load(Ordering::SeqCst), enough);
}

#[test]
fn dropping_the_iterator_ends_the_workers_at_once() {
    let (l, count) = slow_loader(2, 400);
    let mut batches = l.train_epoch(0, 0);
    batches.next().expect("a batch").expect("loads");
    let before = count.load(Ordering::SeqCst);
    // Four batches of 400 images are queued: 1.6 seconds of work for two workers.
    drop(batches);
    let after = count.load(Ordering::SeqCst);
    assert!(after <= before + 100, "{before} {after}");
    // The workers are gone: nobody but this test and the loader's own closure holds the counter.
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(count.load(Ordering::SeqCst), after);
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
    let shard = Shard {
        index: 2,
        count: 2,
        lanes: 4,
    };
    assert!(error(LoaderConfig { shard, ..base() }).contains("shard"));
}
