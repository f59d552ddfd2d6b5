//! Buffers of the CPU kernels, recycled: a training step asks for the same sizes again and again, and fresh memory costs
//! page faults and clearing.
//!
//! A tensor's storage is a boxed allocation controller, so a buffer becomes a tensor without a copy and comes back when
//! the last tensor over it is dropped.

use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{DType, Shape};
use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty, Bytes};
use std::alloc::{Layout as Memory, alloc, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

/// A cache line; also the width of the widest vector.
const ALIGN: usize = 64;
/// Free bytes beyond this are given back to the system.
const CAP: usize = 2 << 30;

/// Free blocks by size.
struct Free {
    blocks: BTreeMap<usize, Vec<Block>>,
    bytes: usize,
}

static FREE: Mutex<Free> = Mutex::new(Free {
    blocks: BTreeMap::new(),
    bytes: 0,
});

/// An owned piece of memory of `bytes` bytes, a multiple of 4 and not 0.
struct Block {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a block owns its memory alone; nothing in it belongs to a thread.
unsafe impl Send for Block {}
// SAFETY: shared access only reads.
unsafe impl Sync for Block {}

impl Block {
    fn layout(bytes: usize) -> Memory {
        Memory::from_size_align(bytes, ALIGN)
            .expect("sizes of tensors are far below the address space")
    }

    /// Memory with whatever is in it: what an earlier owner left, or nothing defined. Fresh memory is cleared, so that
    /// every byte has a value.
    fn take(bytes: usize) -> Self {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(block) = free.blocks.get_mut(&bytes).and_then(Vec::pop) {
            free.bytes -= bytes;
            return block;
        }
        drop(free);
        // SAFETY: the layout's size is not 0 (see `Buffer::new`).
        let at = unsafe { alloc(Self::layout(bytes)) };
        let Some(at) = NonNull::new(at) else {
            handle_alloc_error(Self::layout(bytes))
        };
        // SAFETY: freshly allocated, `bytes` long.
        unsafe { at.as_ptr().write_bytes(0, bytes) };
        Self { at, bytes }
    }

    /// Back to the free ones, or to the system where there are enough.
    fn give_back(self) {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        if free.bytes + self.bytes > CAP {
            drop(free);
            // SAFETY: allocated in `take` with this layout, and nobody refers to it: `self` is consumed.
            unsafe { dealloc(self.at.as_ptr(), Self::layout(self.bytes)) };
            return;
        }
        free.bytes += self.bytes;
        free.blocks.entry(self.bytes).or_default().push(self);
    }
}

/// Gives all free buffers back to the system: at a change of image size, before validation.
pub fn trim() {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    let blocks = std::mem::take(&mut free.blocks);
    free.bytes = 0;
    drop(free);
    for block in blocks.into_values().flatten() {
        // SAFETY: as in `give_back`.
        unsafe { dealloc(block.at.as_ptr(), Block::layout(block.bytes)) };
    }
}

/// The storage of a tensor over a block.
struct Owner(Option<Block>);

impl Owner {
    fn block(&self) -> &Block {
        self.0.as_ref().expect("taken only in drop")
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(block) = self.0.take() {
            block.give_back();
        }
    }
}

impl AllocationController for Owner {
    fn alloc_align(&self) -> usize {
        ALIGN
    }
    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }
    unsafe fn memory_mut(
        &mut self,
        _: AccessPolicy,
    ) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        let b = self.block();
        // SAFETY: the block is this long and ours; `&mut self` makes the access exclusive.
        Ok(unsafe { std::slice::from_raw_parts_mut(b.at.as_ptr().cast(), b.bytes) })
    }
    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        let b = self.block();
        // SAFETY: the block is this long and ours.
        Ok(unsafe { std::slice::from_raw_parts(b.at.as_ptr().cast(), b.bytes) })
    }
}

/// `len` numbers with whatever was in them: who takes a buffer writes all of it.
pub(super) struct Buffer {
    owner: Owner,
    len: usize,
}

impl Buffer {
    pub fn new(len: usize) -> Self {
        // an empty tensor still has an address
        Self {
            owner: Owner(Some(Block::take(len.max(1) * 4))),
            len,
        }
    }

    /// A tensor over this memory.
    pub fn into_tensor(self, shape: impl Into<Shape>) -> FlexTensor {
        let shape = shape.into();
        assert_eq!(
            shape.num_elements(),
            self.len,
            "a buffer is a tensor's whole storage"
        );
        // SAFETY: all bytes have values (cleared when allocated), and the block is at least this long.
        let bytes = unsafe { Bytes::from_controller(Box::new(self.owner), self.len * 4) };
        FlexTensor::new(bytes, Layout::contiguous(shape), DType::F32)
    }
}

impl Deref for Buffer {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        // SAFETY: the block holds at least `len` floats, aligned to 64 bytes; every bit pattern is a float.
        unsafe { std::slice::from_raw_parts(self.owner.block().at.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `deref`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.owner.block().at.as_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_tensor_s_memory_is_used_again() {
        // a size that no other test asks for
        let len = 123_457;
        let mut b = Buffer::new(len);
        b.fill(2.5);
        let at = b.as_ptr();
        let t = b.into_tensor([len]);
        assert_eq!(t.as_slice::<f32>().unwrap()[len - 1], 2.5);
        let other = Buffer::new(len);
        assert_ne!(other.as_ptr(), at, "in use");
        drop(t);
        assert_eq!(Buffer::new(len).as_ptr(), at);
    }

    #[test]
    fn a_clone_keeps_the_memory() {
        let len = 123_461;
        let mut b = Buffer::new(len);
        b.fill(1.0);
        let t = b.into_tensor([len]);
        let u = t.clone();
        drop(t);
        let mut other = Buffer::new(len);
        other.fill(9.0);
        assert!(u.as_slice::<f32>().unwrap().iter().all(|&v| v == 1.0));
    }

    #[test]
    fn empty_tensors_are_possible() {
        assert_eq!(
            Buffer::new(0)
                .into_tensor([0, 3])
                .as_slice::<f32>()
                .unwrap()
                .len(),
            0
        );
    }
}
