//! Bias gradient: sums over pixels.

use std::ops::Range;

use rayon::prelude::*;

use super::super::isa::{Isa, Kernel};
use super::super::lanes::{self, LaneSums};
use super::super::simd::Simd;

/// Pixels whose sum is formed in float32; these sums are added in float64.
const CHUNK: usize = 256;

struct Sum<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Sum<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let c = self.out.len();
        let pixels = self.x.len() / c;
        for at in (0..c).step_by(S::N) {
            let n = (c - at).min(S::N);
            // SAFETY: `at + n <= c`, and there are `pixels` times `c` numbers.
            unsafe {
                let x = self.x.as_ptr().add(at);
                let mut sum = s.zero();
                for p in 0..pixels {
                    sum = s.add(sum, s.load_first(x.add(p * c), n));
                }
                s.store_first(self.out.as_mut_ptr().add(at), sum, n);
            }
        }
    }
}

/// Sums over images and pixels of `x` `[n, pixels, channels]`, `[channels]` each: over the lanes of a group as in
/// [`lanes::tree`], where a lane's sum is rounded to float32 once.
pub fn column_sums(
    isa: Isa,
    x: &[f32],
    [images, c]: [usize; 2],
    lanes: &[Range<usize>],
    sums: &mut LaneSums,
) {
    lanes::check(lanes, images);
    assert!(
        c > 0 && x.len().is_multiple_of(images.max(1) * c),
        "x is not [{images}, pixels, {c}]"
    );
    let image = x.len() / images.max(1);
    let parts: Vec<Option<Vec<f32>>> = lanes
        .par_iter()
        .map(|lane| {
            if lane.is_empty() {
                return None;
            }
            let (mut total, mut chunk) = (vec![0.0f64; c], vec![0.0f32; c]);
            for i in lane.clone() {
                for x in x[i * image..(i + 1) * image].chunks(CHUNK * c) {
                    isa.run(Sum { x, out: &mut chunk });
                    total
                        .iter_mut()
                        .zip(&chunk)
                        .for_each(|(t, &s)| *t += f64::from(s));
                }
            }
            Some(total.iter().map(|&t| t as f32).collect())
        })
        .collect();
    sums.put(&parts);
}
