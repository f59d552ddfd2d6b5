//! JPEG.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};

use image::metadata::Orientation;
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::{ZByteReaderTrait, ZCursor};
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::orientation::turn_upright;
use super::{DecodeError, Header, Place, Rgb, size};

pub(super) fn probe(place: &Place, file: &mut BufReader<File>) -> Result<Header, DecodeError> {
    let header = place.guarded("JPEG", || {
        read_header(
            place,
            &mut JpegDecoder::new_with_options(&mut *file, options()),
        )
    })?;
    check_end(place, file)?;
    Ok(header)
}

pub(super) fn read(place: &Place, file: &mut BufReader<File>) -> Result<Rgb, DecodeError> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|e| place.io(e))?;
    if !is_complete(&bytes) {
        return Err(cut_short(place));
    }
    place.guarded("JPEG", || decode(place, &bytes))
}

fn cut_short(place: &Place) -> DecodeError {
    place.truncated("JPEG", "it ends without an end-of-image marker")
}

fn read_header<T: ZByteReaderTrait>(
    place: &Place,
    decoder: &mut JpegDecoder<T>,
) -> Result<Header, DecodeError> {
    use zune_jpeg::errors::DecodeErrors;
    decoder.decode_headers().map_err(|error| match error {
        DecodeErrors::ExhaustedData | DecodeErrors::IoErrors(_) => {
            place.truncated("JPEG", "it ends within its header")
        }
        other => place.broken("JPEG", zune_reason(&other)),
    })?;
    let (width, height) = decoder
        .dimensions()
        .ok_or_else(|| place.broken("JPEG", "it has no frame header"))?;
    let orientation = decoder
        .exif()
        .and_then(|exif| Orientation::from_exif_chunk(exif))
        .unwrap_or(Orientation::NoTransforms);
    Ok(Header {
        stored: place.checked_size(width as u64, height as u64)?,
        orientation: orientation.to_exif(),
    })
}

fn decode(place: &Place, bytes: &[u8]) -> Result<Rgb, DecodeError> {
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options());
    let header = read_header(place, &mut decoder)?;
    let (width, height) = size(header.stored);
    let mut pixels = vec![0; width * height * 3];
    decoder
        .decode_into(&mut pixels)
        .map_err(|error| place.broken("JPEG", zune_reason(&error)))?;
    Ok(turn_upright(width, height, pixels, header.orientation))
}

/// The end-of-image marker is looked for at the file's end, and only if it is not there, by a walk
/// through the whole file (padding and further images may follow the first one).
fn check_end(place: &Place, file: &mut BufReader<File>) -> Result<(), DecodeError> {
    let mut last = [0; 2];
    if file.seek(SeekFrom::End(-2)).is_ok()
        && file.read_exact(&mut last).is_ok()
        && last == [0xff, 0xd9]
    {
        return Ok(());
    }
    let mut bytes = Vec::new();
    file.rewind().map_err(|e| place.io(e))?;
    file.read_to_end(&mut bytes).map_err(|e| place.io(e))?;
    if is_complete(&bytes) {
        Ok(())
    } else {
        Err(cut_short(place))
    }
}

/// The JPEG decoder's message; some variants print it in quotes.
fn zune_reason(error: &zune_jpeg::errors::DecodeErrors) -> String {
    error.to_string().trim_matches('"').to_owned()
}

fn options() -> DecoderOptions {
    // Not strict: harmless oddities such as bytes between segments are common. Sizes are checked here.
    DecoderOptions::default()
        .set_strict_mode(false)
        .set_max_width(usize::MAX)
        .set_max_height(usize::MAX)
        .jpeg_set_out_colorspace(ColorSpace::RGB)
}

/// Whether the first image of a JPEG file has its end-of-image marker: segments are stepped over by their
/// length (an EXIF thumbnail has markers of its own), entropy-coded data up to the next marker.
fn is_complete(bytes: &[u8]) -> bool {
    let mut at = 2; // after start-of-image
    loop {
        // To the next marker: 0xff and a byte that is neither stuffing (0x00), fill (0xff) nor a restart.
        let Some(&code) = bytes.get(at + 1) else {
            return false;
        };
        let is_marker = bytes[at] == 0xff && !matches!(code, 0x00 | 0x01 | 0xff | 0xd0..=0xd8);
        if !is_marker {
            at += 1;
            continue;
        }
        if code == 0xd9 {
            return true;
        }
        let Some(&[high, low]) = bytes.get(at + 2..at + 4) else {
            return false;
        };
        at += 2 + usize::from(u16::from_be_bytes([high, low])).max(2);
    }
}
