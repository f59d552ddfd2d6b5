//! The network: layers in the order of the model YAML.

use super::blocks::{Builder, C2psa, ConvArgs, ConvNorm, Cost, Csp, CspArgs, Pass, Sppf};
use super::head::{Detect, DetectArgs, HeadOutput, Heads};
use super::layout::{HeadOf, Layout};
use super::tensors::{Collected, Tensors};
use crate::config::model::{BlockKind, ModelSpec};
use crate::ops;
use burn::tensor::Tensor;

#[derive(Debug, Clone)]
enum Layer {
    Conv(ConvNorm),
    Csp(Csp),
    Sppf(Sppf),
    C2psa(C2psa),
    Upsample,
    Concat,
    Detect(Detect),
}

/// A network without its weights: layers, names, shapes.
#[derive(Debug, Clone)]
pub struct Network {
    pub spec: ModelSpec,
    pub classes: usize,
    /// Strides of the head's levels in pixels.
    pub strides: Vec<usize>,
    pub layout: Layout,
    layers: Vec<Layer>,
    /// Parameters before each layer, for the table.
    first_param: Vec<usize>,
}

/// Result of a forward pass.
pub struct Output {
    pub one_to_many: Option<HeadOutput>,
    pub one_to_one: Option<HeadOutput>,
    pub collected: Collected,
}

/// A row of the layer table.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerRow {
    pub index: usize,
    pub from: Vec<usize>,
    pub block: String,
    pub repeats: usize,
    pub out: usize,
    pub parameters: usize,
    /// Multiply-adds times two, at the table's image size.
    pub flops: u64,
}

impl Network {
    /// Builds the network for `classes` classes.
    #[must_use]
    pub fn new(spec: ModelSpec, classes: usize) -> Self {
        let mut b = Builder {
            layout: Layout::default(),
            head: HeadOf::OneToMany,
        };
        let mut layers = Vec::with_capacity(spec.layers.len());
        // channels and stride of each layer's output
        let mut channels: Vec<usize> = vec![];
        let mut strides: Vec<usize> = vec![];
        let mut first_param = vec![];
        let mut head_strides = vec![];
        for (i, l) in spec.layers.iter().enumerate() {
            first_param.push(b.layout.params.len());
            let name = format!("model.{i}");
            let ci = l.from.first().map_or(3, |&f| channels[f]);
            let stride = l.from.first().map_or(1, |&f| strides[f]);
            let csp = |narrow| CspArgs {
                repeats: l.repeats,
                expansion: l.expansion,
                shortcut: l.shortcut,
                narrow,
                c3k: l.c3k,
                attention: l.attention,
            };
            let (layer, co, s) = match l.block {
                BlockKind::Conv => {
                    let a = ConvArgs {
                        k: l.kernel,
                        stride: l.stride,
                        groups: 1,
                        act: l.activation,
                    };
                    (
                        Layer::Conv(b.conv(&name, ci, l.out, a)),
                        l.out,
                        stride * l.stride,
                    )
                }
                BlockKind::C2f => (
                    Layer::Csp(Csp::new(&mut b, &name, ci, l.out, csp(false))),
                    l.out,
                    stride,
                ),
                BlockKind::C3k2 => (
                    Layer::Csp(Csp::new(&mut b, &name, ci, l.out, csp(true))),
                    l.out,
                    stride,
                ),
                BlockKind::Sppf => {
                    let s = Sppf::new(&mut b, &name, ci, l.out, l.pools, l.shortcut, l.activation);
                    (Layer::Sppf(s), l.out, stride)
                }
                BlockKind::C2psa => (
                    Layer::C2psa(C2psa::new(&mut b, &name, ci, l.repeats, l.expansion)),
                    ci,
                    stride,
                ),
                BlockKind::Upsample => (Layer::Upsample, ci, (stride / 2).max(1)),
                BlockKind::Concat => (
                    Layer::Concat,
                    l.from.iter().map(|&f| channels[f]).sum(),
                    stride,
                ),
                BlockKind::Detect => {
                    head_strides = l.from.iter().map(|&f| strides[f]).collect();
                    let inputs: Vec<usize> = l.from.iter().map(|&f| channels[f]).collect();
                    let a = DetectArgs {
                        channels: &inputs,
                        strides: &head_strides,
                        classes,
                        reg_max: spec.reg_max,
                        one_to_one: spec.one_to_one,
                        class_branch: spec.class_branch,
                        class_width: spec.class_width,
                    };
                    (Layer::Detect(Detect::new(&mut b, &name, &a)), 0, stride)
                }
            };
            layers.push(layer);
            channels.push(co);
            strides.push(s);
        }
        Self {
            spec,
            classes,
            strides: head_strides,
            layout: b.layout,
            layers,
            first_param,
        }
    }

