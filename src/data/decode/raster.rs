//! WebP, BMP, GIF, QOI and PNM, all through the decoders of the `image` crate.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek};

use image::codecs::bmp::BmpDecoder;
use image::codecs::gif::GifDecoder;
use image::codecs::pnm::{PnmDecoder, PnmSubtype, SampleEncoding};
use image::codecs::qoi::QoiDecoder;
use image::codecs::webp::WebPDecoder;
use image::metadata::Orientation;
use image::{ImageDecoder, ImageError, ImageResult, Limits};

use super::orientation::turn_upright;
use super::samples::to_rgb;
use super::sniff::Format;
use super::{DecodeError, Header, MAX_PIXELS, Place, Rgb, ends, size};

/// Most bytes of a sample buffer besides the picture's own: a frame of a GIF before it is put into its place.
const MAX_EXTRA_BYTES: u64 = MAX_PIXELS * 4;

pub(super) fn probe(
    place: &Place,
    file: &mut BufReader<File>,
    format: Format,
) -> Result<Header, DecodeError> {
    ends::check(place, file, format)?;
    let length = file.get_ref().metadata().map_err(|e| place.io(e))?.len();
    let header = place.guarded(format.name(), || {
        Ok(open(place, &mut *file, format, length)?.1)
    })?;
    if format == Format::Qoi {
        // Nothing in its header tells how long it is.
        file.rewind().map_err(|e| place.io(e))?;
        read(place, file, format)?;
    }
    Ok(header)
}

pub(super) fn read(
    place: &Place,
    file: &mut BufReader<File>,
    format: Format,
) -> Result<Rgb, DecodeError> {
    ends::check(place, file, format)?;
    let length = file.get_ref().metadata().map_err(|e| place.io(e))?.len();
    place.guarded(format.name(), || decode(place, file, format, length))
}

type Decoder<'r> = Box<dyn ImageDecoder + 'r>;

fn open<'r, R: BufRead + Seek + 'r>(
    place: &Place,
    reader: R,
    format: Format,
    length: u64,
) -> Result<(Decoder<'r>, Header), DecodeError> {
    fn boxed<'r, D: ImageDecoder + 'r>(decoder: ImageResult<D>) -> ImageResult<Decoder<'r>> {
        Ok(Box::new(decoder?))
    }
    let opened = match format {
        Format::WebP => boxed(WebPDecoder::new(reader)),
        Format::Bmp => boxed(BmpDecoder::new(reader)),
        Format::Gif => boxed(GifDecoder::new(reader)),
        Format::Qoi => boxed(QoiDecoder::new(reader)),
        _ => PnmDecoder::new(reader).and_then(|decoder| {
            let (width, height) = decoder.dimensions();
            let needed = pnm_bytes(&decoder, width.into(), height.into());
            if needed <= length {
                boxed(Ok(decoder))
            } else {
                Err(ImageError::IoError(io::ErrorKind::UnexpectedEof.into()))
            }
        }),
    };
    let mut decoder = opened.map_err(|error| explain(place, format, &error))?;
    let (width, height) = decoder.dimensions();
    let stored = place.checked_size(width.into(), height.into())?;
    // Damaged metadata do not make a picture unreadable.
    let exif = decoder.exif_metadata().ok().flatten().unwrap_or_default();
    // Some writers of WebP put JPEG's marker before the EXIF data.
    let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(&exif);
    let orientation = Orientation::from_exif_chunk(exif).unwrap_or(Orientation::NoTransforms);
    let header = Header {
        stored,
        orientation: orientation.to_exif(),
    };
    Ok((decoder, header))
}

/// The least number of bytes that the samples take.
fn pnm_bytes<R: io::Read>(decoder: &PnmDecoder<R>, width: u64, height: u64) -> u64 {
    let color = decoder.color_type();
    let sample_bytes = match decoder.subtype() {
        PnmSubtype::Bitmap(SampleEncoding::Binary) => return width.div_ceil(8) * height,
        PnmSubtype::Graymap(SampleEncoding::Binary)
        | PnmSubtype::Pixmap(SampleEncoding::Binary)
        | PnmSubtype::ArbitraryMap => u64::from(color.bytes_per_pixel()),
        // A digit a sample at least.
        _ => color.channel_count().into(),
    };
    width.saturating_mul(height).saturating_mul(sample_bytes)
}

fn decode<R: BufRead + Seek>(
    place: &Place,
    reader: R,
    format: Format,
    length: u64,
) -> Result<Rgb, DecodeError> {
    let (mut decoder, header) = open(place, reader, format, length)?;
    let explained = |error: ImageError| explain(place, format, &error);
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(MAX_EXTRA_BYTES);
    decoder.set_limits(limits).map_err(explained)?;
    let (width, height) = size(header.stored);
    let color = decoder.color_type();
    let mut samples = vec![0; width * height * usize::from(color.bytes_per_pixel())];
    decoder.read_image_boxed(&mut samples).map_err(explained)?;
    let pixels = to_rgb(color, samples).ok_or_else(|| {
        place.unsupported_kind(format.name(), format!("samples of the type {color:?}"))
    })?;
    Ok(turn_upright(width, height, pixels, header.orientation))
}

fn explain(place: &Place, format: Format, error: &ImageError) -> DecodeError {
    let name = format.name();
    match error {
        ImageError::IoError(source) if source.kind() == io::ErrorKind::UnexpectedEof => {
            place.truncated(name, "it ends before its last pixel")
        }
        ImageError::IoError(source) => place.broken(name, source),
        ImageError::Unsupported(unsupported) => place.unsupported_kind(name, unsupported),
        other => place.broken(name, one_line(&other.to_string())),
    }
}

/// The message of another crate in one line, without the words that ours begins with.
pub(super) fn one_line(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.split_once(": ") {
        Some((start, rest)) if start.starts_with("Format error decoding") => rest.to_owned(),
        _ => text,
    }
}
