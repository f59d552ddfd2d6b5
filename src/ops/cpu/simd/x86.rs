//! AVX-512 and AVX2 with FMA.

use std::arch::x86_64::*;

use super::Simd;

/// AVX-512 (F, DQ, VL, BW).
#[derive(Debug, Clone, Copy)]
pub struct Avx512(());

/// AVX2 and FMA.
#[derive(Debug, Clone, Copy)]
pub struct Avx2(());

impl Avx512 {
    /// # Safety
    /// The machine has AVX-512 F, DQ, VL, BW, AVX2 and FMA.
    #[inline(always)]
    pub unsafe fn new() -> Avx512 {
        Avx512(())
    }
}

impl Avx2 {
    /// # Safety
    /// The machine has AVX2 and FMA.
    #[inline(always)]
    pub unsafe fn new() -> Avx2 {
        Avx2(())
    }
}

/// Methods that are one expression of intrinsics.
macro_rules! methods {
    ($(fn $name:ident($($a:ident: $t:ty),*) -> $r:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, $($a: $t),*) -> $r {
            // SAFETY: the token says that the machine has the instructions; they touch registers alone.
            unsafe { $body }
        }
    )*};
}

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

impl Simd for Avx512 {
    const N: usize = 16;
    const REGISTERS: usize = 32;
    type V = __m512;
    type M = __mmask16;

