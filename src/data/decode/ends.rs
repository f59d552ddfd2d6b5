//! Whether a file holds all that its header promises, found out from its structure, without decoding: what
//! keeps a scan of a large data set cheap and still finds files that were cut short.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};

use super::sniff::Format;
use super::{DecodeError, Place};

/// Checks the structure; afterwards the reader is back at the start.
pub(super) fn check(
    place: &Place,
    file: &mut BufReader<File>,
    format: Format,
) -> Result<(), DecodeError> {
    let length = file.get_ref().metadata().map_err(|e| place.io(e))?.len();
    let mut walk = Walk {
        place,
        file,
        length,
        format: format.name(),
    };
    walk.to(0)?;
    match format {
        Format::WebP => walk.webp()?,
        Format::Gif => walk.gif()?,
        Format::Bmp => walk.bmp()?,
        _ => {}
    }
    walk.to(0)
}

struct Walk<'a> {
    place: &'a Place<'a>,
    file: &'a mut BufReader<File>,
    length: u64,
    format: &'static str,
}

impl Walk<'_> {
    fn cut(&self, detail: &str) -> DecodeError {
        self.place.truncated(self.format, detail)
    }

    fn to(&mut self, at: u64) -> Result<(), DecodeError> {
        let moved = self.file.seek(SeekFrom::Start(at));
        moved.map(|_| ()).map_err(|e| self.place.io(e))
    }

    fn skip(&mut self, bytes: u64) -> Result<(), DecodeError> {
        let moved = self.file.seek_relative(bytes as i64); // at most 32 bits
        moved.map_err(|e| self.place.io(e))
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut bytes = [0; N];
        match self.file.read_exact(&mut bytes) {
            Ok(()) => Ok(bytes),
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(self.cut("it ends within its header"))
            }
            Err(e) => Err(self.place.io(e)),
        }
    }

    /// Chunks up to the one that holds the picture (RIFF, little-endian lengths, padded to even). A frame must
    /// have the size of the canvas, so that the decoder takes memory for the size that was checked.
    fn webp(&mut self) -> Result<(), DecodeError> {
        let [_, _, _, _, a, b, c, d, ..] = self.take::<12>()?;
        let end = 8 + u64::from(u32::from_le_bytes([a, b, c, d]));
        if end > self.length {
            return Err(self.cut(&format!(
                "it says that it has {end} bytes, and has {}",
                self.length
            )));
        }
        let mut canvas = None;
        let mut at = 12;
        while at + 8 <= end {
            self.to(at)?;
            let [n0, n1, n2, n3, a, b, c, d] = self.take::<8>()?;
            let size = u64::from(u32::from_le_bytes([a, b, c, d]));
            if at + 8 + size > end {
                return Err(self.cut("one of its chunks ends beyond the file"));
            }
            let frame = match &[n0, n1, n2, n3] {
                b"VP8X" => {
                    let [_, _, _, _, w0, w1, w2, h0, h1, h2] = self.take::<10>()?;
                    let side = |a, b, c| u32::from_le_bytes([a, b, c, 0]) + 1;
                    canvas = Some((side(w0, w1, w2), side(h0, h1, h2)));
                    None
                }
                b"VP8 " => {
                    let [_, _, _, _, _, _, w0, w1, h0, h1] = self.take::<10>()?;
                    let side = |a, b| u32::from(u16::from_le_bytes([a, b]) & 0x3fff);
                    Some((side(w0, w1), side(h0, h1)))
                }
                b"VP8L" => {
                    let [_, a, b, c, d] = self.take::<5>()?;
                    let bits = u32::from_le_bytes([a, b, c, d]);
                    Some(((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1))
                }
                // What follows the first frame of an animation is not looked at.
                b"ANMF" => return Ok(()),
                _ => None,
            };
            if let Some(frame) = frame {
                return match canvas {
                    Some(canvas) if canvas != frame => Err(self.place.broken(
                        self.format,
                        format!(
                            "its picture is {} x {}, its canvas {} x {}",
                            frame.0, frame.1, canvas.0, canvas.1
                        ),
                    )),
                    _ => Ok(()),
                };
            }
            at += 8 + size + size % 2;
        }
        Err(self.cut("it has no picture"))
    }

    /// Blocks up to the end of the first picture's data.
    fn gif(&mut self) -> Result<(), DecodeError> {
        let [_, _, _, _, _, _, w0, w1, h0, h1, flags, _, _] = self.take::<13>()?;
        let size = |a, b| u64::from(u16::from_le_bytes([a, b]));
        self.place.checked_size(size(w0, w1), size(h0, h1))?;
        self.colours(flags)?;
        loop {
            match self.take::<1>()? {
                [0x21] => {
                    self.take::<1>()?;
                    self.sub_blocks()?;
                }
                [0x2c] => {
                    let [x0, x1, y0, y1, w0, w1, h0, h1, flags] = self.take::<9>()?;
                    let (right, bottom) =
                        (size(x0, x1) + size(w0, w1), size(y0, y1) + size(h0, h1));
                    self.place.checked_size(right, bottom)?;
                    self.colours(flags)?;
                    self.take::<1>()?; // bits of a code
                    return self.sub_blocks();
                }
                [0x3b] => return Err(self.cut("it has no picture")),
                [other] => {
                    let detail = format!("its blocks are damaged (a block 0x{other:02x})");
                    return Err(self.place.broken(self.format, detail));
                }
            }
        }
    }

    fn colours(&mut self, flags: u8) -> Result<(), DecodeError> {
        if flags & 0x80 == 0 {
            return Ok(());
        }
        self.skip(3 << ((flags & 7) + 1))
    }

    fn sub_blocks(&mut self) -> Result<(), DecodeError> {
        loop {
            let mut length = [0];
            match self.file.read_exact(&mut length) {
                Ok(()) if length == [0] => return Ok(()),
                Ok(()) => self.skip(length[0].into())?,
                Err(_) => return Err(self.cut("it ends within its picture")),
            }
        }
    }

    /// The pixels of a BMP that is not compressed.
    fn bmp(&mut self) -> Result<(), DecodeError> {
        let header = self.take::<26>()?;
        let word = |at: usize| u32::from(u16::from_le_bytes([header[at], header[at + 1]]));
        let long = |at: usize| word(at) | word(at + 2) << 16;
        let start = u64::from(long(10));
        let (width, height, bits, compressed) = if long(14) == 12 {
            (word(18), word(20), word(24), false)
        } else {
            let [_, _, b0, b1, c0, c1, c2, c3] = self.take::<8>()?;
            let compression = u32::from_le_bytes([c0, c1, c2, c3]);
            let height = (long(22) as i32).unsigned_abs(); // negative: rows from the top
            let bits = u32::from(u16::from_le_bytes([b0, b1]));
            (long(18), height, bits, !matches!(compression, 0 | 3 | 6))
        };
        let (width, height) = self.place.checked_size(width.into(), height.into())?;
        let (width, height) = (u64::from(width), u64::from(height));
        let row = (width * u64::from(bits)).div_ceil(8);
        let padded = row.div_ceil(4) * 4;
        let needed = if compressed {
            1
        } else {
            padded * (height - 1) + row
        };
        if start + needed > self.length {
            return Err(self.cut(&format!(
                "its pixels take {needed} bytes from {start} on, and the file has {}",
                self.length
            )));
        }
        Ok(())
    }
}
