//! Building blocks of the backbone and the neck. Names of parameters are those of published checkpoints.

use super::layout::{HeadOf, Init, Layout, NormId, ParamId, ParamKind};
use super::tensors::{Collected, Tensors};
use crate::ops::{self, Activation};
use burn::tensor::Tensor;

/// Registers parameters while blocks are built.
pub(super) struct Builder {
    pub layout: Layout,
    pub head: HeadOf,
}

/// One forward pass.
pub(super) struct Pass<'a> {
    pub tensors: &'a Tensors,
    pub collected: Collected,
}

/// Multiply-adds of convolutions and matrix products, for the table of `info`, and elements of the outputs of
/// convolutions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    pub macs: u64,
    pub outputs: u64,
}

/// Convolution without bias, batch norm, activation.
#[derive(Debug, Clone)]
pub(super) struct ConvNorm {
    weight: ParamId,
    gamma: ParamId,
    beta: ParamId,
    norm: NormId,
    stride: usize,
    groups: usize,
    act: Activation,
    k: usize,
    ci: usize,
    pub co: usize,
}

/// What a [`ConvNorm`] is, but for its channels.
#[derive(Clone, Copy)]
pub(super) struct ConvArgs {
    pub k: usize,
    pub stride: usize,
    pub groups: usize,
    pub act: bool,
}

/// kxk, stride 1, SiLU.
pub(super) fn square(k: usize) -> ConvArgs {
    ConvArgs {
        k,
        stride: 1,
        groups: 1,
        act: true,
    }
}
/// 1x1 without activation.
pub(super) fn linear() -> ConvArgs {
    ConvArgs {
        act: false,
        ..square(1)
    }
}

impl Builder {
    pub fn conv(&mut self, name: &str, ci: usize, co: usize, a: ConvArgs) -> ConvNorm {
        let head = self.head;
        let fan_in = a.k * a.k * ci / a.groups;
        let weight = self.layout.param(
            format!("{name}.conv.weight"),
            vec![a.k, a.k, ci / a.groups, co],
            ParamKind::Weight,
            head,
            Init::Uniform { fan_in },
        );
        let gamma = self.layout.param(
            format!("{name}.bn.weight"),
            vec![co],
            ParamKind::Norm,
            head,
            Init::Fill(1.0),
        );
        let beta = self.layout.param(
            format!("{name}.bn.bias"),
            vec![co],
            ParamKind::Bias,
            head,
            Init::Fill(0.0),
        );
        let norm = self.layout.norm(format!("{name}.bn"), co, head);
        let act = if a.act {
            Activation::Silu
        } else {
            Activation::Identity
        };
        ConvNorm {
            weight,
            gamma,
            beta,
            norm,
            stride: a.stride,
            groups: a.groups,
            act,
            k: a.k,
            ci,
            co,
        }
    }

    /// 3x3 with one filter per channel (groups = gcd(ci, co), and ci = co here).
    pub fn depthwise(&mut self, name: &str, c: usize, act: bool) -> ConvNorm {
        self.conv(
            name,
            c,
            c,
            ConvArgs {
                k: 3,
                stride: 1,
                groups: c,
                act,
            },
        )
    }
}

impl ConvNorm {
    pub fn forward(&self, x: Tensor<4>, p: &mut Pass) -> Tensor<4> {
        Self::forward_each(vec![(self, x)], p).swap_remove(0)
    }

    /// Of several that depend on nothing of each other: ranks exchange what their norms measure together.
    pub fn forward_each(each: Vec<(&Self, Tensor<4>)>, p: &mut Pass) -> Vec<Tensor<4>> {
        let t = p.tensors;
        let norms: Vec<NormId> = each.iter().map(|(c, _)| c.norm).collect();
        let args = each.into_iter().map(|(c, x)| {
            let args = ops::ConvNorm {
                weight: t.weight(c.weight),
                gamma: t.vector(c.gamma),
                beta: t.vector(c.beta),
                stride: c.stride,
                groups: c.groups,
                norm: t.norm(c.norm),
                running: t.running(c.norm),
                act: c.act,
                lanes: t.lanes().clone(),
            };
            (x, args)
        });
        let outputs = ops::conv_norm_act_each(args.collect());
        let collect = |(norm, (y, stats)): (NormId, (_, Option<_>))| {
            p.collected.stats.extend(stats.map(|s| (norm, s)));
            y
        };
        norms.into_iter().zip(outputs).map(collect).collect()
    }

