//! TIFF: the first page, of all compressions that need no C library.
//!
//! Grey and palettes of 1, 2, 4 and 8 bits, grey and RGB of 8 and 16 bits with or without alpha, CMYK, and the
//! YCbCr of JPEG-compressed files; strips and tiles, planes together or apart, both byte orders, BigTIFF.

use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek};

use image::ImageDecoder;
use image::codecs::webp::WebPDecoder;
use tiff::decoder::{ChunkType, Decoder, DecodingResult, Limits};
use tiff::tags::{CompressionMethod, Tag};
use tiff::{ColorType, TiffError};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;

use super::orientation::turn_upright;
use super::raster::one_line;
use super::samples::{cmyk_to_rgb, spread, ycbcr_to_rgb};
use super::{DecodeError, Header, MAX_PIXELS, Place, Rgb, size};

const NAME: &str = "TIFF";
/// DNG's version: such a file's first picture is a thumbnail.
const DNG_VERSION: Tag = Tag::Unknown(50706);
const PALETTE: u16 = 3;
const BLACK_IS_ZERO: u16 = 1;

pub(super) fn probe(place: &Place, file: &mut BufReader<File>) -> Result<Header, DecodeError> {
    let length = file.get_ref().metadata().map_err(|e| place.io(e))?.len();
    place.guarded(NAME, || Ok(Page::open(place, &mut *file, length)?.header))
}

pub(super) fn read(place: &Place, file: &mut BufReader<File>) -> Result<Rgb, DecodeError> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|e| place.io(e))?;
    place.guarded(NAME, || decode(place, bytes))
}

/// The first page of a file.
struct Page<R: Read + Seek> {
    decoder: Decoder<R>,
    header: Header,
    /// Offset and length of every strip or tile.
    chunks: Vec<(u64, u64)>,
}

impl<R: Read + Seek> Page<R> {
    /// Reads the first directory and checks that all that it points to lies in the file.
    fn open(place: &Place, reader: R, length: u64) -> Result<Self, DecodeError> {
        let explained = |error| explain(place, error);
        let mut limits = Limits::default();
        limits.decoding_buffer_size = (MAX_PIXELS * 8) as usize;
        limits.intermediate_buffer_size = length as usize;
        limits.ifd_value_size = length.min(16 << 20) as usize;
        let mut decoder = Decoder::new(reader).map_err(explained)?.with_limits(limits);
        if decoder.find_tag(DNG_VERSION).ok().flatten().is_some() {
            return Err(DecodeError::Unsupported {
                path: place.path.to_path_buf(),
                format: "DNG",
            });
        }
        let (width, height) = decoder.dimensions().map_err(explained)?;
        let stored = place.checked_size(width.into(), height.into())?;
        let mut numbers = |tag| {
            let found = decoder.find_tag_unsigned_vec::<u64>(tag).ok().flatten();
            found.unwrap_or_default()
        };
        let offsets = [numbers(Tag::StripOffsets), numbers(Tag::TileOffsets)].concat();
        let lengths = [numbers(Tag::StripByteCounts), numbers(Tag::TileByteCounts)].concat();
        let chunks: Vec<(u64, u64)> = offsets.into_iter().zip(lengths).collect();
        if chunks
            .iter()
            .any(|&(at, bytes)| at.saturating_add(bytes) > length)
        {
            return Err(place.truncated(NAME, "it ends within its pixels"));
        }
        let orientation = decoder.find_tag_unsigned::<u8>(Tag::Orientation);
        let orientation = orientation.ok().flatten().unwrap_or(1);
        Ok(Self {
            decoder,
            header: Header {
                stored,
                orientation: if (1..=8).contains(&orientation) {
                    orientation
                } else {
                    1
                },
            },
            chunks,
        })
    }

    fn number(&mut self, tag: Tag) -> Option<u16> {
        let numbers = self.decoder.find_tag_unsigned_vec::<u16>(tag);
        numbers.ok().flatten()?.first().copied()
    }
}

