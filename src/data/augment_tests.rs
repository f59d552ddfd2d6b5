use super::*;
use crate::data::warp::FILL;
use proptest::prelude::*;
use std::convert::Infallible;
use std::sync::Arc;

/// Black images of different sizes, long side 64, each with one rectangle in a grey of its own.
struct Drawn;

const SIDE: usize = 64;

fn grey_of(position: usize) -> u8 {
    (130 + position % 100) as u8
}

impl Source for Drawn {
    type Error = Infallible;

    fn image(&self, position: usize) -> Result<(Arc<Rgb>, Vec<LabelBox>), Infallible> {
        let (width, height) = [(64, 48), (40, 64), (64, 64), (64, 20)][position % 4];
        let [x1, y1, x2, y2] = [width / 8, height / 4, width * 3 / 4, height * 7 / 8];
        let mut pixels = vec![0; width * height * 3];
        for y in y1..y2 {
            pixels[(y * width + x1) * 3..(y * width + x2) * 3].fill(grey_of(position));
        }
        let label = LabelBox {
            class: position,
            xyxy: [x1, y1, x2, y2].map(|v| v as f32),
        };
        let image = Rgb {
            width,
            height,
            pixels,
        };
        Ok((Arc::new(image), vec![label]))
    }
}

fn sample(config: &AugmentConfig, position: usize) -> Picture {
    let augmenter = Augmenter {
        config,
        source: &Drawn,
        images: 100,
        side: SIDE,
    };
    let counter = Counter {
        seed: 1,
        epoch: 2,
        position,
    };
    match augmenter.sample(counter, &mut Vec::new()) {
        Ok(picture) => picture,
        Err(never) => match never {},
    }
}

#[test]
fn without_augmentation_a_sample_is_its_letterboxed_image() {
    let picture = sample(&AugmentConfig::NONE, 0);
    // 64 x 48 in 64 x 64: eight grey rows above and below.
    assert!(picture.pixels[..8 * SIDE * 3].iter().all(|&v| v == FILL));
    assert_eq!(picture.labels[0].xyxy, [8.0, 20.0, 48.0, 50.0]);
    for (i, pixel) in picture.pixels.chunks_exact(3).enumerate() {
        let (x, y) = (i % SIDE, i / SIDE);
        let inside = (8..48).contains(&x) && (20..50).contains(&y);
        assert_eq!(pixel[0] == grey_of(0), inside);
    }
}

#[test]
fn flipping_twice_is_the_identity_and_once_mirrors() {
    let before = sample(&AugmentConfig::default(), 5);
    for flip in [flip_horizontally, flip_vertically] {
        let mut picture = before.clone();
        flip(&mut picture, SIDE);
        assert_ne!(picture.pixels, before.pixels);
        flip(&mut picture, SIDE);
        assert_eq!(picture.pixels, before.pixels);
        for (a, b) in picture.labels.iter().zip(&before.labels) {
            assert!(a.xyxy.iter().zip(b.xyxy).all(|(a, b)| (a - b).abs() < 1e-4));
        }
    }
    let plain = sample(&AugmentConfig::NONE, 0);
    let always = AugmentConfig {
        fliplr: 1.0,
        flipud: 1.0,
        ..AugmentConfig::NONE
    };
    let flipped = sample(&always, 0);
    assert_eq!(flipped.labels[0].xyxy, [16.0, 14.0, 56.0, 44.0]);
    let reversed: Vec<[u8; 3]> = plain.pixels.as_chunks().0.iter().rev().copied().collect();
    assert_eq!(flipped.pixels.as_chunks().0, reversed);
}

#[test]
fn an_odd_side_flips_too() {
    let mut picture = Picture {
        pixels: (0..27).collect(),
        labels: vec![],
    };
    flip_vertically(&mut picture, 3);
    assert_eq!(picture.pixels[..9], [18, 19, 20, 21, 22, 23, 24, 25, 26]);
    assert_eq!(picture.pixels[9..18], [9, 10, 11, 12, 13, 14, 15, 16, 17]);
}

#[test]
fn turning_one_augmentation_on_leaves_the_draws_of_the_others() {
    let geometry = AugmentConfig {
        hsv_h: 0.0,
        hsv_s: 0.0,
        hsv_v: 0.0,
        ..AugmentConfig::default()
    };
    for position in 0..20 {
        assert_eq!(
            sample(&geometry, position).labels,
            sample(&AugmentConfig::default(), position).labels
        );
    }
}

fn configs() -> impl Strategy<Value = AugmentConfig> {
    (
        [
            0.0..1.0f64,
            0.0..1.0f64,
            0.0..1.0f64,
            0.0..1.0f64,
            0.0..1.0f64,
        ],
        (0.0..180.0f64, 0.0..0.5f64, 0.1..1.0f64, 1.0..2.0f64),
        (0.0..40.0f64, 0.0..0.01f64),
    )
        .prop_map(
            |(p, (degrees, translate, low, high), (shear, perspective))| AugmentConfig {
                degrees,
                translate,
                scale: (low, high),
                shear,
                perspective,
                flipud: p[0],
                fliplr: p[1],
                mosaic: p[2],
                mixup: p[3],
                cutmix: p[4],
                ..AugmentConfig::default()
            },
        )
}

proptest! {
    #[test]
    fn boxes_of_any_sample_lie_inside_and_are_large_enough(config in configs(), position in 0usize..100) {
        let picture = sample(&config, position);
        prop_assert_eq!(picture.pixels.len(), SIDE * SIDE * 3);
        for label in picture.labels {
            let [x1, y1, x2, y2] = label.xyxy;
            let side = SIDE as f32;
            prop_assert!(0.0 <= x1 && x2 <= side && 0.0 <= y1 && y2 <= side, "{:?}", label);
            prop_assert!(x2 - x1 > 1.999 && y2 - y1 > 1.999, "{:?}", label);
        }
    }

    #[test]
    fn boxes_of_a_mosaic_sample_are_the_bounds_of_their_rectangles(
        position in 0usize..100, low in 0.5..1.0f64, high in 1.0..1.5f64,
    ) {
        let config = AugmentConfig {
            mosaic: 1.0, flipud: 0.5, fliplr: 0.5, translate: 0.1, scale: (low, high), ..AugmentConfig::NONE
        };
        let picture = sample(&config, position);
        for label in &picture.labels {
            if picture.labels.iter().filter(|other| other.class == label.class).count() > 1 {
                continue;
            }
            // Pixels within the box and two pixels around it that are mostly this rectangle's.
            let grey = i32::from(grey_of(label.class));
            let mut bounds = [SIDE, SIDE, 0, 0];
            for (i, pixel) in picture.pixels.chunks_exact(3).enumerate() {
                let (x, y) = (i % SIDE, i / SIDE);
                let near = x as f32 > label.xyxy[0] - 3.0 && (x as f32) < label.xyxy[2] + 2.0
                    && y as f32 > label.xyxy[1] - 3.0 && (y as f32) < label.xyxy[3] + 2.0;
                if near && (i32::from(pixel[0]) - grey).abs() <= 1 {
                    bounds = [bounds[0].min(x), bounds[1].min(y), bounds[2].max(x + 1), bounds[3].max(y + 1)];
                }
            }
            for (a, b) in label.xyxy.iter().zip(bounds) {
                prop_assert!((a - b as f32).abs() <= 1.5, "{:?} {:?}", label, bounds);
            }
        }
    }
}
