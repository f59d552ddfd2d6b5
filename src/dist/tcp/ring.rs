//! A ring of pieces in memory that two ranks share: one writes, the other reads.
//!
//! The positions count all bytes ever written and read. A piece lies in one stretch: where it does not fit before the
//! end of the ring, both sides skip to the beginning, by the same rule. `waits` flags ask the other side for a sign.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use memmap2::MmapRaw;

use super::super::mesh::link::{LinkError, padded};

/// Bytes before the values of a ring.
const CONTROL: usize = 256;

/// What both sides see at the beginning of a ring; each side's words in a cache line of their own.
#[repr(C, align(64))]
struct Line {
    /// Bytes written or read.
    position: AtomicU64,
    /// Whether this side waits for the other one.
    waits: AtomicU32,
}

#[repr(C)]
struct Control {
    writer: Line,
    reader: Line,
}

/// One side of a ring within a mapped file.
pub(crate) struct Ring {
    control: NonNull<Control>,
    values: NonNull<u8>,
    capacity: usize,
    /// Own copy of this side's position: the memory can be written by another process.
    position: u64,
    /// Last seen position of the other side.
    seen: u64,
    /// Keeps the memory.
    _map: Arc<MmapRaw>,
}

// SAFETY: a `Ring` is one side of a queue with one writer and one reader; all that both sides touch at the same time
// are the atomics of `Control`. The pointers stay valid wherever the `Ring` is moved, as it keeps the mapping.
unsafe impl Send for Ring {}

impl Ring {
    /// Bytes that a ring of `capacity` takes.
    pub(crate) const fn bytes(capacity: usize) -> usize {
        CONTROL + capacity
    }

    /// The ring at `offset` of the mapping, which begins as zeros.
    pub(crate) fn new(map: &Arc<MmapRaw>, offset: usize, capacity: usize) -> Self {
        const { assert!(size_of::<Control>() <= CONTROL) };
        assert!(offset.is_multiple_of(64) && capacity.is_multiple_of(64));
        assert!(offset + Ring::bytes(capacity) <= map.len());
        // SAFETY: the range lies within the mapping (asserted), which starts at a page.
        let base = unsafe { map.as_mut_ptr().add(offset) };
        let base = NonNull::new(base).expect("a mapping is not at address 0");
        Ring {
            control: base.cast(),
            // SAFETY: as above, `CONTROL` lies within the range.
            values: unsafe { base.add(CONTROL) },
            capacity,
            position: 0,
            seen: 0,
            _map: map.clone(),
        }
    }

    fn control(&self) -> &Control {
        // SAFETY: aligned to 64 and within the mapping (`new`); all zeros or any other bytes are valid atomics, and
        // atomics are all that is ever accessed there.
        unsafe { self.control.as_ref() }
    }

    /// Bytes to skip so that `len` bytes lie in one stretch.
    fn skip(&self, len: usize) -> usize {
        let at = self.at();
        if at + len > self.capacity {
            self.capacity - at
        } else {
            0
        }
    }

    fn at(&self) -> usize {
        (self.position % self.capacity as u64) as usize
    }

    /// Writer: takes the parts as one piece. `Some(true)`: the reader wants a sign.
    pub(crate) fn push(&mut self, parts: &[&[u8]]) -> Option<bool> {
        let len = padded(parts.iter().map(|p| p.len()).sum());
        let skip = self.skip(len);
        let needed = (skip + len) as u64;
        let free = |ring: &Ring| ring.capacity as u64 - (ring.position - ring.seen);
        if free(self) < needed {
            let read = self.control().reader.position.load(Ordering::Acquire);
            if read > self.position || read < self.seen {
                // No reader does this; never full, never written over.
                return None;
            }
            self.seen = read;
            if free(self) < needed {
                return None;
            }
        }
        let mut at = if skip > 0 { 0 } else { self.at() };
        for part in parts {
            // SAFETY: `at + part.len() <= capacity` because the piece lies in one stretch of the ring. The reader is
            // past these bytes (`free`), as its position was read with Acquire, and does not look at them before the
            // store below. The source is memory of this process, so the two do not overlap.
            unsafe {
                self.values
                    .add(at)
                    .copy_from_nonoverlapping(NonNull::from(*part).cast(), part.len());
            }
            at += part.len();
        }
        self.position += needed;
        let control = self.control();
        control
            .writer
            .position
            .store(self.position, Ordering::Release);
        Some(Ring::wants_sign(&control.reader))
    }

    /// Whether the other side waits; asked after a change that it may wait for.
    fn wants_sign(other: &Line) -> bool {
        // The other side sets its flag, then looks at the position; this one has stored the position and now looks at
        // the flag. With the fences at least one of them sees the other's.
        fence(Ordering::SeqCst);
        other.waits.load(Ordering::Relaxed) != 0 && other.waits.swap(0, Ordering::Relaxed) != 0
    }

