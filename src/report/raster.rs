//! SVG to pixels, with the one embedded font: the same picture on every machine, whatever fonts it has.

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{self, fontdb};
use skrifa::MetadataProvider;
use skrifa::instance::{LocationRef, Size};
use std::io::Cursor;
use std::sync::{Arc, OnceLock};

/// DejaVu Sans; `assets/README.md` has its origin and licence.
static FONT: &[u8] = include_bytes!("../../assets/font/DejaVuSans.ttf");

/// The largest side of a picture, in pixels: a file that asks for more is a mistake, not a plot.
pub const MAX_SIDE: u32 = 16_384;

/// Why an SVG gave no picture.
#[derive(Debug, thiserror::Error)]
pub enum RasterError {
    #[error("a picture of {width}x{height} pixels: each side must be from 1 to {MAX_SIDE}")]
    Size { width: u32, height: u32 },
    #[error("not an SVG that can be drawn: {0}")]
    Svg(#[from] usvg::Error),
    #[error("cannot encode a picture of {width}x{height} pixels as {format}: {source}")]
    Encode {
        format: &'static str,
        width: u32,
        height: u32,
        source: image::ImageError,
    },
}

/// Pixels: four bytes each (red, green, blue, alpha), colours not multiplied by alpha, rows from the top.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rgba {
    pub width: u32,
    pub height: u32,
    /// `4 * width * height` bytes.
    pub pixels: Vec<u8>,
}

/// Draws `svg`, fitted into `width` x `height` pixels from its top left corner. What it leaves free is transparent.
///
/// All text is set in the embedded font, whatever `font-family` says; characters without a glyph show as a box.
///
/// # Errors
/// [`RasterError::Size`], [`RasterError::Svg`].
pub fn render(svg: &str, width: u32, height: u32) -> Result<Rgba, RasterError> {
    let sides = 1..=MAX_SIDE;
    if !sides.contains(&width) || !sides.contains(&height) {
        return Err(RasterError::Size { width, height });
    }
    let tree = usvg::Tree::from_str(svg, &options())?;
    let size = tree.size();
    let scale = (width as f32 / size.width()).min(height as f32 / size.height());
    let mut pixmap = Pixmap::new(width, height).ok_or(RasterError::Size { width, height })?;
    resvg::render(
        &tree,
        Transform::from_scale(scale, scale),
        &mut pixmap.as_mut(),
    );
    Ok(Rgba {
        width,
        height,
        pixels: pixmap.take_demultiplied(),
    })
}

impl Rgba {
    /// Draws this picture over `rgb`, an image of the same size with three bytes a pixel.
    ///
    /// # Panics
    /// Where the sizes differ.
    pub fn over(&self, rgb: &mut [u8]) {
        assert_eq!(
            rgb.len() / 3 * 4,
            self.pixels.len(),
            "an image of the same size"
        );
        for (under, above) in rgb.chunks_exact_mut(3).zip(self.pixels.chunks_exact(4)) {
            let alpha = u32::from(above[3]);
            for (u, &a) in under.iter_mut().zip(above) {
                let mixed = u32::from(a) * alpha + u32::from(*u) * (255 - alpha);
                *u = ((mixed + 127) / 255) as u8;
            }
        }
    }

    /// On white, three bytes a pixel.
    #[must_use]
    pub fn on_white(&self) -> Vec<u8> {
        let mut rgb = vec![255; self.pixels.len() / 4 * 3];
        self.over(&mut rgb);
        rgb
    }

    /// A PNG file, on white.
    ///
    /// # Errors
    /// [`RasterError::Encode`].
    pub fn to_png(&self) -> Result<Vec<u8>, RasterError> {
        let mut file = Cursor::new(Vec::new());
        let encoder = image::codecs::png::PngEncoder::new(&mut file);
        self.encode("PNG", encoder)?;
        Ok(file.into_inner())
    }

    /// A JPEG file, on white; `quality` from 1 to 100.
    ///
    /// # Errors
    /// [`RasterError::Encode`].
    pub fn to_jpeg(&self, quality: u8) -> Result<Vec<u8>, RasterError> {
        let mut file = Cursor::new(Vec::new());
        let encoder = image::codecs::jpeg::JpegEncoder::new_with_quality(&mut file, quality);
        self.encode("JPEG", encoder)?;
        Ok(file.into_inner())
    }

