//! The end of a step in two passes over flat memory: the gradient's norm, then everything else.
//!
//! Each element gets the arithmetic of [`super::optim`] and of the average, operation by operation, so parameters,
//! state and average have the same bytes for the same norm, on every instruction set and any number of threads. The
//! norm itself is summed in chunks of fixed size; it equals the sequential sum to float64's rounding.

use std::ops::Range;

use rayon::prelude::*;

use super::muon;
use super::optim::{ADAM_EPS, Algorithm, BETA2, Optimizer, muon_step};
use super::schedule::Rates;
use crate::model::layout::{ParamId, ParamInfo};
use crate::model::{HeadOf, Layout};
use crate::ops::cpu::isa::{Isa, Kernel};
use crate::ops::cpu::simd::Simd;

/// Elements of a task.
const CHUNK: usize = 1 << 14;
/// Sums of squares that run side by side.
const SUMS: usize = 16;

/// How summed numerators become the gradient of a step: each head's part is divided by its normaliser (at least 1),
/// everything multiplied by `factor`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GradientScale {
    /// Of the one-to-many and the one-to-one head.
    pub normalisers: [f64; 2],
    pub factor: f64,
}

impl GradientScale {
    fn of(&self, p: &ParamInfo) -> f32 {
        let n = match p.head {
            HeadOf::OneToMany => self.normalisers[0],
            HeadOf::OneToOne => self.normalisers[1],
        };
        (self.factor / n.max(1.0)) as f32
    }
}

/// The parts of parameters that lie in a chunk of flat memory: places within the chunk, and which parameter.
fn pieces(
    layout: &Layout,
    chunk: Range<usize>,
) -> impl Iterator<Item = (Range<usize>, ParamId)> + '_ {
    let first = layout
        .params
        .partition_point(|p| p.range().end <= chunk.start);
    let from = chunk.start;
    layout.params[first..]
        .iter()
        .zip(first..)
        .take_while(move |(p, _)| p.offset < chunk.end)
        .map(move |(p, id)| {
            let at = p.range();
            (at.start.max(from) - from..at.end.min(chunk.end) - from, id)
        })
}

/// Norm of the scaled gradient before clipping; the gradient stays as it is.
///
/// # Panics
/// If the gradient has not the layout's length.
#[must_use]
pub fn gradient_norm(isa: Isa, layout: &Layout, gradient: &[f32], scale: GradientScale) -> f64 {
    assert_eq!(
        gradient.len(),
        layout.param_len,
        "gradient of all parameters"
    );
    let chunks = gradient.par_chunks(CHUNK).enumerate();
    let squares: Vec<f64> = chunks
        .map(|(i, g)| {
            let first = i * CHUNK;
            pieces(layout, first..first + g.len())
                .map(|(at, id)| {
                    isa.run(Square {
                        g: &g[at],
                        scale: scale.of(&layout.params[id]),
                    })
                })
                .sum()
        })
        .collect();
    squares.iter().sum::<f64>().sqrt()
}

struct Square<'a> {
    g: &'a [f32],
    scale: f32,
}

impl Kernel for Square<'_> {
    type Output = f64;
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> f64 {
        let mut sums = [0.0f64; SUMS];
        let (rows, rest) = self.g.as_chunks::<SUMS>();
        for row in rows {
            for (s, g) in sums.iter_mut().zip(row) {
                let g = f64::from(g * self.scale);
                *s += g * g;
            }
        }
        for (s, g) in sums.iter_mut().zip(rest) {
            let g = f64::from(g * self.scale);
            *s += g * g;
        }
        sums.iter().sum()
    }
}

/// What [`step`] changes, `[param_len]` each.
#[derive(Debug)]
pub struct Flat<'a> {
    pub params: &'a mut [f32],
    /// Averaged parameters.
    pub average: &'a mut [f32],
    /// Summed numerators; zeros afterwards, ready for the next window.
    pub gradient: &'a mut [f32],
}