    /// Output size and cost for an input of `h` x `w`.
    pub fn cost(&self, (h, w): (usize, usize), c: &mut Cost) -> (usize, usize) {
        let (oh, ow) = (h.div_ceil(self.stride), w.div_ceil(self.stride));
        c.macs += (oh * ow * self.co * self.k * self.k * self.ci / self.groups) as u64;
        c.outputs += (oh * ow * self.co) as u64;
        (oh, ow)
    }
}

/// Two convolutions and a residual.
#[derive(Debug, Clone)]
pub(super) struct Bottleneck {
    cv1: ConvNorm,
    cv2: ConvNorm,
    add: bool,
}

impl Bottleneck {
    pub fn new(b: &mut Builder, name: &str, c: usize, shortcut: bool, e: f64) -> Self {
        let hidden = (c as f64 * e) as usize;
        Self {
            cv1: b.conv(&format!("{name}.cv1"), c, hidden, square(3)),
            cv2: b.conv(&format!("{name}.cv2"), hidden, c, square(3)),
            add: shortcut,
        }
    }
    pub fn forward(&self, x: Tensor<4>, p: &mut Pass) -> Tensor<4> {
        let y = self.cv1.forward(x.clone(), p);
        let y = self.cv2.forward(y, p);
        if self.add { ops::add(x, y) } else { y }
    }
    fn cost(&self, s: (usize, usize), c: &mut Cost) {
        self.cv1.cost(s, c);
        self.cv2.cost(s, c);
    }
}

/// Cross-stage partial block with three 1x1 convolutions (Wang et al. 2020).
#[derive(Debug, Clone)]
pub(super) struct C3k {
    cv1: ConvNorm,
    cv2: ConvNorm,
    cv3: ConvNorm,
    m: Vec<Bottleneck>,
}

impl C3k {
    fn new(b: &mut Builder, name: &str, c: usize, repeats: usize, shortcut: bool) -> Self {
        let hidden = c / 2;
        let cv1 = b.conv(&format!("{name}.cv1"), c, hidden, square(1));
        let cv2 = b.conv(&format!("{name}.cv2"), c, hidden, square(1));
        let cv3 = b.conv(&format!("{name}.cv3"), 2 * hidden, c, square(1));
        let m = (0..repeats)
            .map(|i| Bottleneck::new(b, &format!("{name}.m.{i}"), hidden, shortcut, 1.0))
            .collect();
        Self { cv1, cv2, cv3, m }
    }
    fn forward(&self, x: Tensor<4>, p: &mut Pass) -> Tensor<4> {
        let both = vec![(&self.cv1, x.clone()), (&self.cv2, x)];
        let [mut y, skip] = ConvNorm::forward_each(both, p)
            .try_into()
            .expect("an output each");
        for m in &self.m {
            y = m.forward(y, p);
        }
        self.cv3.forward(ops::concat(vec![y, skip]), p)
    }
    fn cost(&self, s: (usize, usize), c: &mut Cost) {
        self.cv1.cost(s, c);
        self.cv2.cost(s, c);
        self.cv3.cost(s, c);
        self.m.iter().for_each(|m| m.cost(s, c));
    }
}

/// Self-attention over positions with a depthwise positional convolution.
#[derive(Debug, Clone)]
struct Attention {
    qkv: ConvNorm,
    proj: ConvNorm,
    pe: ConvNorm,
    heads: usize,
    key_dim: usize,
    head_dim: usize,
}

