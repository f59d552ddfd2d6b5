//! Rates of the convolutions of yolo26n, layer by layer in the order of a training step, against the machine's peak.
//!
//! `cargo bench --bench conv -- [--imgsz 640] [--batch 4] [--threads 2] [--reps 5] [--only TEXT]`; `YOLO_TRAIN_ISA`
//! chooses the instruction set. A layer's time is the least of the repetitions (which other programs disturb least); inputs are as
//! cold as in a step.

use std::time::Instant;

use yolo_train::ops::cpu::conv::{
    ConvShape, Epilogue, conv_backward_data, conv_backward_weight, conv_forward,
};
use yolo_train::ops::cpu::isa::Isa;
use yolo_train::ops::cpu::lanes::{LaneSums, cut};
use yolo_train::ops::cpu::peak::peak_flops;

struct Layers {
    n: usize,
    all: Vec<ConvShape>,
}

impl Layers {
    fn conv(&mut self, side: usize, ci: usize, co: usize, k: usize, stride: usize) {
        self.all.push(ConvShape {
            n: self.n,
            h: side,
            w: side,
            ci,
            co,
            k,
            stride,
            groups: 1,
        });
    }
    fn depthwise(&mut self, side: usize, c: usize) {
        self.all.push(ConvShape {
            n: self.n,
            h: side,
            w: side,
            ci: c,
            co: c,
            k: 3,
            stride: 1,
            groups: c,
        });
    }
    fn bottleneck(&mut self, s: usize, c: usize, hidden: usize) {
        self.conv(s, c, hidden, 3, 1);
        self.conv(s, hidden, c, 3, 1);
    }
    fn c3k(&mut self, s: usize, c: usize) {
        let h = c / 2;
        self.conv(s, c, h, 1, 1);
        self.conv(s, c, h, 1, 1);
        (0..2).for_each(|_| self.bottleneck(s, h, h));
        self.conv(s, c, c, 1, 1);
    }
    fn psa(&mut self, s: usize, c: usize) {
        self.conv(s, c, 2 * c, 1, 1);
        self.depthwise(s, c);
        self.conv(s, c, c, 1, 1);
        self.conv(s, c, 2 * c, 1, 1);
        self.conv(s, 2 * c, c, 1, 1);
    }
    fn block(
        &mut self,
        s: usize,
        ci: usize,
        co: usize,
        hidden: usize,
        inner: impl Fn(&mut Layers),
    ) {
        self.conv(s, ci, 2 * hidden, 1, 1);
        inner(self);
        self.conv(s, 3 * hidden, co, 1, 1);
    }
}

fn yolo26n(n: usize, imgsz: usize) -> Vec<ConvShape> {
    let mut l = Layers { n, all: Vec::new() };
    let s = |stride: usize| imgsz / stride;
    l.conv(s(1), 3, 16, 3, 2);
    l.conv(s(2), 16, 32, 3, 2);
    l.block(s(4), 32, 64, 16, |l| l.bottleneck(s(4), 16, 8));
    l.conv(s(4), 64, 64, 3, 2);
    l.block(s(8), 64, 128, 32, |l| l.bottleneck(s(8), 32, 16));
    l.conv(s(8), 128, 128, 3, 2);
    l.block(s(16), 128, 128, 64, |l| l.c3k(s(16), 64));
    l.conv(s(16), 128, 256, 3, 2);
    l.block(s(32), 256, 256, 128, |l| l.c3k(s(32), 128));
    l.conv(s(32), 256, 128, 1, 1);
    l.conv(s(32), 512, 256, 1, 1);
    l.conv(s(32), 256, 256, 1, 1);
    l.psa(s(32), 128);
    l.conv(s(32), 256, 256, 1, 1);
    l.block(s(16), 384, 128, 64, |l| l.c3k(s(16), 64));
    l.block(s(8), 256, 64, 32, |l| l.c3k(s(8), 32));
    l.conv(s(8), 64, 64, 3, 2);
    l.block(s(16), 192, 128, 64, |l| l.c3k(s(16), 64));
    l.conv(s(16), 128, 128, 3, 2);
    l.block(s(32), 384, 256, 128, |l| {
        l.bottleneck(s(32), 128, 64);
        l.psa(s(32), 128);
    });
    for _ in 0..2 {
        for (stride, c) in [(8, 64), (16, 128), (32, 256)] {
            l.conv(s(stride), c, 16, 3, 1);
            l.conv(s(stride), 16, 16, 3, 1);
            l.conv(s(stride), 16, 4, 1, 1);
            l.depthwise(s(stride), c);
            l.conv(s(stride), c, 80, 1, 1);
            l.depthwise(s(stride), 80);
            l.conv(s(stride), 80, 80, 1, 1);
            l.conv(s(stride), 80, 80, 1, 1);
        }
    }
    l.all
}

fn random(n: usize) -> Vec<f32> {
    let mut z = 1u32;
    (0..n)
        .map(|_| {
            z = z.wrapping_mul(1664525).wrapping_add(1013904223);
            (z >> 8) as f32 / (1u32 << 23) as f32 - 1.0
        })
        .collect()
}