/// Scales the gradient, multiplies it by `clip` ([`clip_factor`](super::optim::clip_factor) of [`gradient_norm`]), moves the parameters and their average
/// (`average = d average + (1 - d) params`).
///
/// # Panics
/// If something has not the layout's length.
#[allow(clippy::too_many_arguments)]
pub fn step(
    isa: Isa,
    layout: &Layout,
    optimizer: &mut Optimizer,
    flat: Flat,
    rates: &Rates,
    scale: GradientScale,
    clip: f32,
    d: f64,
) {
    let n = layout.param_len;
    assert!(
        [
            flat.params.len(),
            flat.average.len(),
            flat.gradient.len(),
            optimizer.first.len()
        ] == [n; 4],
        "flat memory of {n} parameters"
    );
    optimizer.steps += 1;
    let rules: Vec<Rule> = layout
        .params
        .iter()
        .map(|p| {
            let motion = optimizer.motion(p, rates);
            Rule {
                scale: scale.of(p),
                clip,
                lr: motion.map_or(0.0, |m| m.lr),
                decay: motion.map_or(0.0, |m| m.decay),
                muon: motion.and_then(|m| m.muon),
                momentum: rates.momentum,
                fixed: motion.is_none(),
                d,
            }
        })
        .collect();
    if optimizer.algorithm == Algorithm::MuSgd {
        muon_part(
            isa,
            layout,
            &rules,
            flat.params,
            flat.gradient,
            &mut optimizer.muon,
        );
    }
    let chunks = flat
        .params
        .par_chunks_mut(CHUNK)
        .zip(flat.average.par_chunks_mut(CHUNK));
    let chunks = chunks
        .zip(flat.gradient.par_chunks_mut(CHUNK))
        .zip(optimizer.first.par_chunks_mut(CHUNK));
    let place = |i: usize, len: usize| i * CHUNK..i * CHUNK + len;
    match optimizer.algorithm {
        Algorithm::Sgd | Algorithm::MuSgd => {
            chunks.enumerate().for_each(|(i, (((w, a), g), m))| {
                for (at, id) in pieces(layout, place(i, w.len())) {
                    let [w, a, g, m] =
                        [&mut *w, &mut *a, &mut *g, &mut *m].map(|s| &mut s[at.clone()]);
                    isa.run(Sgd {
                        w,
                        a,
                        g,
                        m,
                        rule: rules[id],
                    });
                }
            })
        }
        Algorithm::AdamW => {
            assert_eq!(optimizer.second.len(), n, "second moments");
            let t = i32::try_from(optimizer.steps).unwrap_or(i32::MAX);
            let chunks = chunks.zip(optimizer.second.par_chunks_mut(CHUNK));
            chunks.enumerate().for_each(|(i, ((((w, a), g), m), v))| {
                for (at, id) in pieces(layout, place(i, w.len())) {
                    let [w, a, g, m, v] =
                        [&mut *w, &mut *a, &mut *g, &mut *m, &mut *v].map(|s| &mut s[at.clone()]);
                    isa.run(AdamW {
                        w,
                        a,
                        g,
                        m,
                        v,
                        t,
                        rule: rules[id],
                    });
                }
            });
        }
    }
}