    /// Number of parameters, constants included.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.layout.param_len
    }

    /// Largest stride: sizes of images must be multiples of it.
    #[must_use]
    pub fn max_stride(&self) -> usize {
        self.strides.iter().copied().max().unwrap_or(32)
    }

    /// Runs the network on `image` `[n, h, w, 3]`, RGB in 0..1, `h` and `w` multiples of the largest stride.
    #[must_use]
    pub fn forward(&self, tensors: &Tensors, image: Tensor<4>, heads: Heads) -> Output {
        let mut p = Pass {
            tensors,
            collected: Collected::default(),
        };
        let mut kept: Vec<Option<Tensor<4>>> = vec![None; self.layers.len()];
        // the last layer that reads each output, so that it is dropped after its last use
        let mut last_use = vec![0; self.layers.len()];
        for (i, l) in self.spec.layers.iter().enumerate() {
            l.from.iter().for_each(|&f| last_use[f] = i);
        }
        let mut image = Some(image);
        let mut result = (None, None);
        for (i, (layer, spec)) in self.layers.iter().zip(&self.spec.layers).enumerate() {
            let mut inputs: Vec<Tensor<4>> = spec
                .from
                .iter()
                .map(|&f| {
                    let t = if last_use[f] == i {
                        kept[f].take()
                    } else {
                        kept[f].clone()
                    };
                    t.expect("an earlier layer's output is kept until its last use")
                })
                .collect();
            if inputs.is_empty() {
                inputs.push(image.take().expect("only the first layer reads the image"));
            }
            let mut x = || inputs.swap_remove(0);
            let y = match layer {
                Layer::Conv(c) => c.forward(x(), &mut p),
                Layer::Csp(c) => c.forward(x(), &mut p),
                Layer::Sppf(s) => s.forward(x(), &mut p),
                Layer::C2psa(c) => c.forward(x(), &mut p),
                Layer::Upsample => ops::upsample2(x()),
                Layer::Concat => ops::concat(inputs),
                Layer::Detect(d) => {
                    result = d.forward(&inputs, &mut p, heads);
                    break;
                }
            };
            kept[i] = Some(y);
        }
        Output {
            one_to_many: result.0,
            one_to_one: result.1,
            collected: p.collected,
        }
    }

    /// Elements that the convolutions of one image of `h` x `w` pixels give, all together: what training keeps of a forward
    /// pass is about twice as much (what batch norms read and what they give).
    #[must_use]
    pub fn conv_outputs(&self, image: (usize, usize)) -> u64 {
        self.costs(image).iter().map(|c| c.outputs).sum()
    }

    /// Cost of each layer for an image of `h` x `w` pixels.
    fn costs(&self, image: (usize, usize)) -> Vec<Cost> {
        let mut sizes: Vec<(usize, usize)> = vec![];
        let mut costs = vec![];
        for (layer, spec) in self.layers.iter().zip(&self.spec.layers) {
            let input = spec.from.first().map_or(image, |&f| sizes[f]);
            let mut cost = Cost::default();
            let mut out = input;
            match layer {
                Layer::Conv(c) => out = c.cost(input, &mut cost),
                Layer::Csp(c) => c.cost(input, &mut cost),
                Layer::Sppf(c) => c.cost(input, &mut cost),
                Layer::C2psa(c) => c.cost(input, &mut cost),
                Layer::Upsample => out = (input.0 * 2, input.1 * 2),
                Layer::Concat => {}
                Layer::Detect(d) => {
                    let inputs: Vec<_> = spec.from.iter().map(|&f| sizes[f]).collect();
                    d.cost(&inputs, &mut cost);
                }
            }
            sizes.push(out);
            costs.push(cost);
        }
        costs
    }

    /// The layer table at `size` x `size` pixels.
    #[must_use]
    pub fn table(&self, size: usize) -> Vec<LayerRow> {
        let mut rows = vec![];
        let end = self.layout.params.len();
        let costs = self.costs((size, size));
        for (i, (spec, cost)) in self.spec.layers.iter().zip(costs).enumerate() {
            let params = self.first_param[i]..self.first_param.get(i + 1).copied().unwrap_or(end);
            rows.push(LayerRow {
                index: i,
                from: spec.from.clone(),
                block: format!("{:?}", spec.block).to_lowercase(),
                repeats: spec.repeats,
                out: spec.out,
                parameters: self.layout.params[params]
                    .iter()
                    .map(super::layout::ParamInfo::len)
                    .sum(),
                flops: 2 * cost.macs,
            });
        }
        rows
    }
}