impl Attention {
    fn new(b: &mut Builder, name: &str, c: usize, heads: usize) -> Self {
        let head_dim = c / heads;
        let key_dim = head_dim / 2;
        Self {
            qkv: b.conv(&format!("{name}.qkv"), c, c + 2 * key_dim * heads, linear()),
            proj: b.conv(&format!("{name}.proj"), c, c, linear()),
            pe: b.depthwise(&format!("{name}.pe"), c, false),
            heads,
            key_dim,
            head_dim,
        }
    }
    fn forward(&self, x: Tensor<4>, p: &mut Pass) -> Tensor<4> {
        let qkv = self.qkv.forward(x, p);
        let (attended, values) = ops::attend(qkv, self.heads, self.key_dim, self.head_dim);
        let pe = self.pe.forward(values, p);
        self.proj.forward(ops::add(attended, pe), p)
    }
    fn cost(&self, s: (usize, usize), c: &mut Cost) {
        self.qkv.cost(s, c);
        self.proj.cost(s, c);
        self.pe.cost(s, c);
        let n = (s.0 * s.1) as u64;
        c.macs += n * n * (self.heads * (self.key_dim + self.head_dim)) as u64;
    }
}

/// Attention and a two-layer feed-forward part, each with a residual.
#[derive(Debug, Clone)]
pub(super) struct Psa {
    attn: Attention,
    ffn: [ConvNorm; 2],
}

impl Psa {
    fn new(b: &mut Builder, name: &str, c: usize) -> Self {
        let attn = Attention::new(b, &format!("{name}.attn"), c, (c / 64).max(1));
        let up = b.conv(&format!("{name}.ffn.0"), c, 2 * c, square(1));
        let down = b.conv(&format!("{name}.ffn.1"), 2 * c, c, linear());
        Self {
            attn,
            ffn: [up, down],
        }
    }
    fn forward(&self, x: Tensor<4>, p: &mut Pass) -> Tensor<4> {
        let y = self.attn.forward(x.clone(), p);
        let x = ops::add(x, y);
        let y = self.ffn[0].forward(x.clone(), p);
        let y = self.ffn[1].forward(y, p);
        ops::add(x, y)
    }
    fn cost(&self, s: (usize, usize), c: &mut Cost) {
        self.attn.cost(s, c);
        self.ffn.iter().for_each(|f| {
            f.cost(s, c);
        });
    }
}

/// What stands inside a [`Csp`] block.
#[derive(Debug, Clone)]
enum Inner {
    Bottleneck(Bottleneck),
    C3k(C3k),
    Attention(Box<(Bottleneck, Psa)>),
}

/// Cross-stage partial block whose inner outputs are all concatenated (C2f, C3k2).
#[derive(Debug, Clone)]
pub(super) struct Csp {
    cv1: ConvNorm,
    cv2: ConvNorm,
    m: Vec<Inner>,
    hidden: usize,
}

/// Arguments of a [`Csp`].
#[derive(Clone, Copy)]
pub(super) struct CspArgs {
    pub repeats: usize,
    pub expansion: f64,
    pub shortcut: bool,
    /// C3k2 instead of C2f: bottlenecks narrow to half.
    pub narrow: bool,
    pub c3k: bool,
    pub attention: bool,
}

