//! What the tests of the kernels share.

use std::ops::Range;

/// Pseudo-random numbers (a linear congruential generator).
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1)
    }

    pub fn next(&mut self, low: f32, high: f32) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        low + (high - low) * ((self.0 >> 40) as f32 / (1u64 << 24) as f32)
    }

    pub fn vec(&mut self, len: usize, low: f32, high: f32) -> Vec<f32> {
        (0..len).map(|_| self.next(low, high)).collect()
    }
}

/// Every element within `tolerance` of the wanted ones' largest.
pub fn assert_close<T: Copy + Into<f64>>(got: &[T], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(1e-2f64, |a, v| a.max(v.abs()));
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let g: f64 = g.into();
        // not the opposite comparison: what is not a number must fail
        assert!(
            (g - w).abs() <= tolerance * scale,
            "{what} [{i}]: {g} for {w}, largest {scale}"
        );
    }
}

/// Runs `f` in a pool of `n` threads.
pub fn in_threads<T: Send>(n: usize, f: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new()
        .num_threads(n)
        .build()
        .expect("a pool of threads")
        .install(f)
}

/// Four lanes of `n` images.
pub fn quarters(n: usize) -> Vec<Range<usize>> {
    (0..4).map(|l| l * n / 4..(l + 1) * n / 4).collect()
}

/// The same bytes.
pub fn assert_same(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let differs = got
        .iter()
        .zip(want)
        .position(|(g, w)| g.to_bits() != w.to_bits());
    if let Some(i) = differs {
        panic!("{what} [{i}]: {} for {}", got[i], want[i]);
    }
}
