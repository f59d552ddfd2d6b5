//! Detection head: a box branch and a class branch per level, no objectness.

use super::blocks::{Builder, ConvNorm, Cost, Pass, square};
use super::layout::{ClassPart, HeadOf, Init, ParamId, ParamKind};
use crate::config::model::ClassBranch;
use crate::ops;
use burn::tensor::Tensor;

/// Raw outputs of one head over all levels, stride 8 first.
#[derive(Debug, Clone)]
pub struct HeadOutput {
    /// `[n, anchors, 4 * reg_max]`: distances left, top, right, bottom in stride units, or logits of their bins.
    pub boxes: Tensor<3>,
    /// `[n, anchors, classes]` logits.
    pub scores: Tensor<3>,
}

/// Two blocks of convolutions and an output convolution with bias.
#[derive(Debug, Clone)]
struct Branch {
    convs: Vec<ConvNorm>,
    weight: ParamId,
    bias: ParamId,
    ci: usize,
    co: usize,
}

impl Branch {
    fn output(b: &mut Builder, name: &str, convs: Vec<ConvNorm>, co: usize, bias: f32) -> Self {
        let ci = convs.last().map_or(0, |c| c.co);
        let weight = b.layout.param(
            format!("{name}.2.weight"),
            vec![1, 1, ci, co],
            ParamKind::Weight,
            b.head,
            Init::Uniform { fan_in: ci },
        );
        let bias = b.layout.param(
            format!("{name}.2.bias"),
            vec![co],
            ParamKind::Bias,
            b.head,
            Init::Fill(bias),
        );
        Self {
            convs,
            weight,
            bias,
            ci,
            co,
        }
    }
    /// Outputs of branches that run side by side, `[n, h w, co]` each.
    fn forward_each(each: Vec<(&Self, Tensor<4>)>, p: &mut Pass) -> Vec<Tensor<3>> {
        let (branches, inputs): (Vec<_>, Vec<_>) = each.into_iter().unzip();
        let mut values: Vec<_> = inputs.into_iter().map(Some).collect();
        let depth = branches.iter().map(|b| b.convs.len()).max().unwrap_or(0);
        for i in 0..depth {
            let (at, convs): (Vec<_>, Vec<_>) = branches
                .iter()
                .zip(&mut values)
                .enumerate()
                .filter_map(|(at, (b, x))| Some((at, (b.convs.get(i)?, x.take()?))))
                .unzip();
            for (at, y) in at.into_iter().zip(ConvNorm::forward_each(convs, p)) {
                values[at] = Some(y);
            }
        }
        let output = |(b, x): (&Self, _)| {
            let t = p.tensors;
            let y = ops::conv_bias(x, t.weight(b.weight), t.vector(b.bias), t.lanes());
            let [n, h, w, c] = y.dims();
            y.reshape([n, h * w, c])
        };
        branches
            .into_iter()
            .zip(values.into_iter().flatten())
            .map(output)
            .collect()
    }
    fn cost(&self, s: (usize, usize), c: &mut Cost) {
        self.convs.iter().for_each(|v| {
            v.cost(s, c);
        });
        c.macs += (s.0 * s.1 * self.ci * self.co) as u64;
        c.outputs += (s.0 * s.1 * self.co) as u64;
    }
}

/// The box and class branches of one head.
#[derive(Debug, Clone)]
struct Branches {
    boxes: Vec<Branch>,
    classes: Vec<Branch>,
}

impl Branches {
    /// The branches with what they read, those of boxes first.
    fn on(&self, features: Vec<Tensor<4>>) -> Vec<(&Branch, Tensor<4>)> {
        let boxes = self.boxes.iter().zip(features.clone());
        boxes.chain(self.classes.iter().zip(features)).collect()
    }
}

/// Head over several levels, optionally doubled (Wang et al. 2024, dual assignment).
#[derive(Debug, Clone)]
pub(super) struct Detect {
    one_to_many: Branches,
    one_to_one: Option<Branches>,
}

/// What a [`Detect`] is built from.
pub(super) struct DetectArgs<'a> {
    pub channels: &'a [usize],
    pub strides: &'a [usize],
    pub classes: usize,
    pub reg_max: usize,
    pub one_to_one: bool,
    pub class_branch: ClassBranch,
    /// Width of the class branches; otherwise it follows from the channels and the number of classes.
    pub class_width: Option<usize>,
}