fn least(v: &[f64]) -> f64 {
    v.iter().copied().fold(f64::INFINITY, f64::min)
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let text = |name: &str| {
        args.iter()
            .position(|a| a == name)
            .and_then(|i| args.get(i + 1))
            .cloned()
    };
    let number =
        |name: &str, default: usize| text(name).map_or(default, |v| v.parse().expect("a number"));
    let (imgsz, batch) = (number("--imgsz", 640), number("--batch", 4));
    let (threads, reps) = (number("--threads", 2), number("--reps", 10));
    let only = text("--only");
    let isa = Isa::detect().unwrap_or_else(|e| panic!("{e}"));
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .expect("a pool");
    pool.install(|| {
        let name = |s: &ConvShape| {
            let kind = if s.groups > 1 { "dw" } else { "" };
            format!(
                "{kind}{k}x{k}s{} {}->{} @{}",
                s.stride,
                s.ci,
                s.co,
                s.out_h(),
                k = s.k
            )
        };
        let mut layers = yolo26n(batch, imgsz);
        layers.retain(|s| only.as_ref().is_none_or(|o| name(s).contains(o)));
        let lanes = cut(batch, 4);
        let data: Vec<_> = layers
            .iter()
            .map(|s| {
                (
                    random(s.x_len()),
                    random(s.w_len()),
                    vec![0.0f32; s.y_len()],
                    vec![0.0f32; s.w_len()],
                )
            })
            .collect();
        let most = |f: fn(&ConvShape) -> usize| layers.iter().map(f).max().unwrap_or(0);
        let (dy, mut dx) = (
            random(most(ConvShape::y_len)),
            vec![0.0f32; most(ConvShape::x_len)],
        );
        let mut data = data;
        let mut times = vec![[const { Vec::new() }; 3]; layers.len()];
        let mut peaks = vec![peak_flops(isa)];
        for rep in 0..=reps {
            let timed = |f: &mut dyn FnMut()| {
                let start = Instant::now();
                f();
                start.elapsed().as_secs_f64()
            };
            let mut keep = |i: usize, pass: usize, t: f64| {
                if rep > 0 {
                    times[i][pass].push(t);
                }
            };
            for (i, s) in layers.iter().enumerate() {
                let (x, w, y, _) = &mut data[i];
                keep(
                    i,
                    0,
                    timed(&mut || conv_forward(isa, s, x, w, y, Epilogue::None)),
                );
            }
            for (i, s) in layers.iter().enumerate().rev() {
                let (x, w, _, dw) = &mut data[i];
                let dy = &dy[..s.y_len()];
                if s.ci > 3 {
                    keep(
                        i,
                        1,
                        timed(&mut || {
                            conv_backward_data(isa, s, dy, w, &mut dx[..s.x_len()], false)
                        }),
                    );
                }
                keep(
                    i,
                    2,
                    timed(&mut || {
                        conv_backward_weight(
                            isa,
                            s,
                            x,
                            dy,
                            &lanes,
                            &mut LaneSums::all(&(0..lanes.len()), dw),
                        )
                    }),
                );
            }
            peaks.push(peak_flops(isa));
        }
        let peak = peaks.iter().copied().fold(0.0, f64::max);
        println!(
            "isa {} threads {threads} batch {batch} imgsz {imgsz} peak {:.0} GFLOP/s",
            isa.name(),
            peak / 1e9
        );
        println!(
            "{:26} {:>3} {:>7} {:>21} {:>21} {:>21}",
            "layer", "x", "GFLOP", "forward ms, % of peak", "data ms, %", "weight ms, %"
        );
        // Equal layers together.
        let mut seen: Vec<(ConvShape, usize, [f64; 3])> = Vec::new();
        for (s, t) in layers.iter().zip(&times) {
            let t: [f64; 3] =
                std::array::from_fn(|p| if t[p].is_empty() { 0.0 } else { least(&t[p]) });
            match seen.iter_mut().find(|(o, ..)| o == s) {
                Some((_, count, sum)) => {
                    *count += 1;
                    (0..3).for_each(|p| sum[p] += t[p]);
                }
                None => seen.push((*s, 1, t)),
            }
        }
        type Class = (&'static str, fn(&ConvShape) -> bool);
        let classes: [Class; 7] = [
            ("all", |_| true),
            ("1x1", |s| s.k == 1),
            ("3x3 stride 1", |s| {
                s.k == 3 && s.stride == 1 && s.groups == 1
            }),
            ("3x3 stride 2", |s| s.k == 3 && s.stride == 2 && s.ci > 3),
            ("first layer", |s| s.ci == 3),
            ("depthwise", |s| s.groups > 1),
            ("all but depthwise, first", |s| s.groups == 1 && s.ci > 3),
        ];
        let line = |name: &str, count: usize, flops: f64, passes: [f64; 3], t: [f64; 3]| {
            let cell = |p: usize| {
                if t[p] == 0.0 {
                    format!("{:>21}", "")
                } else {
                    format!(
                        "{:>14.3} {:>5.1}%",
                        t[p] * 1e3,
                        passes[p] / t[p] / peak * 100.0
                    )
                }
            };
            println!(
                "{name:26} {count:>3} {:>7.3} {} {} {}",
                flops / 1e9,
                cell(0),
                cell(1),
                cell(2)
            );
        };
        for (s, count, t) in &seen {
            let flops = s.flops() * *count as f64;
            line(&name(s), *count, flops, [flops; 3], *t);
        }
        println!();
        for (label, of) in classes {
            let (mut count, mut passes, mut t) = (0, [0.0; 3], [0.0; 3]);
            for (s, c, times) in seen.iter().filter(|(s, ..)| of(s)) {
                count += c;
                for p in 0..3 {
                    t[p] += times[p];
                    if times[p] > 0.0 {
                        passes[p] += s.flops() * *c as f64;
                    }
                }
            }
            line(label, count, passes[0], passes, t);
            let (f, all): (f64, f64) = (passes.iter().sum(), t.iter().sum());
            if all > 0.0 {
                println!(
                    "{:26} three passes {:.2} GFLOP {:.2} ms {:.1}%",
                    "",
                    f / 1e9,
                    all * 1e3,
                    f / all / peak * 100.0
                );
            }
        }
    });
}
