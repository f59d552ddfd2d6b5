//! Plain Rust, for machines without the other sets. The compiler may use what every machine of the target has.

use super::Simd;

/// Vectors of four numbers, like NEON's.
#[derive(Debug, Clone, Copy)]
pub struct Portable(());

impl Portable {
    #[inline(always)]
    pub fn new() -> Portable {
        Portable(())
    }
}

impl Default for Portable {
    fn default() -> Portable {
        Portable::new()
    }
}

const N: usize = 4;

/// Vector of [`Portable`].
#[derive(Debug, Clone, Copy)]
#[repr(C, align(16))]
pub struct Quad([f32; N]);

#[inline(always)]
fn map(a: Quad, f: impl Fn(f32) -> f32) -> Quad {
    Quad([f(a.0[0]), f(a.0[1]), f(a.0[2]), f(a.0[3])])
}

#[inline(always)]
fn zip(a: Quad, b: Quad, f: impl Fn(f32, f32) -> f32) -> Quad {
    Quad([
        f(a.0[0], b.0[0]),
        f(a.0[1], b.0[1]),
        f(a.0[2], b.0[2]),
        f(a.0[3], b.0[3]),
    ])
}

#[inline(always)]
fn compare(a: Quad, b: Quad, f: impl Fn(f32, f32) -> bool) -> [bool; N] {
    [
        f(a.0[0], b.0[0]),
        f(a.0[1], b.0[1]),
        f(a.0[2], b.0[2]),
        f(a.0[3], b.0[3]),
    ]
}

impl Simd for Portable {
    const N: usize = N;
    const REGISTERS: usize = 16;
    type V = Quad;
    type M = [bool; N];

    #[inline(always)]
    fn splat(self, x: f32) -> Quad {
        Quad([x; N])
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Quad {
        // SAFETY: the caller's; an unaligned read of plain numbers.
        Quad(unsafe { p.cast::<[f32; N]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Quad) {
        // SAFETY: the caller's; an unaligned write of plain numbers.
        unsafe { p.cast::<[f32; N]>().write_unaligned(v.0) }
    }
    #[inline(always)]
    unsafe fn load_first(self, p: *const f32, n: usize) -> Quad {
        let mut v = [0.0; N];
        // SAFETY: the caller's: `n` numbers can be read, and `n <= N`.
        unsafe { std::ptr::copy_nonoverlapping(p, v.as_mut_ptr(), n.min(N)) };
        Quad(v)
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, v: Quad, n: usize) {
        // SAFETY: the caller's: `n` numbers can be written, and `n <= N`.
        unsafe { std::ptr::copy_nonoverlapping(v.0.as_ptr(), p, n.min(N)) }
    }
    #[inline(always)]
    fn add(self, a: Quad, b: Quad) -> Quad {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Quad, b: Quad) -> Quad {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Quad, b: Quad) -> Quad {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Quad, b: Quad) -> Quad {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: Quad, b: Quad, c: Quad) -> Quad {
        // Not `mul_add`: without the instruction that is a call of a library function for each number.
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn fnma(self, a: Quad, b: Quad, c: Quad) -> Quad {
        self.sub(c, self.mul(a, b))
    }
    #[inline(always)]
    fn max(self, a: Quad, b: Quad) -> Quad {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Quad, b: Quad) -> Quad {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn abs(self, a: Quad) -> Quad {
        map(a, f32::abs)
    }
    #[inline(always)]
    fn sqrt(self, a: Quad) -> Quad {
        map(a, f32::sqrt)
    }
    #[inline(always)]
    fn recip(self, a: Quad) -> Quad {
        map(a, |a| 1.0 / a)
    }
    #[inline(always)]
    fn round(self, a: Quad) -> Quad {
        // Adding and taking away 1.5 * 2^23 rounds numbers below 2^22 to the nearest even; larger ones are whole
        // here only from 2^23 on, so they take the library's way.
        map(a, |a| {
            if a.abs() < 4_194_304.0 {
                (a + 12_582_912.0) - 12_582_912.0
            } else {
                a.round_ties_even()
            }
        })
    }
    #[inline(always)]
    fn scale2(self, a: Quad, k: Quad) -> Quad {
        zip(a, k, |a, k| {
            a * f32::from_bits(((k as i32 + 127) as u32) << 23)
        })
    }
    #[inline(always)]
    fn split2(self, a: Quad) -> (Quad, Quad) {
        (
            map(a, |a| {
                f32::from_bits((a.to_bits() & 0x007f_ffff) | 0x3f80_0000)
            }),
            map(a, |a| ((a.to_bits() >> 23) as i32 - 127) as f32),
        )
    }
    #[inline(always)]
    fn lt(self, a: Quad, b: Quad) -> [bool; N] {
        compare(a, b, |a, b| a < b)
    }
    #[inline(always)]
    fn le(self, a: Quad, b: Quad) -> [bool; N] {
        compare(a, b, |a, b| a <= b)
    }
    #[inline(always)]
    fn eq(self, a: Quad, b: Quad) -> [bool; N] {
        compare(a, b, |a, b| a == b)
    }
    #[inline(always)]
    fn select(self, m: [bool; N], a: Quad, b: Quad) -> Quad {
        let pick = |i: usize| if m[i] { a.0[i] } else { b.0[i] };
        Quad([pick(0), pick(1), pick(2), pick(3)])
    }
    #[inline(always)]
    fn reduce_add(self, a: Quad) -> f32 {
        (a.0[0] + a.0[2]) + (a.0[1] + a.0[3])
    }
    #[inline(always)]
    fn reduce_max(self, a: Quad) -> f32 {
        a.0[0].max(a.0[1]).max(a.0[2].max(a.0[3]))
    }
}