impl Detect {
    pub fn new(b: &mut Builder, name: &str, a: &DetectArgs) -> Self {
        let one_to_many = Self::branches(b, name, "", a);
        if a.reg_max > 1 {
            let shape = vec![1, 1, a.reg_max, 1];
            b.layout.param(
                format!("{name}.dfl.conv.weight"),
                shape,
                ParamKind::Constant,
                b.head,
                Init::Arange,
            );
        }
        let one_to_one = a.one_to_one.then(|| {
            b.head = HeadOf::OneToOne;
            let h = Self::branches(b, name, "one2one_", a);
            b.head = HeadOf::OneToMany;
            h
        });
        Self {
            one_to_many,
            one_to_one,
        }
    }

    fn branches(b: &mut Builder, name: &str, prefix: &str, a: &DetectArgs) -> Branches {
        let first = a.channels[0];
        let c2 = 16.max(first / 4).max(4 * a.reg_max);
        let c3 = a.class_width.unwrap_or(first.max(a.classes.min(100)));
        let boxes = a.channels.iter().enumerate().map(|(i, &ci)| {
            let name = format!("{name}.{prefix}cv2.{i}");
            let convs = vec![
                b.conv(&format!("{name}.0"), ci, c2, square(3)),
                b.conv(&format!("{name}.1"), c2, c2, square(3)),
            ];
            Branch::output(b, &name, convs, 4 * a.reg_max, 2.0)
        });
        let boxes = boxes.collect();
        let first_param = b.layout.params.len();
        let classes = a
            .channels
            .iter()
            .zip(a.strides)
            .enumerate()
            .map(|(i, (&ci, &stride))| {
                let name = format!("{name}.{prefix}cv3.{i}");
                let convs = match a.class_branch {
                    ClassBranch::Full => vec![
                        b.conv(&format!("{name}.0"), ci, c3, square(3)),
                        b.conv(&format!("{name}.1"), c3, c3, square(3)),
                    ],
                    ClassBranch::Depthwise => vec![
                        b.depthwise(&format!("{name}.0.0"), ci, true),
                        b.conv(&format!("{name}.0.1"), ci, c3, square(1)),
                        b.depthwise(&format!("{name}.1.0"), c3, true),
                        b.conv(&format!("{name}.1.1"), c3, c3, square(1)),
                    ],
                };
                // about five objects per 640 px image, spread over a level's cells
                let prior = (5.0 / a.classes as f64 / (640.0 / stride as f64).powi(2)).ln();
                Branch::output(b, &name, convs, a.classes, prior as f32)
            });
        let classes: Vec<Branch> = classes.collect();
        for p in &mut b.layout.params[first_param..] {
            p.class = ClassPart::Hidden;
        }
        for c in &classes {
            for id in [c.weight, c.bias] {
                b.layout.params[id].class = ClassPart::Output;
            }
        }
        Branches { boxes, classes }
    }

    /// Raw outputs (one-to-many, one-to-one). The second head sees detached features.
    pub fn forward(
        &self,
        features: &[Tensor<4>],
        p: &mut Pass,
        heads: Heads,
    ) -> (Option<HeadOutput>, Option<HeadOutput>) {
        let many = heads.many.then_some(&self.one_to_many);
        let one = self.one_to_one.as_ref().filter(|_| heads.one);
        // a feature gets the sum of its branches' gradients, of two summands, whenever they come
        let shared = |f: &Tensor<4>| ops::shared(f.clone());
        let detached = |f: &Tensor<4>| f.clone().detach();
        let many_on = many.map(|h| h.on(features.iter().map(shared).collect()));
        let one_on = one.map(|h| h.on(features.iter().map(detached).collect()));
        let each: Vec<_> = many_on.into_iter().chain(one_on).flatten().collect();
        // where ranks meet, all branches go on together; otherwise one after the other, which keeps what they read in caches
        let together = if p.tensors.synced() { usize::MAX } else { 1 };
        let outputs = each.chunks(together);
        let outputs: Vec<_> = outputs
            .flat_map(|next| Branch::forward_each(next.to_vec(), p))
            .collect();
        let mut outputs = outputs.into_iter();
        let mut joined = |b: &[Branch]| ops::join(outputs.by_ref().take(b.len()).collect(), 1);
        let mut head = |h: &Branches| HeadOutput {
            boxes: joined(&h.boxes),
            scores: joined(&h.classes),
        };
        (many.map(&mut head), one.map(&mut head))
    }

    pub fn cost(&self, sizes: &[(usize, usize)], c: &mut Cost) {
        for b in [Some(&self.one_to_many), self.one_to_one.as_ref()]
            .into_iter()
            .flatten()
        {
            for branch in [&b.boxes, &b.classes] {
                branch.iter().zip(sizes).for_each(|(b, &s)| b.cost(s, c));
            }
        }
    }
}

/// Which heads a forward pass computes.
#[derive(Debug, Clone, Copy)]
pub struct Heads {
    pub many: bool,
    pub one: bool,
}