    fn encode(
        &self,
        format: &'static str,
        encoder: impl image::ImageEncoder,
    ) -> Result<(), RasterError> {
        let (width, height) = (self.width, self.height);
        encoder
            .write_image(
                &self.on_white(),
                width,
                height,
                image::ExtendedColorType::Rgb8,
            )
            .map_err(|source| RasterError::Encode {
                format,
                width,
                height,
                source,
            })
    }
}

/// Width of one line of text at a font size, in the unit of `size`; without kerning and ligatures, so rather too wide.
#[must_use]
pub fn text_width(text: &str, size: f32) -> f32 {
    let Ok(font) = skrifa::FontRef::new(FONT) else {
        return 0.0; // a test reads the embedded font
    };
    let characters = font.charmap();
    let metrics = font.glyph_metrics(Size::new(size), LocationRef::default());
    text.chars()
        .map(|c| {
            let glyph = characters.map(c).unwrap_or_default();
            metrics.advance_width(glyph).unwrap_or(0.0)
        })
        .sum()
}

/// `text` as a part of an XML text or attribute: markup is escaped, white space is a space, and what XML cannot hold is
/// U+FFFD.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' | '\r' => out.push(' '),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// The longest beginning of `text` that is at most `width` wide at font size `size`, with an ellipsis where it was cut;
/// not escaped.
#[must_use]
pub fn fitted(text: &str, size: f32, width: f32) -> String {
    // No width for a name is decided beyond this many characters; it also bounds the work for absurd names.
    const LONGEST: usize = 500;
    let start: String = text.chars().take(LONGEST).collect();
    if start.len() == text.len() && text_width(text, size) <= width {
        return start;
    }
    let room = width - text_width("…", size);
    let mut used = 0.0;
    let mut cut: String = start
        .chars()
        .take_while(|c| {
            used += text_width(c.encode_utf8(&mut [0; 4]), size);
            used <= room
        })
        .collect();
    cut.truncate(cut.trim_end().len());
    cut.push('…');
    cut
}

