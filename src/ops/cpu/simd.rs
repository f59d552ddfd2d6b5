//! A vector of float32 as the kernels see it, one implementation for each instruction set.
//!
//! A kernel is written once, generic over [`Simd`], and is compiled for each set by [`super::isa::Isa::run`].
//! Everything here is `#[inline(always)]`: it becomes part of the function that enables the instructions.

mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use math::{exp, ln, sigmoid};
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
pub use portable::Portable;
#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

/// Most elements of a vector.
pub const MAX_N: usize = 16;

/// A token for an instruction set that the machine has; its methods are that set's operations on vectors of
/// `N` float32. Values of it are made by `Isa::run` alone (making one elsewhere is `unsafe`).
///
/// `max`, `min` and the comparisons are specified for numbers, not for NaN.
pub trait Simd: Copy + Send + Sync + 'static {
    /// Elements of a vector.
    const N: usize;
    /// Architectural vector registers: what a kernel may keep in flight.
    const REGISTERS: usize;
    /// Vector.
    type V: Copy;
    /// Result of a comparison, per element.
    type M: Copy;

    fn splat(self, x: f32) -> Self::V;
    #[inline(always)]
    fn zero(self) -> Self::V {
        self.splat(0.0)
    }
    /// # Safety
    /// `p..p + N` can be read. No alignment is needed.
    unsafe fn load(self, p: *const f32) -> Self::V;
    /// # Safety
    /// `p..p + N` can be written. No alignment is needed.
    unsafe fn store(self, p: *mut f32, v: Self::V);
    /// The first `n <= N` elements, zeros behind them.
    ///
    /// # Safety
    /// `p..p + n` can be read; nothing behind is touched.
    unsafe fn load_first(self, p: *const f32, n: usize) -> Self::V;
    /// Stores the first `n <= N` elements.
    ///
    /// # Safety
    /// `p..p + n` can be written; nothing behind is touched.
    unsafe fn store_first(self, p: *mut f32, v: Self::V, n: usize);

    /// Two numbers, repeated.
    ///
    /// # Safety
    /// `p..p + 2` can be read.
    #[inline(always)]
    unsafe fn splat_pair(self, p: *const f32) -> Self::V {
        let mut v = [0.0f32; MAX_N];
        for (i, v) in v.iter_mut().enumerate().take(Self::N) {
            // SAFETY: the caller's.
            *v = unsafe { *p.add(i % 2) };
        }
        // SAFETY: a vector has at most `MAX_N` elements.
        unsafe { self.load(v.as_ptr()) }
    }
    /// Sums of neighbours in the first half; the second half is unspecified.
    #[inline(always)]
    fn add_pairs(self, a: Self::V) -> Self::V {
        let mut v = [0.0f32; MAX_N];
        // SAFETY: a vector has at most `MAX_N` elements.
        unsafe { self.store(v.as_mut_ptr(), a) };
        for i in 0..Self::N / 2 {
            v[i] = v[2 * i] + v[2 * i + 1];
        }
        // SAFETY: as above.
        unsafe { self.load(v.as_ptr()) }
    }

    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once where the set has such an instruction.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `c - a * b`, rounded once where the set has such an instruction.
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    fn abs(self, a: Self::V) -> Self::V;
    fn sqrt(self, a: Self::V) -> Self::V;
    /// `1 / a` to about 1 unit in the last place, for finite `a` whose reciprocal is a normal number.
    fn recip(self, a: Self::V) -> Self::V;
    #[inline(always)]
    fn neg(self, a: Self::V) -> Self::V {
        self.sub(self.splat(-0.0), a)
    }

    /// To the nearest integer, ties to even.
    fn round(self, a: Self::V) -> Self::V;
    /// `a * 2^k` for whole numbers `k` in -126..=127.
    fn scale2(self, a: Self::V, k: Self::V) -> Self::V;
    /// `(m, k)` with `a = m * 2^k` and `m` in `[1, 2)`, for positive normal numbers.
    fn split2(self, a: Self::V) -> (Self::V, Self::V);

    fn lt(self, a: Self::V, b: Self::V) -> Self::M;
    fn le(self, a: Self::V, b: Self::V) -> Self::M;
    fn eq(self, a: Self::V, b: Self::V) -> Self::M;
    /// `a` where the mask is set, `b` elsewhere.
    fn select(self, m: Self::M, a: Self::V, b: Self::V) -> Self::V;

    /// Asks for the cache line at `p` (any address) for reading, into the first cache.
    #[inline(always)]
    fn prefetch(self, p: *const f32) {
        let _ = p;
    }
    /// As `prefetch`, into the second cache.
    #[inline(always)]
    fn prefetch_far(self, p: *const f32) {
        let _ = p;
    }
    /// Asks for the cache line at `p` (any address) for writing.
    #[inline(always)]
    fn prefetch_write(self, p: *mut f32) {
        let _ = p;
    }

    /// Sum of the elements, pairwise: halves are added until one is left, the same order for every caller.
    fn reduce_add(self, a: Self::V) -> f32;
    /// Largest element.
    fn reduce_max(self, a: Self::V) -> f32;
}

#[cfg(test)]
mod tests;
