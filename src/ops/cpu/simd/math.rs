//! Functions that no instruction has, to about 1e-7 relative.

use super::Simd;

/// `e^x`; below -87.3 (the smallest normal number) and above 88 it stays at those ends' values.
///
/// Range reduction by ln 2 in two parts and a polynomial of degree 5 for the rest, after Cephes' `expf` (S. Moshier).
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let x = s.max(s.min(x, s.splat(88.0)), s.splat(-87.3));
    let k = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let r = s.fnma(k, s.splat(0.693_359_4), x);
    let r = s.fnma(k, s.splat(-2.121_944_4e-4), r);
    let mut p = s.splat(1.987_569_1e-4);
    for c in [
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
    ] {
        p = s.fma(p, r, s.splat(c));
    }
    let e = s.add(s.fma(p, s.mul(r, r), r), s.splat(1.0));
    s.scale2(e, k)
}

/// `1 / (1 + e^-x)`
#[inline(always)]
pub fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    s.recip(s.add(exp(s, s.neg(x)), s.splat(1.0)))
}

/// Natural logarithm of positive normal numbers.
///
/// `x = m 2^k` with `m` in `[sqrt(1/2), sqrt(2))`, a polynomial of degree 8 in `m - 1`, after Cephes' `logf`.
#[inline(always)]
pub fn ln<S: Simd>(s: S, x: S::V) -> S::V {
    let (m, k) = s.split2(x);
    let high = s.lt(s.splat(std::f32::consts::SQRT_2), m);
    let m = s.select(high, s.mul(m, s.splat(0.5)), m);
    let k = s.select(high, s.add(k, s.splat(1.0)), k);
    let r = s.sub(m, s.splat(1.0));
    let z = s.mul(r, r);
    let mut p = s.splat(7.037_683_6e-2);
    for c in [
        -1.151_461e-1,
        1.167_699_9e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_5e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ] {
        p = s.fma(p, r, s.splat(c));
    }
    let y = s.mul(s.mul(p, r), z);
    let y = s.fma(k, s.splat(-2.121_944_4e-4), y);
    let y = s.fnma(s.splat(0.5), z, y);
    s.fma(k, s.splat(0.693_359_4), s.add(r, y))
}
