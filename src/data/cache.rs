//! Decoded images at the size of the pipeline, kept for as long as a bound on their bytes allows.
//!
//! Mosaic uses an image about four times per epoch, all within a window of the order: it is decoded once. What comes out
//! does not depend on what is kept.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::Split;
use super::decode::{DecodeError, Rgb};
use super::letterbox::{fitted, resize};
use super::pipeline::LoaderError;

/// How a file becomes pixels; `decode::read_rgb` except in tests.
pub type Decode = dyn Fn(&Path) -> Result<Rgb, DecodeError> + Send + Sync;

type Cell = Arc<OnceLock<Result<Arc<Rgb>, LoaderError>>>;

/// The images of a split, resized so that their long side is `side`; the least recently used are dropped first.
pub struct ImageCache {
    split: Arc<Split>,
    side: usize,
    limit: usize,
    decode: Box<Decode>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: HashMap<usize, Entry>,
    /// Last use -> image.
    recency: BTreeMap<u64, usize>,
    clock: u64,
    bytes: usize,
}

struct Entry {
    cell: Cell,
    used: u64,
    bytes: usize,
}

impl ImageCache {
    /// Keeps at most `limit` bytes of pixels.
    pub fn new(split: Arc<Split>, side: usize, limit: usize, decode: Box<Decode>) -> Self {
        ImageCache {
            split,
            side,
            limit,
            decode,
            state: Mutex::default(),
        }
    }

    /// Width and height of an image of the split at this cache's size.
    pub fn size(&self, index: usize) -> (usize, usize) {
        let entry = &self.split.images[index];
        fitted(entry.width as usize, entry.height as usize, self.side)
    }

    /// The image with this index of the split. Threads that want the same image at the same time wait for one of them.
    pub fn get(&self, index: usize) -> Result<Arc<Rgb>, LoaderError> {
        let cell = self.cell(index);
        let result = cell.get_or_init(|| self.load(index).map(Arc::new)).clone();
        if result.is_err() {
            // A later try may succeed, e.g. after a network drive came back.
            self.forget(index);
        }
        result
    }

    /// Bytes of pixels that are kept (or being decoded) now.
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent between statements; a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cell(&self, index: usize) -> Cell {
        let (width, height) = self.size(index);
        let bytes = width * height * 3;
        let mut state = self.lock();
        let state = &mut *state;
        state.clock += 1;
        let now = state.clock;
        if let Some(entry) = state.entries.get_mut(&index) {
            state.recency.remove(&entry.used);
            state.recency.insert(now, index);
            entry.used = now;
            return entry.cell.clone();
        }
        let cell = Cell::default();
        if bytes <= self.limit {
            let entry = Entry {
                cell: cell.clone(),
                used: now,
                bytes,
            };
            state.entries.insert(index, entry);
            state.recency.insert(now, index);
            state.bytes += bytes;
            while state.bytes > self.limit {
                let Some((_, oldest)) = state.recency.pop_first() else {
                    break;
                };
                if let Some(entry) = state.entries.remove(&oldest) {
                    state.bytes -= entry.bytes;
                }
            }
        }
        cell
    }

    fn forget(&self, index: usize) {
        let mut state = self.lock();
        if let Some(entry) = state.entries.remove(&index) {
            state.recency.remove(&entry.used);
            state.bytes -= entry.bytes;
        }
    }

    fn load(&self, index: usize) -> Result<Rgb, LoaderError> {
        let entry = &self.split.images[index];
        let file = || entry.path.clone();
        let image = (self.decode)(&entry.path).map_err(|source| LoaderError::Decode {
            file: file(),
            source: Arc::new(source),
        })?;
        let expected = (entry.width as usize, entry.height as usize);
        if (image.width, image.height) != expected {
            return Err(LoaderError::SizeChanged {
                file: file(),
                expected,
                found: (image.width, image.height),
            });
        }
        let (width, height) = self.size(index);
        resize(&image, width, height).map_err(|reason| LoaderError::Resize {
            file: file(),
            reason,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::ImageEntry;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn split(images: usize) -> Arc<Split> {
        let entry = |i: usize| ImageEntry {
            id: i as u64,
            file_name: format!("{i}"),
            path: format!("{i}").into(),
            width: 20,
            height: 10,
            labels: vec![],
            truths: vec![],
        };
        Arc::new(Split {
            names: vec![],
            category_ids: vec![],
            images: (0..images).map(entry).collect(),
            image_id_in_file: true,
        })
    }

    fn counting(count: &Arc<AtomicUsize>) -> Box<Decode> {
        let count = count.clone();
        Box::new(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(Rgb {
                width: 20,
                height: 10,
                pixels: vec![7; 600],
            })
        })
    }

    #[test]
    fn an_image_is_decoded_once_and_the_least_recently_used_goes_first() {
        let count = Arc::new(AtomicUsize::new(0));
        // 10 x 5 x 3 = 150 bytes each: room for three.
        let cache = ImageCache::new(split(5), 10, 450, counting(&count));
        for index in [0, 1, 2, 0, 1, 2] {
            assert_eq!(cache.get(index).expect("decodes").width, 10);
        }
        assert_eq!(count.load(Ordering::SeqCst), 3);
        cache.get(0).expect("decodes");
        cache.get(3).expect("decodes");
        assert_eq!((count.load(Ordering::SeqCst), cache.bytes()), (4, 450));
        cache.get(0).expect("decodes");
        assert_eq!(count.load(Ordering::SeqCst), 4);
        cache.get(1).expect("decodes");
        assert_eq!(count.load(Ordering::SeqCst), 5);
    }

    #[test]
    fn nothing_is_kept_without_room() {
        let count = Arc::new(AtomicUsize::new(0));
        let cache = ImageCache::new(split(1), 10, 0, counting(&count));
        cache.get(0).expect("decodes");
        cache.get(0).expect("decodes");
        assert_eq!((count.load(Ordering::SeqCst), cache.bytes()), (2, 0));
    }

    #[test]
    fn a_changed_size_is_an_error_and_errors_are_not_kept() {
        let small: Box<Decode> = Box::new(|_| {
            Ok(Rgb {
                width: 2,
                height: 1,
                pixels: vec![0; 6],
            })
        });
        let cache = ImageCache::new(split(1), 10, 1000, small);
        let error = cache.get(0).expect_err("wrong size");
        assert!(error.to_string().contains("20 x 10"), "{error}");
        assert_eq!(cache.bytes(), 0);
    }
}
