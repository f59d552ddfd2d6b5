use std::ops::Range;

use super::*;
use crate::ops::cpu::lanes::{LaneSums, cut};

/// Numbers in -1..1 from a counter.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    fn vec(&mut self, n: usize) -> Vec<f32> {
        (0..n)
            .map(|_| (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
            .collect()
    }
}

/// Calls `f(x index, w index, y index)` for every product of the convolution.
fn products(s: &ConvShape, mut f: impl FnMut(usize, usize, usize)) {
    let (oh, ow, p) = (s.out_h(), s.out_w(), s.k as isize / 2);
    let (cig, cog) = (s.ci / s.groups, s.co / s.groups);
    for b in 0..s.n {
        for r in 0..oh {
            for q in 0..ow {
                for t in 0..s.k * s.k {
                    let i = (r * s.stride + t / s.k) as isize - p;
                    let j = (q * s.stride + t % s.k) as isize - p;
                    if i < 0 || j < 0 || i >= s.h as isize || j >= s.w as isize {
                        continue;
                    }
                    let x = (b * s.h + i as usize) * s.w + j as usize;
                    let y = (b * oh + r) * ow + q;
                    for o in 0..s.co {
                        for c in 0..cig {
                            f(
                                x * s.ci + o / cog * cig + c,
                                (t * cig + c) * s.co + o,
                                y * s.co + o,
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Compares with float64 values and the sums of the absolute products that make them up.
fn close(what: &str, s: &ConvShape, isa: Isa, got: &[f32], want: &[f64], size: &[f64]) {
    assert_eq!(got.len(), want.len());
    for i in 0..got.len() {
        let error = (f64::from(got[i]) - want[i]).abs();
        assert!(
            error <= 2e-6 * size[i] + 1e-6,
            "{what} {isa:?} {s:?} at {i}: {} for {}",
            got[i],
            want[i]
        );
    }
}

fn check(isa: Isa, s: &ConvShape, rng: &mut Rng) {
    let (x, w, dy) = (rng.vec(s.x_len()), rng.vec(s.w_len()), rng.vec(s.y_len()));
    let zeros = |n: usize| (vec![0.0f64; n], vec![0.0f64; n]);
    let (mut y, mut dx, mut dw) = (zeros(s.y_len()), zeros(s.x_len()), zeros(s.w_len()));
    products(s, |i, j, o| {
        let (a, b, d) = (f64::from(x[i]), f64::from(w[j]), f64::from(dy[o]));
        for (out, at, v) in [(&mut y, o, a * b), (&mut dx, i, b * d), (&mut dw, j, a * d)] {
            out.0[at] += v;
            out.1[at] += v.abs();
        }
    });
    let mut got = vec![f32::NAN; s.y_len()];
    conv_forward(isa, s, &x, &w, &mut got, Epilogue::None);
    close("forward", s, isa, &got, &y.0, &y.1);
    let mut got = vec![f32::NAN; s.x_len()];
    conv_backward_data(isa, s, &dy, &w, &mut got, false);
    close("backward_data", s, isa, &got, &dx.0, &dx.1);
    conv_backward_data(isa, s, &dy, &w, &mut got, true);
    let twice: Vec<f64> = dx.0.iter().map(|v| 2.0 * v).collect();
    let size: Vec<f64> = dx.1.iter().map(|v| 2.0 * v).collect();
    close("backward_data, added", s, isa, &got, &twice, &size);
    let mut got = vec![f32::NAN; s.w_len()];
    conv_backward_weight(
        isa,
        s,
        &x,
        &dy,
        &cut(s.n, 4),
        &mut LaneSums::all(&(0..4), &mut got),
    );
    close("backward_weight", s, isa, &got, &dw.0, &dw.1);
}

fn random_shape(rng: &mut Rng) -> ConvShape {
    let k = [1, 3, 3, 5, 7][rng.below(5)];
    let stride = [1, 1, 2, 2, 3][rng.below(5)];
    let (n, h, w) = (1 + rng.below(3), 1 + rng.below(14), 1 + rng.below(40));
    let (ci, co) = (1 + rng.below(70), 1 + rng.below(70));
    match rng.below(6) {
        0 => ConvShape {
            n,
            h,
            w,
            ci,
            co: ci,
            k,
            stride,
            groups: ci,
        },
        1 => {
            let g = 1 + rng.below(4);
            let (ci, co) = (g * (1 + rng.below(9)), g * (1 + rng.below(20)));
            ConvShape {
                n,
                h,
                w,
                ci,
                co,
                k,
                stride,
                groups: g,
            }
        }
        _ => ConvShape {
            n,
            h,
            w,
            ci,
            co,
            k,
            stride,
            groups: 1,
        },
    }
}

/// Shapes of the networks, small, and some that meet each way of cutting the work.
fn named_shapes() -> Vec<ConvShape> {
    let s = |h, w, ci, co, k, stride, groups| ConvShape {
        n: 3,
        h,
        w,
        ci,
        co,
        k,
        stride,
        groups,
    };
    vec![
        s(33, 50, 3, 16, 3, 2, 1),
        s(20, 20, 16, 8, 3, 1, 1),
        s(20, 20, 8, 16, 3, 1, 1),
        s(12, 10, 64, 64, 3, 1, 1),
        s(13, 11, 64, 80, 3, 2, 1),
        s(10, 10, 80, 80, 1, 1, 1),
        s(10, 10, 16, 4, 1, 1, 1),
        s(9, 7, 256, 192, 1, 1, 1),
        s(7, 6, 80, 80, 3, 1, 1),
        s(5, 5, 72, 200, 3, 2, 1),
        s(30, 30, 80, 80, 3, 1, 80),
        s(31, 29, 33, 33, 3, 1, 33),
        s(15, 18, 40, 40, 3, 2, 40),
        s(4, 5, 4, 8, 3, 1, 4),
        s(1, 1, 5, 5, 3, 1, 1),
        s(1, 1, 16, 16, 3, 2, 16),
        s(2, 1, 1, 1, 7, 1, 1),
    ]
}

#[test]
fn named_shapes_equal_the_float64_reference_on_every_instruction_set() {
    for isa in Isa::available() {
        let mut rng = Rng(1);
        for s in named_shapes() {
            check(isa, &s, &mut rng);
        }
    }
}

#[test]
fn random_shapes_equal_the_float64_reference_on_every_instruction_set() {
    for isa in Isa::available() {
        let mut rng = Rng(2);
        for _ in 0..120 {
            let s = random_shape(&mut rng);
            check(isa, &s, &mut rng);
        }
    }
}

#[test]
fn epilogues_equal_the_plain_formula() {
    for isa in Isa::available() {
        let mut rng = Rng(3);
        for groups in [1, 21] {
            let s = ConvShape {
                n: 2,
                h: 9,
                w: 8,
                ci: 21,
                co: 21,
                k: 3,
                stride: 1,
                groups,
            };
            let (x, w) = (rng.vec(s.x_len()), rng.vec(s.w_len()));
            let (scale, shift) = (rng.vec(s.co), rng.vec(s.co));
            let run = |e| {
                let mut y = vec![0.0; s.y_len()];
                conv_forward(isa, &s, &x, &w, &mut y, e);
                y
            };
            let plain = run(Epilogue::None);
            let bias = run(Epilogue::Bias(&shift));
            let linear = run(Epilogue::ScaleShift {
                scale: &scale,
                shift: &shift,
                silu: false,
            });
            let silu = run(Epilogue::ScaleShift {
                scale: &scale,
                shift: &shift,
                silu: true,
            });
            for i in 0..plain.len() {
                let z = plain[i] * scale[i % s.co] + shift[i % s.co];
                assert!((bias[i] - plain[i] - shift[i % s.co]).abs() < 1e-5);
                assert!((linear[i] - z).abs() < 1e-5);
                assert!((silu[i] - z / (1.0 + (-z).exp())).abs() < 1e-5);
            }
        }
    }
}

fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|v| v.to_bits()).collect()
}

/// Forward, data gradient, weight gradient.
fn all(
    isa: Isa,
    s: &ConvShape,
    x: &[f32],
    w: &[f32],
    dy: &[f32],
    lanes: &[Range<usize>],
) -> [Vec<u32>; 3] {
    let mut out = [
        vec![0.0; s.y_len()],
        vec![0.0; s.x_len()],
        vec![0.0; s.w_len()],
    ];
    let [y, dx, dw] = &mut out;
    conv_forward(isa, s, x, w, y, Epilogue::None);
    conv_backward_data(isa, s, dy, w, dx, false);
    conv_backward_weight(
        isa,
        s,
        x,
        dy,
        lanes,
        &mut LaneSums::all(&(0..lanes.len()), dw),
    );
    out.map(|v| bits(&v))
}

#[test]
fn an_image_gives_the_same_bytes_alone_and_at_every_position_of_a_batch() {
    for isa in Isa::available() {
        let mut rng = Rng(4);
        for s in named_shapes() {
            let (x, w, dy) = (rng.vec(s.x_len()), rng.vec(s.w_len()), rng.vec(s.y_len()));
            let [y, dx, _] = all(isa, &s, &x, &w, &dy, &cut(s.n, 4));
            let one = s.image();
            let (a, b) = (one.x_len(), one.y_len());
            for i in 0..s.n {
                let lane = cut(1, 1);
                let [yi, dxi, _] = all(isa, &one, &x[i * a..][..a], &w, &dy[i * b..][..b], &lane);
                assert_eq!(yi, y[i * b..][..b], "forward {isa:?} {s:?} image {i}");
                assert_eq!(
                    dxi,
                    dx[i * a..][..a],
                    "backward_data {isa:?} {s:?} image {i}"
                );
            }
        }
    }
}

#[test]
fn a_lane_alone_gives_the_bytes_that_the_tree_adds() {
    for isa in Isa::available() {
        let mut rng = Rng(5);
        for mut s in named_shapes() {
            for n in [1, 3, 6] {
                s.n = n;
                let (x, w, dy) = (rng.vec(s.x_len()), rng.vec(s.w_len()), rng.vec(s.y_len()));
                let lanes = cut(n, 4);
                let [.., whole] = all(isa, &s, &x, &w, &dy, &lanes);
                let (a, b) = (s.image().x_len(), s.image().y_len());
                // Lanes `l..m` as their own call, as on a rank of its own.
                let part = |l: usize, m: usize| {
                    let images = lanes[l].start..lanes[m - 1].end;
                    let moved: Vec<_> = lanes[l..m]
                        .iter()
                        .map(|r| r.start - images.start..r.end - images.start)
                        .collect();
                    let s = ConvShape {
                        n: images.len(),
                        ..s
                    };
                    let (x, dy) = (
                        &x[images.start * a..images.end * a],
                        &dy[images.start * b..images.end * b],
                    );
                    let mut dw = vec![0.0; s.w_len()];
                    let every = 0..moved.len();
                    conv_backward_weight(
                        isa,
                        &s,
                        x,
                        dy,
                        &moved,
                        &mut LaneSums::all(&every, &mut dw),
                    );
                    (!images.is_empty()).then_some(dw)
                };
                let four: Vec<_> = (0..4).map(|l| part(l, l + 1)).collect();
                let four: Vec<Option<&[f32]>> = four.iter().map(|p| p.as_deref()).collect();
                let mut sum = vec![0.0; s.w_len()];
                lanes::tree_sum(&four, &mut sum);
                assert_eq!(bits(&sum), whole, "four ranks {isa:?} {s:?}");
                let two = [part(0, 2), part(2, 4)];
                let two: Vec<Option<&[f32]>> = two.iter().map(|p| p.as_deref()).collect();
                lanes::tree_sum(&two, &mut sum);
                assert_eq!(bits(&sum), whole, "two ranks {isa:?} {s:?}");
                // In groups at once, first put, then added.
                let groups = [0..1, 1..3, 3..4];
                let mut out = vec![vec![f32::NAN; s.w_len()]; 3];
                for add in [false, true] {
                    let mut sums = LaneSums {
                        groups: &groups,
                        out: out.iter_mut().map(|o| &mut o[..]).collect(),
                        add,
                    };
                    conv_backward_weight(isa, &s, &x, &dy, &lanes, &mut sums);
                }
                lanes::tree_sum(&four[1..3], &mut sum);
                let middle: Vec<f32> = sum.iter().map(|v| v + v).collect();
                assert_eq!(bits(&out[1]), bits(&middle), "a group, twice {isa:?} {s:?}");
                let last: Vec<f32> =
                    four[3].map_or(vec![0.0; s.w_len()], |v| v.iter().map(|v| v + v).collect());
                assert_eq!(bits(&out[2]), bits(&last), "a lane, twice {isa:?} {s:?}");
            }
        }
    }
}

#[test]
fn threads_do_not_change_a_byte() {
    let pool = |n| {
        rayon::ThreadPoolBuilder::new()
            .num_threads(n)
            .build()
            .expect("a pool of a few threads")
    };
    let (one, two, three) = (pool(1), pool(2), pool(3));
    for isa in Isa::available() {
        let mut rng = Rng(6);
        for s in named_shapes() {
            let (x, w, dy) = (rng.vec(s.x_len()), rng.vec(s.w_len()), rng.vec(s.y_len()));
            let lanes = cut(s.n, 4);
            let run = || {
                let mut sums = vec![0.0; s.co];
                column_sums(
                    isa,
                    &dy,
                    [s.n, s.co],
                    &lanes,
                    &mut LaneSums::all(&(0..4), &mut sums),
                );
                (all(isa, &s, &x, &w, &dy, &lanes), bits(&sums))
            };
            let first = one.install(run);
            assert_eq!(first, two.install(run), "{isa:?} {s:?}");
            assert_eq!(first, three.install(run), "{isa:?} {s:?}");
        }
    }
}

#[test]
fn column_sums_equal_float64() {
    for isa in Isa::available() {
        let mut rng = Rng(7);
        for c in [1, 4, 17, 80] {
            let x = rng.vec(3 * 700 * c);
            let mut out = vec![f32::NAN; c];
            column_sums(
                isa,
                &x,
                [3, c],
                &cut(3, 4),
                &mut LaneSums::all(&(0..4), &mut out),
            );
            for (i, &got) in out.iter().enumerate() {
                let want: f64 = x.iter().skip(i).step_by(c).map(|&v| f64::from(v)).sum();
                assert!(
                    (f64::from(got) - want).abs() < 1e-3,
                    "{isa:?} {c}: {got} for {want}"
                );
            }
        }
    }
}
