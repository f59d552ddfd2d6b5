//! Working memory that a thread keeps from call to call.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// How many buffers a thread keeps.
const KEPT: usize = 8;

thread_local! {
    static FREE: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// `len` numbers of any value, given back to the dropping thread's store.
pub(super) struct Buffer {
    data: Vec<f32>,
    len: usize,
}

impl Buffer {
    /// The smallest kept buffer that is large enough, or else the largest, grown.
    pub fn take(len: usize) -> Buffer {
        let mut data = FREE.with_borrow_mut(|free| {
            let fits = (0..free.len())
                .filter(|&i| free[i].len() >= len)
                .min_by_key(|&i| free[i].len());
            let best = fits.or_else(|| (0..free.len()).max_by_key(|&i| free[i].len()));
            best.map(|i| free.swap_remove(i)).unwrap_or_default()
        });
        if data.len() < len {
            // Nothing of the old content is wanted, so nothing is copied.
            data.clear();
            data.resize(len, 0.0);
        }
        Buffer { data, len }
    }

    /// As `take`, filled with zeros.
    pub fn zeros(len: usize) -> Buffer {
        let mut buffer = Buffer::take(len);
        buffer.fill(0.0);
        buffer
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let data = std::mem::take(&mut self.data);
        // A thread that ends may have lost its store already: then the memory is simply freed.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < KEPT {
                free.push(data);
            } else if let Some(i) = (0..free.len()).min_by_key(|&i| free[i].len())
                && free[i].len() < data.len()
            {
                free[i] = data;
            }
        });
    }
}

impl Deref for Buffer {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.data[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.data[..self.len]
    }
}

/// A pointer into memory that several tasks write, each its own part.
#[derive(Clone, Copy)]
pub(super) struct Shared(*mut f32);

// SAFETY: a plain address; who writes through it says why its part is its own.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub fn new(data: &mut [f32]) -> Shared {
        Shared(data.as_mut_ptr())
    }

    /// Address of element `i`.
    ///
    /// # Safety
    /// `i` lies inside the memory, or at its end.
    #[inline(always)]
    pub unsafe fn at(self, i: usize) -> *mut f32 {
        // SAFETY: the caller's.
        unsafe { self.0.add(i) }
    }

    /// Elements `start..start + len`.
    ///
    /// # Safety
    /// They lie inside the memory, which outlives the slice, and no other task touches them meanwhile.
    #[inline(always)]
    pub unsafe fn slice<'a>(self, start: usize, len: usize) -> &'a mut [f32] {
        // SAFETY: the caller's.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}
