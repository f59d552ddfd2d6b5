//! What is done to an output while it is still in the cache.

use super::super::isa::{Isa, Kernel};
use super::super::simd::{Simd, sigmoid};

/// What follows a convolution, per channel of the output.
#[derive(Debug, Clone, Copy)]
pub enum Epilogue<'a> {
    None,
    /// `y + bias`
    Bias(&'a [f32]),
    /// `z = y * scale + shift`, and `z * sigmoid(z)` if `silu`: batch norm with fixed statistics.
    ScaleShift {
        scale: &'a [f32],
        shift: &'a [f32],
        silu: bool,
    },
}

impl Epilogue<'_> {
    pub(super) fn check(&self, channels: usize) {
        let fits = match self {
            Epilogue::None => true,
            Epilogue::Bias(bias) => bias.len() == channels,
            Epilogue::ScaleShift { scale, shift, .. } => {
                scale.len() == channels && shift.len() == channels
            }
        };
        assert!(fits, "the epilogue is not for {channels} channels");
    }

    /// Applies it to whole pixels of `channels` numbers.
    pub(super) fn apply(&self, isa: Isa, y: &mut [f32], channels: usize) {
        debug_assert!(y.len().is_multiple_of(channels));
        match *self {
            Epilogue::None => {}
            Epilogue::Bias(shift) => isa.run(Apply::<false> {
                y,
                channels,
                scale: None,
                shift,
            }),
            Epilogue::ScaleShift {
                scale,
                shift,
                silu: false,
            } => {
                isa.run(Apply::<false> {
                    y,
                    channels,
                    scale: Some(scale),
                    shift,
                });
            }
            Epilogue::ScaleShift {
                scale,
                shift,
                silu: true,
            } => {
                isa.run(Apply::<true> {
                    y,
                    channels,
                    scale: Some(scale),
                    shift,
                });
            }
        }
    }
}

struct Apply<'a, const SILU: bool> {
    y: &'a mut [f32],
    channels: usize,
    scale: Option<&'a [f32]>,
    shift: &'a [f32],
}

impl<const SILU: bool> Kernel for Apply<'_, SILU> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let c = self.channels;
        let pixels = self.y.len() / c;
        let y = self.y.as_mut_ptr();
        for at in (0..c).step_by(S::N) {
            let n = (c - at).min(S::N);
            // SAFETY: `at + n <= c`, the length of scale and shift (checked) and of each pixel.
            unsafe {
                let shift = s.load_first(self.shift.as_ptr().add(at), n);
                let scale = match self.scale {
                    Some(scale) => s.load_first(scale.as_ptr().add(at), n),
                    None => s.splat(1.0),
                };
                for p in 0..pixels {
                    let p = y.add(p * c + at);
                    let mut z = s.fma(s.load_first(p, n), scale, shift);
                    if SILU {
                        z = s.mul(z, sigmoid(s, z));
                    }
                    s.store_first(p, z, n);
                }
            }
        }
    }
}