impl Csp {
    pub fn new(b: &mut Builder, name: &str, ci: usize, co: usize, a: CspArgs) -> Self {
        let hidden = (co as f64 * a.expansion) as usize;
        let cv1 = b.conv(&format!("{name}.cv1"), ci, 2 * hidden, square(1));
        let cv2 = b.conv(
            &format!("{name}.cv2"),
            (2 + a.repeats) * hidden,
            co,
            square(1),
        );
        let e = if a.narrow { 0.5 } else { 1.0 };
        let m = (0..a.repeats)
            .map(|i| {
                let name = format!("{name}.m.{i}");
                if a.attention {
                    let first = Bottleneck::new(b, &format!("{name}.0"), hidden, a.shortcut, e);
                    Inner::Attention(Box::new((first, Psa::new(b, &format!("{name}.1"), hidden))))
                } else if a.c3k {
                    Inner::C3k(C3k::new(b, &name, hidden, 2, a.shortcut))
                } else {
                    Inner::Bottleneck(Bottleneck::new(b, &name, hidden, a.shortcut, e))
                }
            })
            .collect();
        Self {
            cv1,
            cv2,
            m,
            hidden,
        }
    }
    pub fn forward(&self, x: Tensor<4>, p: &mut Pass) -> Tensor<4> {
        let y = self.cv1.forward(x, p);
        let mut last = ops::part(y.clone(), self.hidden, self.hidden);
        let mut parts = vec![y];
        for m in &self.m {
            last = match m {
                Inner::Bottleneck(b) => b.forward(last, p),
                Inner::C3k(c) => c.forward(last, p),
                Inner::Attention(inner) => {
                    let y = inner.0.forward(last, p);
                    inner.1.forward(y, p)
                }
            };
            parts.push(last.clone());
        }
        self.cv2.forward(ops::concat(parts), p)
    }
    pub fn cost(&self, s: (usize, usize), c: &mut Cost) {
        self.cv1.cost(s, c);
        self.cv2.cost(s, c);
        for m in &self.m {
            match m {
                Inner::Bottleneck(b) => b.cost(s, c),
                Inner::C3k(k) => k.cost(s, c),
                Inner::Attention(inner) => {
                    inner.0.cost(s, c);
                    inner.1.cost(s, c);
                }
            }
        }
    }
}

/// Spatial pyramid of chained 5x5 pools (He et al. 2015).
#[derive(Debug, Clone)]
pub(super) struct Sppf {
    cv1: ConvNorm,
    cv2: ConvNorm,
    pools: usize,
    add: bool,
}

impl Sppf {
    pub fn new(
        b: &mut Builder,
        name: &str,
        ci: usize,
        co: usize,
        pools: usize,
        shortcut: bool,
        act: bool,
    ) -> Self {
        let hidden = ci / 2;
        let cv1 = b.conv(
            &format!("{name}.cv1"),
            ci,
            hidden,
            ConvArgs { act, ..square(1) },
        );
        let cv2 = b.conv(&format!("{name}.cv2"), hidden * (pools + 1), co, square(1));
        Self {
            cv1,
            cv2,
            pools,
            add: shortcut && ci == co,
        }
    }
    pub fn forward(&self, x: Tensor<4>, p: &mut Pass) -> Tensor<4> {
        let mut parts = vec![self.cv1.forward(x.clone(), p)];
        for i in 0..self.pools {
            parts.push(ops::max_pool5(parts[i].clone()));
        }
        let y = self.cv2.forward(ops::concat(parts), p);
        if self.add { ops::add(x, y) } else { y }
    }
    pub fn cost(&self, s: (usize, usize), c: &mut Cost) {
        self.cv1.cost(s, c);
        self.cv2.cost(s, c);
    }
}

/// Cross-stage partial block around attention blocks.
#[derive(Debug, Clone)]
pub(super) struct C2psa {
    cv1: ConvNorm,
    cv2: ConvNorm,
    m: Vec<Psa>,
    hidden: usize,
}

impl C2psa {
    pub fn new(b: &mut Builder, name: &str, c: usize, repeats: usize, expansion: f64) -> Self {
        let hidden = (c as f64 * expansion) as usize;
        let cv1 = b.conv(&format!("{name}.cv1"), c, 2 * hidden, square(1));
        let cv2 = b.conv(&format!("{name}.cv2"), 2 * hidden, c, square(1));
        let m = (0..repeats)
            .map(|i| Psa::new(b, &format!("{name}.m.{i}"), hidden))
            .collect();
        Self {
            cv1,
            cv2,
            m,
            hidden,
        }
    }
    pub fn forward(&self, x: Tensor<4>, p: &mut Pass) -> Tensor<4> {
        let y = self.cv1.forward(x, p);
        let a = ops::split_channels(y.clone(), 0, self.hidden);
        let mut b = ops::split_channels(y, self.hidden, self.hidden);
        for m in &self.m {
            b = m.forward(b, p);
        }
        self.cv2.forward(ops::concat(vec![a, b]), p)
    }
    pub fn cost(&self, s: (usize, usize), c: &mut Cost) {
        self.cv1.cost(s, c);
        self.cv2.cost(s, c);
        self.m.iter().for_each(|m| m.cost(s, c));
    }
}
