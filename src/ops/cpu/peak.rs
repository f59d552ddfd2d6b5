//! The machine's peak in float32 multiply-adds.

use super::isa::{Isa, Kernel};
use super::simd::Simd;
use std::time::Instant;

struct MultiplyAdds(usize);

impl Kernel for MultiplyAdds {
    type Output = (f64, f32);
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> (f64, f32) {
        let mut acc = [s.splat(1.0); 12];
        let (a, b) = (
            s.splat(std::hint::black_box(0.5)),
            s.splat(std::hint::black_box(0.25)),
        );
        for _ in 0..self.0 {
            for v in &mut acc {
                *v = s.fma(*v, a, b);
            }
        }
        let sum = acc.iter().fold(s.zero(), |t, &v| s.add(t, v));
        ((self.0 * 12 * S::N * 2) as f64, s.reduce_add(sum))
    }
}

/// Floating-point operations per second of all threads of the current pool in a loop of multiply-adds that touches no
/// memory: the best of five.
pub fn peak_flops(isa: Isa) -> f64 {
    let mut best: f64 = 0.0;
    for _ in 0..5 {
        let start = Instant::now();
        let done = rayon::broadcast(|_| std::hint::black_box(isa.run(MultiplyAdds(2_000_000))).0);
        best = best.max(done.iter().sum::<f64>() / start.elapsed().as_secs_f64());
    }
    best
}
