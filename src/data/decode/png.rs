//! PNG.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

use image::codecs::png::PngDecoder;
use image::{ImageDecoder, Limits};

use super::orientation::turn_upright;
use super::samples::to_rgb;
use super::sniff::PNG_SIGNATURE;
use super::{DecodeError, Header, Place, Rgb, size};

/// Memory that chunks other than pixels (text, colour profiles) may take.
const CHUNK_BYTES: u64 = 256 << 20;
const END_CHUNK: [u8; 12] = [0, 0, 0, 0, b'I', b'E', b'N', b'D', 0xae, 0x42, 0x60, 0x82];

pub(super) fn probe(place: &Place, file: &mut BufReader<File>) -> Result<Header, DecodeError> {
    let header = place.guarded("PNG", || Ok(open(place, &mut *file)?.1))?;
    check_end(place, file)?;
    Ok(header)
}

pub(super) fn read(place: &Place, file: &mut BufReader<File>) -> Result<Rgb, DecodeError> {
    check_end(place, file)?;
    file.rewind().map_err(|e| place.io(e))?;
    place.guarded("PNG", || decode(place, file))
}

fn open<R: BufRead + Seek>(
    place: &Place,
    reader: R,
) -> Result<(PngDecoder<R>, Header), DecodeError> {
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(CHUNK_BYTES);
    let mut decoder =
        PngDecoder::with_limits(reader, limits).map_err(|error| read_error(place, &error))?;
    let (width, height) = decoder.dimensions();
    let orientation = decoder
        .orientation()
        .map_err(|error| read_error(place, &error))?;
    let header = Header {
        stored: place.checked_size(width.into(), height.into())?,
        orientation: orientation.to_exif(),
    };
    Ok((decoder, header))
}

fn decode<R: BufRead + Seek>(place: &Place, reader: R) -> Result<Rgb, DecodeError> {
    let (decoder, header) = open(place, reader)?;
    let (width, height) = size(header.stored);
    let color = decoder.color_type();
    let mut samples = vec![0; width * height * usize::from(color.bytes_per_pixel())];
    decoder
        .read_image(&mut samples)
        .map_err(|error| read_error(place, &error))?;
    let pixels = to_rgb(color, samples)
        .ok_or_else(|| place.broken("PNG", format!("pixels of the type {color:?}")))?;
    Ok(turn_upright(width, height, pixels, header.orientation))
}

fn read_error(place: &Place, error: &image::ImageError) -> DecodeError {
    if let image::ImageError::IoError(source) = error {
        return if source.kind() == io::ErrorKind::UnexpectedEof {
            place.truncated("PNG", "it ends within its chunks")
        } else {
            place.broken("PNG", source)
        };
    }
    let text = error.to_string();
    // The decoder's text prints a damaged chunk's name byte by byte.
    if text.contains("ChunkType {") {
        return place.broken("PNG", "its chunks are damaged or out of order");
    }
    place.broken(
        "PNG",
        text.trim_start_matches("Format error decoding Png: "),
    )
}

/// Looks for the end chunk at the file's end, and only if it is not there, along the chunks.
fn check_end(place: &Place, file: &mut BufReader<File>) -> Result<(), DecodeError> {
    let mut last = [0; 12];
    if file.seek(SeekFrom::End(-12)).is_ok()
        && file.read_exact(&mut last).is_ok()
        && last == END_CHUNK
    {
        return Ok(());
    }
    let length = file.get_ref().metadata().map_err(|e| place.io(e))?.len();
    let mut at = PNG_SIGNATURE.len() as u64;
    let mut head = [0; 8];
    loop {
        let read = file
            .seek(SeekFrom::Start(at))
            .and_then(|_| file.read_exact(&mut head));
        let [a, b, c, d, ref name @ ..] = head;
        let next = at + 12 + u64::from(u32::from_be_bytes([a, b, c, d]));
        if read.is_err() || next > length {
            return Err(place.truncated("PNG", "it ends without its end chunk"));
        }
        if name == b"IEND" {
            return Ok(());
        }
        at = next;
    }
}
