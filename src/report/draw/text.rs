//! Text as masks that are drawn once and stamped often.

use crate::report::raster::{Rgba, escape, fitted, render, text_width};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Opacity of one line of text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mask {
    pub width: usize,
    pub height: usize,
    /// `[height, width]`
    pub alpha: Vec<u8>,
    /// Pixels from the beginning of this text to that of the next.
    pub advance: usize,
}

impl Mask {
    /// Pixels of the mask before the text begins.
    pub const MARGIN: usize = 1;
}

/// Texts of one font at any size. Names and digits are kept, so that hundreds of boxes cost a few drawn texts; may be used
/// from any thread.
#[derive(Default)]
pub struct Lettering {
    kept: Mutex<HashMap<(String, u32), Arc<Mask>>>,
}

/// More texts than the names of any data set at a few sizes: then all are drawn anew.
const MOST_KEPT: usize = 20_000;

impl Lettering {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Height of a line with a little space above and below.
    pub(super) fn height(font: u32) -> usize {
        (font * 5).div_ceil(4) as usize
    }

    /// A class's name, cut to `room` pixels.
    pub(super) fn name(&self, name: &str, font: u32, room: usize) -> Arc<Mask> {
        self.kept(&fitted(name, font as f32, room as f32), font)
    }

    /// ` 0.87`, each character of its own.
    pub(super) fn score(&self, score: f32, font: u32) -> Vec<Arc<Mask>> {
        let text = format!(" {score:.2}");
        let mut buffer = [0; 4];
        text.chars()
            .map(|c| self.kept(c.encode_utf8(&mut buffer), font))
            .collect()
    }

    /// A text that is shown once, cut to `room` pixels.
    pub(super) fn line(&self, text: &str, font: u32, room: usize) -> Mask {
        drawn(&fitted(text, font as f32, room as f32), font)
    }

    fn kept(&self, text: &str, font: u32) -> Arc<Mask> {
        let key = (text.to_owned(), font);
        // what a thread that panicked left behind is whole
        let lock = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mask) = lock().get(&key) {
            return mask.clone();
        }
        // not under the lock: two threads may draw the same text, with the same result
        let mask = Arc::new(drawn(text, font));
        let mut kept = lock();
        if kept.len() >= MOST_KEPT {
            kept.clear();
        }
        kept.insert(key, mask.clone());
        mask
    }
}

fn drawn(text: &str, font: u32) -> Mask {
    let advance = text_width(text, font as f32).ceil() as usize;
    let (width, height) = (advance + 2 * Mask::MARGIN, Lettering::height(font));
    let svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"><text x="{}" y="{font}" font-size="{font}" fill="#fff" xml:space="preserve">{}</text></svg>"##,
        Mask::MARGIN,
        escape(text)
    );
    // A text too long to be drawn is one that is not shown: names are cut to the image before.
    let alpha = render(&svg, width as u32, height as u32).map_or_else(
        |_| vec![0; width * height],
        |Rgba { pixels, .. }| pixels.chunks_exact(4).map(|p| p[3]).collect(),
    );
    Mask {
        width,
        height,
        alpha,
        advance,
    }
}
