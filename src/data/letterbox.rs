//! Fitting images into a given shape: resizing, padding with grey, rectangular validation batches.

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};

use super::batch::Letterbox;
use super::decode::Rgb;
use super::sampler::STRIDE;
use super::warp::FILL;

/// Width and height with the aspect ratio of the given ones whose long side is `long_side`; the short side is rounded
/// and at least 1.
pub fn fitted(width: usize, height: usize, long_side: usize) -> (usize, usize) {
    let long = width.max(height).max(1);
    let fit = |side: usize| ((side * long_side + long / 2) / long).max(1);
    (fit(width), fit(height))
}

/// Resizes with a triangle filter: bilinear interpolation that averages over what it leaves out when it shrinks.
/// Equal sizes copy. Fails only on buffers whose length does not match their size.
pub fn resize(image: &Rgb, width: usize, height: usize) -> Result<Rgb, String> {
    let mut pixels = vec![0; width * height * 3];
    if (width, height) == (image.width, image.height) {
        pixels.copy_from_slice(&image.pixels);
    } else {
        resize_into(
            &image.pixels,
            (image.width, image.height),
            &mut pixels,
            (width, height),
        )?;
    }
    Ok(Rgb {
        width,
        height,
        pixels,
    })
}

fn resize_into(
    from: &[u8],
    (from_width, from_height): (usize, usize),
    to: &mut [u8],
    (width, height): (usize, usize),
) -> Result<(), String> {
    let source = ImageRef::new(from_width as u32, from_height as u32, from, PixelType::U8x3)
        .map_err(|e| e.to_string())?;
    let mut target = Image::from_slice_u8(width as u32, height as u32, to, PixelType::U8x3)
        .map_err(|e| e.to_string())?;
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
    Resizer::new()
        .resize(&source, &mut target, &options)
        .map_err(|e| e.to_string())
}

/// Puts an image into the middle of a grey one of `width` x `height` (the odd pixel goes to the right and below);
/// what does not fit is cut off. Returns the pixels and the pads left and above.
pub fn pad(image: &Rgb, width: usize, height: usize) -> (Vec<u8>, [usize; 2]) {
    let mut pixels = vec![FILL; width * height * 3];
    let left = width.saturating_sub(image.width) / 2;
    let top = height.saturating_sub(image.height) / 2;
    let visible = image.width.min(width) * 3;
    for y in 0..image.height.min(height) {
        let to = ((top + y) * width + left) * 3;
        let from = y * image.width * 3;
        pixels[to..to + visible].copy_from_slice(&image.pixels[from..from + visible]);
    }
    (pixels, [left, top])
}

/// How an original of `original` pixels lies, resized to `resized`, behind pads left and above.
pub fn placement(original: (usize, usize), resized: (usize, usize), pad: [usize; 2]) -> Letterbox {
    Letterbox {
        ratio: [
            resized.0 as f32 / original.0.max(1) as f32,
            resized.1 as f32 / original.1.max(1) as f32,
        ],
        pad: pad.map(|p| p as f32),
    }
}

/// One validation batch: its shape and the images in it, as indices of the split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidationBatch {
    pub width: usize,
    pub height: usize,
    pub images: Vec<usize>,
}

