//! The CPU kernels behind `Kernels` on the Flex backend.

use super::cpu::conv::{ConvShape, Epilogue, conv_backward_data, conv_backward_weight, conv_forward};
use super::cpu::{isa::Isa, lanes};
use super::extension::Kernels;
use burn::backend::TensorMetadata;
use burn::backend::flex::{Flex, FlexTensor};
use burn::tensor::{Shape, TensorData};

type T = FlexTensor;

/// The elements of a contiguous float32 tensor.
fn values(t: &T) -> &[f32] {
    t.as_slice::<f32>().expect("made contiguous by `dense`, float32 by `available`")
}

/// Views that other operations made are copied; what the kernels make is dense already.
fn dense(t: T) -> T {
    if t.as_slice::<f32>().is_some() { t } else { t.to_contiguous() }
}

fn tensor(values: Vec<f32>, shape: Shape) -> T {
    FlexTensor::from_data(TensorData::new(values, shape))
}

fn dims4(t: &T) -> [usize; 4] {
    let s = t.shape();
    [s[0], s[1], s[2], s[3]]
}

fn conv_shape(x: &T, w: &T, stride: usize, groups: usize) -> ConvShape {
    let ([n, h, wd, ci], [k, _, per_group, co]) = (dims4(x), dims4(w));
    assert_eq!(ci, per_group * groups, "channels of x {:?} and w {:?}", x.shape(), w.shape());
    ConvShape { n, h, w: wd, ci, co, k, stride, groups }
}

impl Kernels for Flex {
    fn conv(x: T, w: T, stride: usize, groups: usize, _lanes: usize) -> T {
        let (x, w) = (dense(x), dense(w));
        let s = conv_shape(&x, &w, stride, groups);
        let mut y = vec![0.0; s.y_len()];
        conv_forward(Isa::best(), &s, values(&x), values(&w), &mut y, Epilogue::None);
        tensor(y, [s.n, s.out_h(), s.out_w(), s.co].into())
    }

    fn conv_dx(dy: T, w: T, like: T, stride: usize, groups: usize) -> T {
        let (dy, w) = (dense(dy), dense(w));
        let s = conv_shape(&like, &w, stride, groups);
        let mut dx = vec![0.0; s.x_len()];
        conv_backward_data(Isa::best(), &s, values(&dy), values(&w), &mut dx, false);
        tensor(dx, like.shape())
    }

    fn conv_dw(dy: T, x: T, like: T, stride: usize, groups: usize, lane_count: usize) -> T {
        let (dy, x) = (dense(dy), dense(x));
        let s = conv_shape(&x, &like, stride, groups);
        let mut dw = vec![0.0; s.w_len()];
        conv_backward_weight(Isa::best(), &s, values(&x), values(&dy), &lanes::cut(s.n, lane_count), &mut dw);
        tensor(dw, like.shape())
    }
}