    /// Reader: whether the next piece, of `len` bytes, is there.
    pub(crate) fn fill(&mut self, len: usize) -> Result<bool, LinkError> {
        let len = padded(len);
        let needed = (self.skip(len) + len) as u64;
        if self.seen - self.position >= needed {
            return Ok(true);
        }
        let written = self.control().writer.position.load(Ordering::Acquire);
        if written < self.seen || written - self.position > self.capacity as u64 {
            return Err(LinkError::Corrupt("shared memory".into()));
        }
        self.seen = written;
        Ok(self.seen - self.position >= needed)
    }

    /// Reader: the next piece, after `fill(len)`.
    pub(crate) fn piece(&self, len: usize) -> &[u8] {
        let whole = padded(len);
        let at = if self.skip(whole) > 0 { 0 } else { self.at() };
        assert!(self.seen - self.position >= (self.skip(whole) + whole) as u64);
        // SAFETY: the bytes were written before `seen` was stored with Release (read with Acquire) and lie in one
        // stretch. The writer, the same program on the other side, writes them again only after `pop` moved the
        // position, for which `self` must be borrowed mutably.
        unsafe { std::slice::from_raw_parts(self.values.as_ptr().add(at), len) }
    }

    /// Reader: ends the use of the next piece. `true`: the writer wants a sign.
    pub(crate) fn pop(&mut self, len: usize) -> bool {
        let len = padded(len);
        self.position += (self.skip(len) + len) as u64;
        let control = self.control();
        control
            .reader
            .position
            .store(self.position, Ordering::Release);
        Ring::wants_sign(&control.writer)
    }

    /// Asks for a sign, as the writer or as the reader.
    pub(crate) fn wait(&self, writer: bool) {
        let line = if writer {
            &self.control().writer
        } else {
            &self.control().reader
        };
        line.waits.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::mesh::link::PIECE;
    use crate::dist::tcp::shm;
    use proptest::prelude::*;

    fn pair(capacity: usize) -> (Ring, Ring) {
        let file = shm::create(Ring::bytes(capacity)).unwrap();
        let map = |f: &std::fs::File| Arc::new(memmap2::MmapOptions::new().map_raw(f).unwrap());
        (
            Ring::new(&map(&file), 0, capacity),
            Ring::new(&map(&file), 0, capacity),
        )
    }

    proptest! {
        /// Two mappings of one file, a reader that lags behind by any number of pieces.
        #[test]
        fn pieces_come_out_as_they_went_in(
            lengths in proptest::collection::vec(0usize..5000, 1..200), burst in 1usize..6,
        ) {
            let (mut writer, mut reader) = pair(16 << 10);
            let bytes = |i: usize, len: usize| (0..len).map(|j| (i * 31 + j) as u8).collect::<Vec<_>>();
            let (mut written, mut read) = (0, 0);
            while read < lengths.len() {
                for _ in 0..burst {
                    if written < lengths.len() {
                        let piece = bytes(written, lengths[written]);
                        let (a, b) = piece.split_at(piece.len() / 3);
                        if writer.push(&[a, b]).is_some() {
                            written += 1;
                        }
                    }
                }
                prop_assert!(written > read, "an empty ring takes every piece");
                prop_assert!(reader.fill(lengths[read]).unwrap());
                prop_assert_eq!(reader.piece(lengths[read]), &bytes(read, lengths[read])[..]);
                prop_assert_eq!(reader.piece(0).as_ptr() as usize % 64, 0);
                reader.pop(lengths[read]);
                read += 1;
            }
        }
    }

    #[test]
    fn a_full_ring_takes_nothing_and_a_waiting_writer_gets_a_sign() {
        let (mut writer, mut reader) = pair(2 * PIECE);
        let piece = vec![1; PIECE];
        assert_eq!(writer.push(&[&piece]), Some(false));
        assert_eq!(writer.push(&[&piece]), Some(false));
        assert_eq!(writer.push(&[&piece]), None);
        writer.wait(true);
        assert!(reader.fill(PIECE).unwrap());
        assert!(reader.pop(PIECE));
        assert_eq!(writer.push(&[&piece]), Some(false));
        reader.wait(false);
        assert!(reader.fill(PIECE).unwrap());
        assert!(!reader.pop(PIECE), "asked once, told once");
        assert_eq!(writer.push(&[&piece]), Some(true));
    }

    #[test]
    fn positions_that_no_writer_stores_are_an_error() {
        let (mut writer, mut reader) = pair(2 * PIECE);
        writer.position = 1 << 40;
        writer.seen = 1 << 40;
        writer.push(&[&[1]]);
        assert!(matches!(reader.fill(1), Err(LinkError::Corrupt(_))));
    }
}