/// Muon's part of a step: `params` and the momentum `muon` move, the gradient stays for the part that follows.
fn muon_part(
    isa: Isa,
    layout: &Layout,
    rules: &[Rule],
    params: &mut [f32],
    gradient: &[f32],
    muon: &mut [f32],
) {
    assert_eq!(muon.len(), layout.param_len, "Muon's momentum");
    struct Task<'a> {
        w: &'a mut [f32],
        m: &'a mut [f32],
        g: &'a [f32],
        size: [usize; 2],
        rule: Rule,
        lr: f64,
    }
    let (mut w, mut m, mut tasks) = (params, muon, vec![]);
    for (p, rule) in layout.params.iter().zip(rules) {
        let (of_p, rest) = w.split_at_mut(p.len());
        let (m_of_p, m_rest) = m.split_at_mut(p.len());
        (w, m) = (rest, m_rest);
        if let Some(lr) = rule.muon {
            tasks.push(Task {
                w: of_p,
                m: m_of_p,
                g: &gradient[p.range()],
                size: muon::matrix(p),
                rule: *rule,
                lr,
            });
        }
    }
    // the most work first, so that no thread is left with it at the end
    let work = |t: &Task| {
        let [rows, columns] = t.size;
        let small = rows.min(columns);
        small * small * (3 * rows.max(columns) + 17 * small)
    };
    tasks.sort_by_key(|t| std::cmp::Reverse(work(t)));
    tasks.into_par_iter().with_max_len(1).for_each(|t| {
        let (scale, clip) = (t.rule.scale, t.rule.clip);
        let g = t.g.iter().map(|g| g * scale * clip);
        muon_step(&isa, t.w, g, t.m, t.size, t.lr, t.rule.momentum);
    });
}

/// How the elements of a parameter move.
#[derive(Clone, Copy)]
struct Rule {
    scale: f32,
    clip: f32,
    lr: f64,
    decay: f64,
    /// Rate of Muon's part.
    muon: Option<f64>,
    momentum: f64,
    /// Nothing trains it: its average is the same bytes, its gradient is dropped.
    fixed: bool,
    /// Decay of the average.
    d: f64,
}

impl Rule {
    #[inline(always)]
    fn constant(self, w: &[f32], a: &mut [f32], g: &mut [f32]) {
        a.copy_from_slice(w);
        g.fill(0.0);
    }
}

struct Sgd<'a> {
    w: &'a mut [f32],
    a: &'a mut [f32],
    g: &'a mut [f32],
    m: &'a mut [f32],
    rule: Rule,
}

impl Kernel for Sgd<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let r = self.rule;
        if r.fixed {
            return r.constant(self.w, self.a, self.g);
        }
        let (lr, momentum, decay) = (r.lr as f32, r.momentum as f32, r.decay as f32);
        let (d, e) = (r.d as f32, (1.0 - r.d) as f32);
        for (((w, a), grad), m) in self.w.iter_mut().zip(self.a).zip(self.g).zip(self.m) {
            let g = *grad * r.scale * r.clip;
            *grad = 0.0;
            let g = g + decay * *w;
            *m = momentum * *m + g;
            *w -= lr * (g + momentum * *m);
            *a = d * *a + e * *w;
        }
    }
}

struct AdamW<'a> {
    w: &'a mut [f32],
    a: &'a mut [f32],
    g: &'a mut [f32],
    m: &'a mut [f32],
    v: &'a mut [f32],
    /// Steps done, this one included.
    t: i32,
    rule: Rule,
}

impl Kernel for AdamW<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let r = self.rule;
        if r.fixed {
            return r.constant(self.w, self.a, self.g);
        }
        let beta1 = r.momentum;
        let step = (r.lr / (1.0 - beta1.powi(self.t))) as f32;
        let root = (1.0 - BETA2.powi(self.t)).sqrt() as f32;
        let (keep, b1, b2) = ((1.0 - r.lr * r.decay) as f32, beta1 as f32, BETA2 as f32);
        let (d, e) = (r.d as f32, (1.0 - r.d) as f32);
        let moments = self.m.iter_mut().zip(self.v);
        for (((w, a), grad), (m, v)) in self.w.iter_mut().zip(self.a).zip(self.g).zip(moments) {
            let g = *grad * r.scale * r.clip;
            *grad = 0.0;
            *m = b1 * *m + (1.0 - b1) * g;
            *v = b2 * *v + (1.0 - b2) * g * g;
            *w = *w * keep - step * *m / (v.sqrt() / root + ADAM_EPS as f32);
            *a = d * *a + e * *w;
        }
    }
}

#[cfg(test)]
#[path = "flat_tests.rs"]
mod tests;