fn decode(place: &Place, mut bytes: Vec<u8>) -> Result<Rgb, DecodeError> {
    let length = bytes.len() as u64;
    let mut page = Page::open(place, Cursor::new(&bytes[..]), length)?;
    check_embedded(place, &mut page, &bytes)?;
    let palette = if page.number(Tag::PhotometricInterpretation) == Some(PALETTE) {
        Some(read_palette(place, &mut page)?)
    } else {
        None
    };
    if palette.is_some() {
        // The decoder knows no palettes: it is given the same file as grey, and the grey values are looked up.
        drop(page);
        let at = first_value(&bytes, 262).ok_or_else(|| place.broken(NAME, "no colour space"))?;
        let grey = BLACK_IS_ZERO;
        let value = if bytes.starts_with(b"II") {
            grey.to_le_bytes()
        } else {
            grey.to_be_bytes()
        };
        bytes[at..at + 2].copy_from_slice(&value);
        page = Page::open(place, Cursor::new(&bytes[..]), length)?;
    }
    let explained = |error| explain(place, error);
    let (width, height) = size(page.header.stored);
    let color = page.decoder.colortype().map_err(explained)?;
    check_kind(place, color, palette.is_some())?;
    let mut result = DecodingResult::U8(Vec::new());
    let layout = page
        .decoder
        .read_image_to_buffer(&mut result)
        .map_err(explained)?;
    let samples = match result {
        DecodingResult::U8(samples) => samples,
        DecodingResult::U16(samples) => samples.into_iter().map(|v| (v >> 8) as u8).collect(),
        _ => {
            return Err(place.unsupported_kind(NAME, "samples that are not whole numbers from 0"));
        }
    };
    let samples = if layout.planes > 1 {
        interleave(&samples, layout.planes)
    } else {
        samples
    };
    let pixels = match (color, &palette) {
        (ColorType::Gray(bits), Some(palette)) => {
            let index = unpack(&samples, width, height, bits);
            spread(&index, 1, |p| {
                palette.get(usize::from(p[0])).copied().unwrap_or([0; 3])
            })
        }
        (ColorType::Gray(bits), None) if bits < 8 => {
            let largest = (1u32 << bits) - 1;
            let values = unpack(&samples, width, height, bits);
            spread(&values, 1, |p| [(u32::from(p[0]) * 255 / largest) as u8; 3])
        }
        (ColorType::Gray(_), None) => spread(&samples, 1, |p| [p[0]; 3]),
        (ColorType::GrayA(_), _) => spread(&samples, 2, |p| [p[0]; 3]),
        (ColorType::Multiband { num_samples, .. }, _) => {
            spread(&samples, usize::from(num_samples), |p| [p[0]; 3])
        }
        (ColorType::RGB(_), _) => samples,
        (ColorType::RGBA(_), _) => spread(&samples, 4, |p| [p[0], p[1], p[2]]),
        (ColorType::CMYK(_), _) => spread(&samples, 4, cmyk_to_rgb),
        (ColorType::CMYKA(_), _) => spread(&samples, 5, cmyk_to_rgb),
        (ColorType::YCbCr(_), _) => spread(&samples, 3, ycbcr_to_rgb),
        (other, _) => return Err(place.unsupported_kind(NAME, kind(other))),
    };
    if pixels.len() != width * height * 3 {
        return Err(place.broken(NAME, "its pixels do not fill it"));
    }
    Ok(turn_upright(width, height, pixels, page.header.orientation))
}

/// Refuses what would be read with a wrong meaning.
fn check_kind(place: &Place, color: ColorType, has_palette: bool) -> Result<(), DecodeError> {
    let is_read = match color {
        ColorType::Gray(bits) if has_palette => matches!(bits, 1 | 2 | 4 | 8),
        ColorType::Gray(bits) => matches!(bits, 1 | 2 | 4 | 8 | 16),
        // Grey and what is most likely alpha.
        ColorType::Multiband {
            bit_depth,
            num_samples,
        } => matches!(bit_depth, 8 | 16) && num_samples == 2,
        ColorType::GrayA(bits)
        | ColorType::RGB(bits)
        | ColorType::RGBA(bits)
        | ColorType::CMYK(bits)
        | ColorType::CMYKA(bits)
        | ColorType::YCbCr(bits) => matches!(bits, 8 | 16),
        _ => false,
    };
    if is_read {
        Ok(())
    } else {
        Err(place.unsupported_kind(NAME, kind(color)))
    }
}

fn kind(color: ColorType) -> String {
    match color {
        ColorType::Multiband {
            bit_depth,
            num_samples,
        } => format!("{num_samples} bands of {bit_depth} bits"),
        ColorType::Lab(_) => "colours in CIE Lab".to_owned(),
        other => format!("{} bits a sample", other.bit_depth()),
    }
}

/// Colours by index, the high bytes of the file's. Some writers fill in 8-bit values.
fn read_palette<R: Read + Seek>(
    place: &Place,
    page: &mut Page<R>,
) -> Result<Vec<[u8; 3]>, DecodeError> {
    let found = page.decoder.find_tag_unsigned_vec::<u16>(Tag::ColorMap);
    let map = found.ok().flatten().unwrap_or_default();
    let count = map.len() / 3;
    if count == 0 || !map.len().is_multiple_of(3) {
        return Err(place.broken(NAME, "it has a palette of no colours"));
    }
    let shift = if map.iter().all(|&value| value < 256) {
        0
    } else {
        8
    };
    let color = |index: usize| {
        [0, 1, 2].map(|channel: usize| (map[channel * count + index] >> shift) as u8)
    };
    Ok((0..count).map(color).collect())
}

