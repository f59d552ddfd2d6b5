//! NEON. Not compiled where this was written (no standard library for aarch64 at hand); its kernels are the ones
//! that `Portable` tests.

use std::arch::aarch64::*;

use super::Simd;

/// NEON (aarch64).
#[derive(Debug, Clone, Copy)]
pub struct Neon(());

impl Neon {
    /// # Safety
    /// The machine has NEON.
    #[inline(always)]
    pub unsafe fn new() -> Neon {
        Neon(())
    }
}

/// Methods that are one expression of intrinsics.
macro_rules! methods {
    ($(fn $name:ident($($a:ident: $t:ty),*) -> $r:ty = $body:expr;)*) => {$(
        #[inline(always)]
        #[allow(unused_unsafe)]
        fn $name(self, $($a: $t),*) -> $r {
            // SAFETY: the token says that the machine has the instructions; they touch registers alone.
            unsafe { $body }
        }
    )*};
}

type V = float32x4_t;

impl Simd for Neon {
    const N: usize = 4;
    const REGISTERS: usize = 32;
    type V = V;
    type M = uint32x4_t;

    methods! {
        fn splat(x: f32) -> V = vdupq_n_f32(x);
        fn add(a: V, b: V) -> V = vaddq_f32(a, b);
        fn sub(a: V, b: V) -> V = vsubq_f32(a, b);
        fn mul(a: V, b: V) -> V = vmulq_f32(a, b);
        fn div(a: V, b: V) -> V = vdivq_f32(a, b);
        fn fma(a: V, b: V, c: V) -> V = vfmaq_f32(c, a, b);
        fn fnma(a: V, b: V, c: V) -> V = vfmsq_f32(c, a, b);
        fn max(a: V, b: V) -> V = vmaxq_f32(a, b);
        fn min(a: V, b: V) -> V = vminq_f32(a, b);
        fn abs(a: V) -> V = vabsq_f32(a);
        fn sqrt(a: V) -> V = vsqrtq_f32(a);
        fn recip(a: V) -> V = vdivq_f32(vdupq_n_f32(1.0), a);
        fn round(a: V) -> V = vrndnq_f32(a);
        fn scale2(a: V, k: V) -> V = vmulq_f32(
            a,
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vcvtq_s32_f32(k), vdupq_n_s32(127))))
        );
        fn split2(a: V) -> (V, V) = {
            let bits = vreinterpretq_s32_f32(a);
            let m = vorrq_s32(vandq_s32(bits, vdupq_n_s32(0x007f_ffff)), vdupq_n_s32(0x3f80_0000));
            (vreinterpretq_f32_s32(m), vcvtq_f32_s32(vsubq_s32(vshrq_n_s32::<23>(bits), vdupq_n_s32(127))))
        };
        fn lt(a: V, b: V) -> uint32x4_t = vcltq_f32(a, b);
        fn le(a: V, b: V) -> uint32x4_t = vcleq_f32(a, b);
        fn eq(a: V, b: V) -> uint32x4_t = vceqq_f32(a, b);
        fn select(m: uint32x4_t, a: V, b: V) -> V = vbslq_f32(m, a, b);
        fn reduce_add(a: V) -> f32 = {
            let half = vadd_f32(vget_low_f32(a), vget_high_f32(a));
            vget_lane_f32::<0>(half) + vget_lane_f32::<1>(half)
        };
        fn reduce_max(a: V) -> f32 = vmaxvq_f32(a);
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> V {
        // SAFETY: the caller's.
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: V) {
        // SAFETY: the caller's.
        unsafe { vst1q_f32(p, v) }
    }
    #[inline(always)]
    unsafe fn load_first(self, p: *const f32, n: usize) -> V {
        let mut v = [0.0f32; 4];
        // SAFETY: the caller's: `n` numbers can be read, and `n <= 4`.
        unsafe {
            std::ptr::copy_nonoverlapping(p, v.as_mut_ptr(), n.min(4));
            vld1q_f32(v.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, v: V, n: usize) {
        let mut out = [0.0f32; 4];
        // SAFETY: the caller's: `n` numbers can be written, and `n <= 4`.
        unsafe {
            vst1q_f32(out.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(out.as_ptr(), p, n.min(4));
        }
    }
}
