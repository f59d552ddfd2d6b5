//! Mosaic: four images around a random point of a canvas of twice the size (YOLOv4, Bochkovskiy et al. 2020).

use super::LabelBox;
use super::decode::Rgb;
use super::geometry::{area, clip};
use super::warp::FILL;

/// An image at its place in the pipeline: resized so that its long side is the image size, with its boxes at that size.
pub struct Piece<'a> {
    pub image: &'a Rgb,
    pub labels: Vec<LabelBox>,
}

/// Puts four pieces on a grey canvas of `2 side` x `2 side`: the first ends with its lower right corner at `centre`
/// (x, y), the second begins to its right, the third lies below the first, the fourth below the second. What sticks out
/// of the canvas is cut off, boxes are clipped to it, and boxes of which nothing is left are dropped.
///
/// `buffer` is reused for the canvas's pixels.
pub fn compose(
    pieces: &[Piece; 4],
    side: usize,
    centre: [usize; 2],
    buffer: Vec<u8>,
) -> (Rgb, Vec<LabelBox>) {
    let full = 2 * side;
    let mut canvas = grey(full, buffer);
    let mut labels = Vec::new();
    for (i, piece) in pieces.iter().enumerate() {
        let left = if i % 2 == 0 {
            centre[0] as i64 - piece.image.width as i64
        } else {
            centre[0] as i64
        };
        let top = if i < 2 {
            centre[1] as i64 - piece.image.height as i64
        } else {
            centre[1] as i64
        };
        paste(&mut canvas, piece.image, left, top);
        labels.extend(shifted(&piece.labels, left, top, full));
    }
    (canvas, labels)
}

/// A grey square canvas in a reused buffer.
fn grey(side: usize, mut buffer: Vec<u8>) -> Rgb {
    buffer.clear();
    buffer.resize(side * side * 3, FILL);
    Rgb {
        width: side,
        height: side,
        pixels: buffer,
    }
}

/// Letterbox of one piece to `side` x `side`: the same as a mosaic's output, for images without mosaic.
pub fn letterbox(piece: &Piece, side: usize, buffer: Vec<u8>) -> (Rgb, Vec<LabelBox>) {
    let mut canvas = grey(side, buffer);
    let left = (side.saturating_sub(piece.image.width) / 2) as i64;
    let top = (side.saturating_sub(piece.image.height) / 2) as i64;
    paste(&mut canvas, piece.image, left, top);
    let labels = shifted(&piece.labels, left, top, side).collect();
    (canvas, labels)
}

fn shifted(
    labels: &[LabelBox],
    left: i64,
    top: i64,
    side: usize,
) -> impl Iterator<Item = LabelBox> {
    labels.iter().filter_map(move |label| {
        let offset = [left as f64, top as f64];
        let moved = std::array::from_fn(|k| f64::from(label.xyxy[k]) + offset[k % 2]);
        let clipped = clip(moved, side as f64, side as f64);
        (area(clipped) > 0.0).then(|| LabelBox {
            class: label.class,
            xyxy: clipped.map(|v| v as f32),
        })
    })
}

fn paste(canvas: &mut Rgb, image: &Rgb, left: i64, top: i64) {
    let columns = visible(left, image.width, canvas.width);
    for y in visible(top, image.height, canvas.height) {
        let to = (y * canvas.width + columns.start) * 3;
        let from =
            ((y as i64 - top) as usize * image.width + (columns.start as i64 - left) as usize) * 3;
        let length = columns.len() * 3;
        canvas.pixels[to..to + length].copy_from_slice(&image.pixels[from..from + length]);
    }
}

/// The part of `start..start + length` that lies in `0..limit`.
fn visible(start: i64, length: usize, limit: usize) -> std::ops::Range<usize> {
    let clamp = |v: i64| v.clamp(0, limit as i64) as usize;
    clamp(start)..clamp(start + length as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A black image with one rectangle in the given colour, and its box.
    fn rectangle(width: usize, height: usize, at: [usize; 4], colour: u8) -> (Rgb, LabelBox) {
        let mut image = Rgb {
            width,
            height,
            pixels: vec![0; width * height * 3],
        };
        for y in at[1]..at[3] {
            image.pixels[(y * width + at[0]) * 3..(y * width + at[2]) * 3].fill(colour);
        }
        let label = LabelBox {
            class: colour as usize,
            xyxy: at.map(|v| v as f32),
        };
        (image, label)
    }

    fn bounds(image: &Rgb, colour: u8) -> Option<[f32; 4]> {
        let mut found: Option<[usize; 4]> = None;
        for (i, pixel) in image.pixels.chunks_exact(3).enumerate() {
            if pixel == [colour; 3] {
                let (x, y) = (i % image.width, i / image.width);
                let [a, b, c, d] = found.unwrap_or([x, y, x, y]);
                found = Some([a.min(x), b.min(y), c.max(x + 1), d.max(y + 1)]);
            }
        }
        found.map(|b| b.map(|v| v as f32))
    }

    proptest! {
        #[test]
        fn boxes_of_a_mosaic_are_the_bounds_of_their_rectangles(
            centre in [32usize..96, 32usize..96],
            shapes in proptest::collection::vec((10usize..=64, 10usize..=64, 0usize..5, 0usize..5), 4),
        ) {
            let drawn: Vec<(Rgb, LabelBox)> = shapes
                .iter()
                .enumerate()
                .map(|(i, &(w, h, x, y))| rectangle(w, h, [x, y, w - 2, h - 1], 10 + i as u8))
                .collect();
            let pieces: [Piece; 4] = std::array::from_fn(|i| Piece { image: &drawn[i].0, labels: vec![drawn[i].1] });
            let (canvas, labels) = compose(&pieces, 64, centre, Vec::new());
            prop_assert_eq!((canvas.width, canvas.height), (128, 128));
            for colour in 10u8..14 {
                let label = labels.iter().find(|l| l.class == colour as usize);
                prop_assert_eq!(label.map(|l| l.xyxy), bounds(&canvas, colour));
            }
        }
    }

    #[test]
    fn a_letterbox_centres_and_a_dirty_buffer_does_not_show() {
        let (image, label) = rectangle(64, 32, [4, 6, 20, 30], 50);
        let piece = Piece {
            image: &image,
            labels: vec![label],
        };
        let (canvas, labels) = letterbox(&piece, 64, vec![1; 10]);
        assert_eq!(labels[0].xyxy, [4.0, 22.0, 20.0, 46.0]);
        assert_eq!(bounds(&canvas, 50), Some(labels[0].xyxy));
        assert_eq!(canvas.pixels[0], FILL);
    }
}