fn options() -> usvg::Options<'static> {
    static FONTS: OnceLock<Arc<fontdb::Database>> = OnceLock::new();
    let fonts = FONTS.get_or_init(|| {
        let mut fonts = fontdb::Database::new();
        fonts.load_font_source(fontdb::Source::Binary(Arc::new(FONT)));
        Arc::new(fonts)
    });
    let any_font: usvg::FontSelectionFn<'static> =
        Box::new(|_, fonts| fonts.faces().next().map(|face| face.id));
    let no_other: usvg::FallbackSelectionFn<'static> = Box::new(|_, _, _| None);
    usvg::Options {
        fontdb: fonts.clone(),
        font_resolver: usvg::FontResolver {
            select_font: any_font,
            select_fallback: no_other,
        },
        // Pictures are never read from files or addresses that an SVG names.
        image_href_resolver: usvg::ImageHrefResolver {
            resolve_data: Box::new(|_, _, _| None),
            resolve_string: Box::new(|_, _| None),
        },
        ..usvg::Options::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_svg(text: &str) -> String {
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="400" height="40"><text x="4" y="28" font-size="20">{}</text></svg>"#,
            escape(text)
        )
    }

    /// Columns with ink.
    fn inked(picture: &Rgba) -> Vec<usize> {
        let row = picture.width as usize * 4;
        (0..picture.width as usize)
            .filter(|x| picture.pixels.chunks(row).any(|r| r[x * 4 + 3] > 0))
            .collect()
    }

    #[test]
    fn shapes_are_where_and_what_the_svg_says() {
        let svg = r##"<svg xmlns="http://www.w3.org/2000/svg" width="4" height="2"><rect x="2" width="2" height="2" fill="#ff0000"/></svg>"##;
        let p = render(svg, 8, 4).unwrap();
        assert_eq!((p.width, p.height, p.pixels.len()), (8, 4, 128));
        for (i, pixel) in p.pixels.chunks(4).enumerate() {
            let expected = if i % 8 < 4 { [0; 4] } else { [255, 0, 0, 255] };
            assert_eq!(pixel, expected, "pixel {i}");
        }
        let mut under = vec![9; 8 * 4 * 3];
        p.over(&mut under);
        assert_eq!(under[..3], [9, 9, 9]);
        assert_eq!(under[7 * 3..8 * 3], [255, 0, 0]);
        assert_eq!(p.on_white()[..3], [255; 3]);
    }

    #[test]
    fn half_transparent_pixels_mix() {
        let svg = r##"<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"><rect width="1" height="1" fill="#ff0000" fill-opacity="0.5"/></svg>"##;
        let mut under = vec![0, 0, 200];
        render(svg, 1, 1).unwrap().over(&mut under);
        assert!((i32::from(under[0]) - 128).abs() <= 1, "{under:?}");
        assert!((i32::from(under[2]) - 100).abs() <= 1, "{under:?}");
    }

    #[test]
    fn text_is_as_wide_as_its_measure() {
        for text in ["mAP50-95", "nnnnnnnnnnnn", "Größe", "классы", "مرحبا"] {
            let columns = inked(&render(&text_svg(text), 400, 40).unwrap());
            let (first, last) = (columns[0], columns[columns.len() - 1]);
            let (drawn, measured) = ((last - first) as f32, text_width(text, 20.0));
            // Arabic letters join, so that their measure is only an upper bound.
            let low = if text.is_ascii() {
                measured - 5.0
            } else {
                measured * 0.4
            };
            assert!(
                (low..=measured + 1.0).contains(&drawn),
                "{text}: {drawn} drawn, {measured} measured"
            );
        }
        assert_eq!(text_width("", 20.0), 0.0);
    }

    #[test]
    fn characters_that_the_font_lacks_show_as_boxes_and_nasty_text_draws() {
        let boxes = inked(&render(&text_svg("细胞"), 400, 40).unwrap());
        assert!(boxes.len() > 12, "{} columns", boxes.len());
        for text in [
            "<&\"'>]]>",
            "😀👩‍👩‍👧‍👦",
            "",
            "\0\u{1}\u{fffe}\n\t",
            "\u{202e}abc",
            "a\u{301}\u{302}\u{303}",
            &"x".repeat(2000),
            "\u{10ffff}",
        ] {
            render(&text_svg(text), 400, 40).unwrap_or_else(|e| panic!("{text:?}: {e}"));
        }
    }

    #[test]
    fn bad_sizes_and_bad_files_are_errors() {
        let good = text_svg("a");
        for (w, h) in [(0, 1), (1, 0), (MAX_SIDE + 1, 1)] {
            assert!(matches!(render(&good, w, h), Err(RasterError::Size { .. })));
        }
        for svg in ["", "<svg", "<html/>"] {
            assert!(
                matches!(render(svg, 9, 9), Err(RasterError::Svg(_))),
                "{svg}"
            );
        }
    }

    #[test]
    fn files_decode_to_the_picture_on_white() {
        let p = render(&text_svg("Hello"), 400, 40).unwrap();
        let png = image::load_from_memory(&p.to_png().unwrap()).unwrap();
        assert_eq!(png.to_rgb8().into_raw(), p.on_white());
        let jpeg = image::load_from_memory(&p.to_jpeg(90).unwrap()).unwrap();
        assert_eq!((jpeg.width(), jpeg.height()), (400, 40));
    }

    proptest::proptest! {
        #[test]
        fn cut_text_fits_and_text_that_fits_is_not_cut(text in ".{0,40}", width in 20.0_f32..300.0) {
            let cut = fitted(&text, 12.0, width);
            if text_width(&text, 12.0) <= width {
                proptest::prop_assert_eq!(cut, text);
            } else {
                proptest::prop_assert!(text_width(&cut, 12.0) <= width, "{}", cut);
                proptest::prop_assert!(cut.ends_with('…'));
            }
        }

        #[test]
        fn escaped_text_is_well_formed_and_reads_back(text in "\\PC{0,40}") {
            let xml = format!("<a b=\"{0}\">{0}</a>", escape(&text));
            let read = roxmltree(&xml);
            proptest::prop_assert_eq!(read, text);
        }
    }

    fn roxmltree(xml: &str) -> String {
        let document = usvg::roxmltree::Document::parse(xml).unwrap();
        document.root_element().text().unwrap_or("").to_string()
    }
}
