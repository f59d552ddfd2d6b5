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
/// Blocks of one size that nobody uses.
struct Shelf {
    blocks: Vec<Block>,
    /// When a block of this size was last asked for or came back.
    used: u64,
}

/// Everything that was allocated.
struct Store {
    shelves: BTreeMap<usize, Shelf>,
    /// Bytes on shelves.
    free: usize,
    /// Bytes in use, and the most that ever were.
    live: usize,
    most: usize,
    clock: u64,
}

static STORE: Mutex<Store> = Mutex::new(Store {
    shelves: BTreeMap::new(),
    free: 0,
    live: 0,
    most: 0,
    clock: 0,
});

impl Store {
    fn shelf(&mut self, bytes: usize) -> &mut Shelf {
        self.clock += 1;
        let shelf = self.shelves.entry(bytes).or_insert(Shelf {
            blocks: vec![],
            used: 0,
        });
        shelf.used = self.clock;
        shelf
    }

    fn take(&mut self, bytes: usize) -> Option<Block> {
        self.live += bytes;
        self.most = self.most.max(self.live);
        let block = self.shelf(bytes).blocks.pop()?;
        self.free -= bytes;
        Some(block)
    }

    /// Keeps a block. Free memory is at most what was ever in use at once: a step of one image size finds all of its
    /// buffers again, and where sizes change those that were not used for longest go back to the system, which is
    /// what this returns.
    fn give_back(&mut self, block: Block) -> Vec<Block> {
        let bytes = block.bytes;
        self.live -= bytes;
        self.free += bytes;
        self.shelf(bytes).blocks.push(block);
        let mut surplus = vec![];
        while self.free > self.most {
            let oldest = self
                .shelves
                .iter()
                .filter(|s| !s.1.blocks.is_empty())
                .min_by_key(|s| s.1.used);
            let Some((&size, _)) = oldest else { break };
            if let Some(block) = self.shelves.get_mut(&size).and_then(|s| s.blocks.pop()) {
                self.free -= size;
                surplus.push(block);
            }
        }
        surplus
    }
}

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

    /// Memory with whatever an earlier owner left in it. Fresh memory is cleared, so that every byte has a value.
    fn take(bytes: usize) -> Self {
        if let Some(block) = STORE
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(bytes)
        {
            return block;
        }
        // SAFETY: the layout's size is not 0 (see `Buffer::new`).
        let at = unsafe { alloc(Self::layout(bytes)) };
        let Some(at) = NonNull::new(at) else {
            handle_alloc_error(Self::layout(bytes))
        };
        // SAFETY: freshly allocated, `bytes` long.
        unsafe { at.as_ptr().write_bytes(0, bytes) };
        Self { at, bytes }
    }

    /// Back to the free ones.
    fn give_back(self) {
        let surplus = STORE
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .give_back(self);
        surplus.into_iter().for_each(Self::release);
    }

    fn release(self) {
        // SAFETY: allocated in `take` with this layout, and nobody refers to it: `self` is consumed.
        unsafe { dealloc(self.at.as_ptr(), Self::layout(self.bytes)) };
    }
}

/// Gives all free buffers back to the system.
pub fn trim() {
    let mut store = STORE.lock().unwrap_or_else(PoisonError::into_inner);
    let shelves = std::mem::take(&mut store.shelves);
    (store.free, store.most) = (0, store.live);
    drop(store);
    shelves
        .into_values()
        .flat_map(|s| s.blocks)
        .for_each(Block::release);
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
    fn free_memory_stays_below_what_was_in_use_at_once() {
        // sizes that change from round to round, as with multi-scale training
        for round in 0..50 {
            let _both = (Buffer::new(200_000 + round), Buffer::new(300_000 + round));
        }
        let store = STORE.lock().unwrap();
        assert!(store.free <= store.most);
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