    methods! {
        fn splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        fn add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        fn sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        fn mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        fn div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        fn fnma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fnmadd_ps(a, b, c);
        fn max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        fn min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        fn abs(a: __m512) -> __m512 = _mm512_abs_ps(a);
        fn sqrt(a: __m512) -> __m512 = _mm512_sqrt_ps(a);
        // 14 bits and one step of Newton's method: a third of a division's time.
        fn recip(a: __m512) -> __m512 = {
            let r = _mm512_rcp14_ps(a);
            _mm512_fmadd_ps(r, _mm512_fnmadd_ps(a, r, _mm512_set1_ps(1.0)), r)
        };
        fn round(a: __m512) -> __m512 = _mm512_roundscale_ps::<NEAREST>(a);
        fn scale2(a: __m512, k: __m512) -> __m512 = _mm512_scalef_ps(a, k);
        fn split2(a: __m512) -> (__m512, __m512) = (
            _mm512_getmant_ps::<_MM_MANT_NORM_1_2, _MM_MANT_SIGN_SRC>(a),
            _mm512_getexp_ps(a)
        );
        fn lt(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b);
        fn le(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(a, b);
        fn eq(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b);
        fn select(m: __mmask16, a: __m512, b: __m512) -> __m512 = _mm512_mask_blend_ps(m, b, a);
        fn add_pairs(a: __m512) -> __m512 = {
            let (even, odd) = even_odd(a);
            _mm512_add_ps(even, odd)
        };
        fn reduce_add(a: __m512) -> f32 =
            add_halves(_mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a)));
        fn reduce_max(a: __m512) -> f32 =
            max_halves(_mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a)));
    }

    #[inline(always)]
    fn prefetch(self, p: *const f32) {
        // SAFETY: a hint, which never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    fn prefetch_far(self, p: *const f32) {
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    #[inline(always)]
    fn prefetch_write(self, p: *mut f32) {
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(p.cast_const().cast()) }
    }
    #[inline(always)]
    unsafe fn splat_pair(self, p: *const f32) -> __m512 {
        // SAFETY: the caller's.
        unsafe { _mm512_castpd_ps(_mm512_set1_pd(p.cast::<f64>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        // SAFETY: the caller's.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m512) {
        // SAFETY: the caller's.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_first(self, p: *const f32, n: usize) -> __m512 {
        // SAFETY: the caller's; masked elements are not accessed.
        unsafe { _mm512_maskz_loadu_ps(first16(n), p) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, v: __m512, n: usize) {
        // SAFETY: the caller's; masked elements are not accessed.
        unsafe { _mm512_mask_storeu_ps(p, first16(n), v) }
    }
}

#[inline(always)]
unsafe fn even_odd(a: __m512) -> (__m512, __m512) {
    // SAFETY: called with a token for AVX-512.
    unsafe {
        let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14);
        let odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
        (
            _mm512_permutexvar_ps(even, a),
            _mm512_permutexvar_ps(odd, a),
        )
    }
}

#[inline(always)]
fn first16(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

impl Simd for Avx2 {
    const N: usize = 8;
    const REGISTERS: usize = 16;
    type V = __m256;
    type M = __m256;

    methods! {
        fn splat(x: f32) -> __m256 = _mm256_set1_ps(x);
        fn add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        fn sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
        fn mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        fn div(a: __m256, b: __m256) -> __m256 = _mm256_div_ps(a, b);
        fn fma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
        fn fnma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fnmadd_ps(a, b, c);
        fn max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b);
        fn min(a: __m256, b: __m256) -> __m256 = _mm256_min_ps(a, b);
        fn abs(a: __m256) -> __m256 = _mm256_andnot_ps(_mm256_set1_ps(-0.0), a);
        fn sqrt(a: __m256) -> __m256 = _mm256_sqrt_ps(a);
        fn recip(a: __m256) -> __m256 = _mm256_div_ps(_mm256_set1_ps(1.0), a);
        fn round(a: __m256) -> __m256 = _mm256_round_ps::<NEAREST>(a);
        fn scale2(a: __m256, k: __m256) -> __m256 = {
            let bits = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(k), _mm256_set1_epi32(127)));
            _mm256_mul_ps(a, _mm256_castsi256_ps(bits))
        };
        fn split2(a: __m256) -> (__m256, __m256) = {
            let bits = _mm256_castps_si256(a);
            let m = _mm256_and_si256(bits, _mm256_set1_epi32(0x007f_ffff));
            let m = _mm256_or_si256(m, _mm256_set1_epi32(0x3f80_0000));
            let k = _mm256_sub_epi32(_mm256_srli_epi32::<23>(bits), _mm256_set1_epi32(127));
            (_mm256_castsi256_ps(m), _mm256_cvtepi32_ps(k))
        };
        fn lt(a: __m256, b: __m256) -> __m256 = _mm256_cmp_ps::<_CMP_LT_OQ>(a, b);
        fn le(a: __m256, b: __m256) -> __m256 = _mm256_cmp_ps::<_CMP_LE_OQ>(a, b);
        fn eq(a: __m256, b: __m256) -> __m256 = _mm256_cmp_ps::<_CMP_EQ_OQ>(a, b);
        fn select(m: __m256, a: __m256, b: __m256) -> __m256 = _mm256_blendv_ps(b, a, m);
        fn reduce_add(a: __m256) -> f32 = add_halves(a);
        fn reduce_max(a: __m256) -> f32 = max_halves(a);
    }

    #[inline(always)]
    fn prefetch(self, p: *const f32) {
        // SAFETY: a hint, which never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    fn prefetch_far(self, p: *const f32) {
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    #[inline(always)]
    fn prefetch_write(self, p: *mut f32) {
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(p.cast_const().cast()) }
    }
    #[inline(always)]
    unsafe fn splat_pair(self, p: *const f32) -> __m256 {
        // SAFETY: the caller's.
        unsafe { _mm256_castpd_ps(_mm256_set1_pd(p.cast::<f64>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m256 {
        // SAFETY: the caller's.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m256) {
        // SAFETY: the caller's.
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_first(self, p: *const f32, n: usize) -> __m256 {
        // SAFETY: the caller's; masked elements are not accessed.
        unsafe { _mm256_maskload_ps(p, first8(n)) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, v: __m256, n: usize) {
        // SAFETY: the caller's; masked elements are not accessed.
        unsafe { _mm256_maskstore_ps(p, first8(n), v) }
    }
}

/// Ones in the first `n` elements.
#[inline(always)]
unsafe fn first8(n: usize) -> __m256i {
    // SAFETY: called with a token for AVX2.
    unsafe {
        _mm256_cmpgt_epi32(
            _mm256_set1_epi32(n as i32),
            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
        )
    }
}

#[inline(always)]
unsafe fn add_halves(a: __m256) -> f32 {
    // SAFETY: called with a token for AVX2 or better.
    unsafe {
        let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
        _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps::<1>(a, a)))
    }
}

#[inline(always)]
unsafe fn max_halves(a: __m256) -> f32 {
    // SAFETY: called with a token for AVX2 or better.
    unsafe {
        let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
        _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps::<1>(a, a)))
    }
}