/// The validation batches of images with the given (width, height): as they come in squares of `imgsz`, or, with
/// `rect`, sorted by aspect ratio (ties by index) in the smallest shape that holds the batch: per axis
/// `ceil(share * imgsz / 32 + 0.5) * 32`, with a share of 1 for the longer axis. Images keep the size at which their
/// long side is `imgsz`; they are not enlarged into that half stride of margin.
pub fn validation_batches(
    sizes: &[(u32, u32)],
    imgsz: usize,
    batch: usize,
    rect: bool,
) -> Vec<ValidationBatch> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    if !rect {
        return order
            .chunks(batch.max(1))
            .map(|images| ValidationBatch {
                width: imgsz,
                height: imgsz,
                images: images.to_vec(),
            })
            .collect();
    }
    // height / width as exact fractions: a/b < c/d exactly where a d < c b. The sort is stable: ties by index.
    order.sort_by(|&i, &j| {
        let ((wi, hi), (wj, hj)) = (sizes[i], sizes[j]);
        (u64::from(hi) * u64::from(wj)).cmp(&(u64::from(hj) * u64::from(wi)))
    });
    order
        .chunks(batch.max(1))
        .map(|images| {
            let aspect = |i: usize| f64::from(sizes[i].1) / f64::from(sizes[i].0.max(1));
            let lowest = aspect(images[0]);
            let highest = aspect(images[images.len() - 1]);
            let (x, y) = if highest < 1.0 {
                (1.0, highest)
            } else if lowest > 1.0 {
                (1.0 / lowest, 1.0)
            } else {
                (1.0, 1.0)
            };
            let side =
                |share: f64| (share * imgsz as f64 / STRIDE as f64 + 0.5).ceil() as usize * STRIDE;
            ValidationBatch {
                width: side(x),
                height: side(y),
                images: images.to_vec(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(width: usize, height: usize, value: u8) -> Rgb {
        Rgb {
            width,
            height,
            pixels: vec![value; width * height * 3],
        }
    }

    #[test]
    fn the_long_side_is_fitted_and_the_short_one_rounded() {
        assert_eq!(fitted(640, 480, 320), (320, 240));
        assert_eq!(fitted(100, 333, 640), (192, 640));
        assert_eq!(fitted(5000, 2, 320), (320, 1));
    }

    #[test]
    fn resizing_keeps_a_plain_image_and_halving_averages() {
        let plain = resize(&filled(64, 48, 77), 31, 50).expect("valid");
        assert!(plain.pixels.iter().all(|&v| v == 77));
        // A step edge at an even place, halved: far from it the two plain values.
        let mut step = filled(64, 8, 0);
        for row in step.pixels.chunks_exact_mut(64 * 3) {
            row[32 * 3..].fill(200);
        }
        let half = resize(&step, 32, 4).expect("valid");
        assert_eq!(half.pixels[10 * 3], 0);
        assert_eq!(half.pixels[20 * 3], 200);
    }

    #[test]
    fn padding_is_grey_and_centred() {
        let (pixels, pads) = pad(&filled(4, 2, 9), 7, 6);
        assert_eq!(pads, [1, 2]);
        for (i, pixel) in pixels.chunks_exact(3).enumerate() {
            let (x, y) = (i % 7, i / 7);
            let inside = (1..5).contains(&x) && (2..4).contains(&y);
            assert_eq!(pixel, if inside { [9; 3] } else { [FILL; 3] });
        }
    }

    #[test]
    fn rectangular_batches_are_sorted_and_as_small_as_their_images_allow() {
        let sizes = [
            (640, 480),
            (480, 640),
            (640, 320),
            (500, 500),
            (640, 481),
            (300, 600),
        ];
        let batches = validation_batches(&sizes, 320, 2, true);
        let images: Vec<usize> = batches.iter().flat_map(|b| b.images.clone()).collect();
        assert_eq!(images, [2, 0, 4, 3, 1, 5]);
        // 480/640 * 10 + .5 = 8 -> 256; a full axis: ceil(10.5) * 32 = 352.
        assert_eq!((batches[0].width, batches[0].height), (352, 256));
        assert_eq!((batches[1].width, batches[1].height), (352, 352));
        assert_eq!((batches[2].width, batches[2].height), (256, 352));
        let square = validation_batches(&sizes, 320, 4, false);
        assert_eq!(square[1].images, [4, 5]);
        assert!(square.iter().all(|b| (b.width, b.height) == (320, 320)));
    }

    proptest! {
        #[test]
        fn an_image_fits_its_batch_and_boxes_go_there_and_back(
            sizes in proptest::collection::vec((1u32..2000, 1u32..2000), 1..9),
            rect: bool, batch in 1usize..5, corner in [0.0f32..0.5, 0.0f32..0.5], size in [0.1f32..0.5, 0.1f32..0.5],
        ) {
            for shape in validation_batches(&sizes, 320, batch, rect) {
                prop_assert!(shape.width % 32 == 0 && shape.height % 32 == 0);
                for i in shape.images {
                    let (w, h) = (sizes[i].0 as usize, sizes[i].1 as usize);
                    let (new_w, new_h) = fitted(w, h, 320);
                    prop_assert!(new_w <= shape.width && new_h <= shape.height);
                    let letterbox = placement(
                        (w, h), (new_w, new_h), [(shape.width - new_w) / 2, (shape.height - new_h) / 2],
                    );
                    let (fw, fh) = (w as f32, h as f32);
                    let original = [
                        corner[0] * fw, corner[1] * fh, (corner[0] + size[0]) * fw, (corner[1] + size[1]) * fh,
                    ];
                    let boxed = letterbox.to_letterboxed(original);
                    prop_assert!(boxed[0] >= 0.0 && boxed[1] >= 0.0);
                    prop_assert!(boxed[2] <= shape.width as f32 && boxed[3] <= shape.height as f32);
                    let back = letterbox.to_original(boxed, sizes[i].0, sizes[i].1);
                    for (a, b) in back.iter().zip(original) {
                        prop_assert!((a - b).abs() < 0.01 * (1.0 + fw.max(fh) / 320.0));
                    }
                    // What lies in the padding comes back clipped.
                    let clipped = letterbox.to_original([-50.0, -50.0, 9e3, 9e3], sizes[i].0, sizes[i].1);
                    prop_assert_eq!(clipped, [0.0, 0.0, fw, fh]);
                }
            }
        }
    }
}