/// Where the value of a tag of the first directory lies (TIFF 6.0, section 2; BigTIFF).
fn first_value(bytes: &[u8], tag: u16) -> Option<usize> {
    let little = bytes.starts_with(b"II");
    let number = |at: usize, width: usize| -> Option<usize> {
        let field = bytes.get(at..at.checked_add(width)?)?;
        let fold = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        let value = if little {
            field.iter().rev().fold(0, fold)
        } else {
            field.iter().fold(0, fold)
        };
        usize::try_from(value).ok()
    };
    let big = number(2, 2)? == 43;
    let (directory, count_bytes, entry_bytes, value_at) = if big {
        (number(8, 8)?, 8, 20, 12)
    } else {
        (number(4, 4)?, 2, 12, 8)
    };
    let count = number(directory, count_bytes)?.min(65_536);
    let first = directory.checked_add(count_bytes)?;
    let entry = (0..count)
        .map(|index| first + index * entry_bytes)
        .find(|&at| number(at, 2) == Some(usize::from(tag)))?;
    bytes.get(entry + value_at..entry + value_at + 2)?;
    Some(entry + value_at)
}

/// One byte a value from rows that are packed into whole bytes.
fn unpack(samples: &[u8], width: usize, height: usize, bits: u8) -> Vec<u8> {
    let bits = usize::from(bits);
    let row_bytes = (width * bits).div_ceil(8);
    let mask = ((1u32 << bits) - 1) as u8;
    let mut values = Vec::with_capacity(width * height);
    for row in samples.chunks_exact(row_bytes).take(height) {
        values.extend((0..width).map(|x| {
            let at = x * bits;
            row[at / 8] >> (8 - bits - at % 8) & mask
        }));
    }
    values
}

fn interleave(samples: &[u8], planes: usize) -> Vec<u8> {
    let pixels = samples.len() / planes;
    let mut mixed = Vec::with_capacity(samples.len());
    for pixel in 0..pixels {
        mixed.extend((0..planes).map(|plane| samples[plane * pixels + pixel]));
    }
    mixed
}

/// The size in a JPEG's or WebP's own header may not exceed that of the strip or tile that holds it: its
/// decoder takes memory for that size.
fn check_embedded(
    place: &Place,
    page: &mut Page<Cursor<&[u8]>>,
    bytes: &[u8],
) -> Result<(), DecodeError> {
    let compression = page.number(Tag::Compression).unwrap_or(1);
    let compression = CompressionMethod::from_u16_exhaustive(compression);
    let (chunk_width, mut chunk_height) = page.decoder.chunk_dimensions();
    match page.decoder.get_chunk_type() {
        ChunkType::Tile => {
            place.checked_size(chunk_width.into(), chunk_height.into())?;
        }
        // A strip may be said to be as high as numbers go.
        ChunkType::Strip => chunk_height = chunk_height.min(page.header.stored.1),
    }
    for &(at, length) in &page.chunks {
        let start = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
        let end = usize::try_from(at.saturating_add(length))
            .unwrap_or(usize::MAX)
            .min(bytes.len());
        let chunk = &bytes[start..end];
        let size = match compression {
            CompressionMethod::ModernJPEG => {
                let mut decoder = JpegDecoder::new(ZCursor::new(chunk));
                let _ = decoder.decode_headers(); // the tables may be elsewhere
                decoder.dimensions()
            }
            CompressionMethod::WebP => WebPDecoder::new(Cursor::new(chunk))
                .ok()
                .map(|decoder| decoder.dimensions())
                .map(|(width, height)| (width as usize, height as usize)),
            _ => return Ok(()),
        };
        // Whole blocks of a JPEG may reach beyond the strip.
        let room = |side: u32| side as usize + 64;
        if let Some((width, height)) = size
            && (width > room(chunk_width) || height > room(chunk_height))
        {
            return Err(place.broken(
                NAME,
                format!("a strip of {chunk_width} x {chunk_height} pixels holds a picture of {width} x {height}"),
            ));
        }
    }
    Ok(())
}

fn explain(place: &Place, error: TiffError) -> DecodeError {
    match error {
        TiffError::IoError(source) if source.kind() == std::io::ErrorKind::UnexpectedEof => {
            place.truncated(NAME, "it ends within its directory or its pixels")
        }
        TiffError::IoError(source) => place.broken(NAME, source),
        TiffError::UnsupportedError(what) => {
            place.unsupported_kind(NAME, one_line(&what.to_string()))
        }
        other => place.broken(NAME, one_line(&other.to_string())),
    }
}
