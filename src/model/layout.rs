//! Names, shapes and places of all parameters and buffers of a network.
//!
//! Parameters live in one flat array in the order of the names of a checkpoint, so that optimizer, averaging
//! and reduction over ranks are passes over flat memory. Convolution weights are kept as `[k, k, in/groups, out]`
//! (a 1x1 convolution of NHWC activations is then a plain matrix product); files hold `[out, in/groups, k, k]`.

/// Index of a parameter in [`Layout::params`].
pub type ParamId = usize;
/// Index of a batch norm in [`Layout::norms`].
pub type NormId = usize;

/// Which optimizer group a parameter belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ParamKind {
    /// Convolution weights: with weight decay.
    Weight,
    /// Scale of a batch norm: no decay.
    Norm,
    /// Biases, also those of batch norms: no decay, own warm-up rate.
    Bias,
    /// A constant that checkpoints carry and nothing trains (`dfl.conv.weight`).
    Constant,
}

/// Which head's loss a parameter's gradient comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadOf {
    /// Backbone, neck and one-to-many head.
    OneToMany,
    /// The head on detached features.
    OneToOne,
}

/// Which part of a branch that scores classes a parameter belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassPart {
    /// It is no such branch.
    None,
    /// Layers before the last.
    Hidden,
    /// Weights and biases of the last convolution, whose output channels are the classes.
    Output,
}

/// How a parameter starts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// Uniform in ±1/sqrt(fan_in) (He et al. 2015 with a = sqrt 5, the usual default).
    Uniform { fan_in: usize },
    /// A constant.
    Fill(f32),
    /// 0, 1, 2, ...
    Arange,
}

/// One parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamInfo {
    /// Name in a checkpoint, as in `model.0.conv.weight`.
    pub name: String,
    /// Internal shape: `[k, k, in/groups, out]` or `[channels]`.
    pub shape: Vec<usize>,
    /// First element in the flat array.
    pub offset: usize,
    pub kind: ParamKind,
    pub head: HeadOf,
    pub class: ClassPart,
    pub init: Init,
    /// Training leaves it as it is (`--freeze`).
    pub frozen: bool,
}

impl ParamInfo {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }
    /// Whether it has no element (never, in a valid network).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Whether training moves it.
    #[must_use]
    pub fn trained(&self) -> bool {
        self.kind != ParamKind::Constant && !self.frozen
    }
    /// Place in the flat array.
    #[must_use]
    pub fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.len()
    }
}

/// Running statistics of one batch norm: `channels` means at `offset`, then as many variances.
#[derive(Debug, Clone, PartialEq)]
pub struct NormInfo {
    /// Name in a checkpoint without the last part, as in `model.0.bn`.
    pub name: String,
    pub channels: usize,
    /// First element of the means in the flat array of buffers.
    pub offset: usize,
    pub head: HeadOf,
    /// The running statistics are used in training too, and kept (`--freeze`).
    pub frozen: bool,
}

impl NormInfo {
    /// Place of the means.
    #[must_use]
    pub fn mean(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.channels
    }
    /// Place of the variances.
    #[must_use]
    pub fn var(&self) -> std::ops::Range<usize> {
        self.offset + self.channels..self.offset + 2 * self.channels
    }
}

/// All parameters and buffers of a network.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Layout {
    pub params: Vec<ParamInfo>,
    pub norms: Vec<NormInfo>,
    /// Elements of all parameters.
    pub param_len: usize,
    /// Elements of all running statistics.
    pub buffer_len: usize,
}

impl Layout {
    /// The same with every parameter at a multiple of `align` elements.
    #[must_use]
    pub fn padded(&self, align: usize) -> Self {
        let mut padded = self.clone();
        padded.param_len = 0;
        for p in &mut padded.params {
            p.offset = padded.param_len;
            padded.param_len += p.len().next_multiple_of(align);
        }
        padded
    }

    /// Values in this layout's order, from those in that of `other`, which has the same parameters; 0 in between.
    ///
    /// # Panics
    /// If a parameter is missing in `values`.
    #[must_use]
    pub fn gather_from(&self, other: &Layout, values: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; self.param_len];
        for (to, from) in self.params.iter().zip(&other.params) {
            out[to.range()].copy_from_slice(&values[from.range()]);
        }
        out
    }

    pub(crate) fn param(
        &mut self,
        name: String,
        shape: Vec<usize>,
        kind: ParamKind,
        head: HeadOf,
        init: Init,
    ) -> ParamId {
        let info = ParamInfo {
            name,
            offset: self.param_len,
            shape,
            kind,
            head,
            class: ClassPart::None,
            init,
            frozen: false,
        };
        self.param_len += info.len();
        self.params.push(info);
        self.params.len() - 1
    }

    pub(crate) fn norm(&mut self, name: String, channels: usize, head: HeadOf) -> NormId {
        self.norms.push(NormInfo {
            name,
            channels,
            offset: self.buffer_len,
            head,
            frozen: false,
        });
        self.buffer_len += 2 * channels;
        self.norms.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_from_a_padded_layout() {
        let mut l = Layout::default();
        for len in [3, 128, 1, 200] {
            l.param(
                String::new(),
                vec![len],
                ParamKind::Bias,
                HeadOf::OneToMany,
                Init::Fill(0.0),
            );
        }
        let wide = l.padded(128);
        assert_eq!(
            wide.params.iter().map(|p| p.offset).collect::<Vec<_>>(),
            [0, 128, 256, 384]
        );
        assert_eq!(wide.param_len, 384 + 256);
        let values: Vec<f32> = (0..l.param_len).map(|i| i as f32).collect();
        let there = wide.gather_from(&l, &values);
        assert_eq!(there[128], 3.0);
        assert_eq!(l.gather_from(&wide, &there), values);
    }
}
