//! The CPU kernels behind `Kernels` on the Flex backend.

use super::NORM_EPS;
use super::cpu::conv::{
    ConvShape, Epilogue, column_sums, conv_backward_data, conv_backward_weight, conv_forward,
};
use super::cpu::lanes::LaneSums;
use super::cpu::norm::{self, Affine};
use super::cpu::{attention, pool, shape};
use super::extension::{
    AttendArgs, BiasArgs, ConvArgs, Folded, Kernels, NormArgs, Normalised, Record, Slices,
    Statistics, Summed,
};
use super::memory::Buffer;
use super::ranks::Slot;
use burn::backend::TensorMetadata;
use burn::backend::flex::{Flex, FlexTensor};
use burn::tensor::{DType, Shape, TensorData};

type T = FlexTensor;

/// The elements, where they are contiguous. A rank without images has tensors without elements, whose views may begin
/// behind their end.
fn slice(t: &T) -> Option<&[f32]> {
    match t.layout().num_elements() {
        0 => Some(&[]),
        _ => t.as_slice::<f32>(),
    }
}

/// The elements of a contiguous float32 tensor.
fn values(t: &T) -> &[f32] {
    slice(t).expect("made contiguous by `dense`, float32 by `available`")
}

/// Views that other operations made are copied; what the kernels make is dense already.
fn dense(t: T) -> T {
    if slice(&t).is_some() {
        t
    } else {
        t.to_contiguous()
    }
}

/// Whether the tensor is its whole buffer and nobody else holds it, so that it may be written into.
fn is_own(t: &T) -> bool {
    t.is_unique()
        && t.is_contiguous()
        && t.layout().start_offset() == 0
        && t.bytes().len() == t.layout().num_elements() * 4
}

fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> T {
    FlexTensor::from_data(TensorData::new(values, shape.into()))
}

/// A buffer of which a kernel writes everything.
fn buffer(len: usize) -> Buffer {
    Buffer::new(len)
}

/// A copy of a tensor's values.
fn copy(t: &T) -> Buffer {
    let mut b = buffer(values(t).len());
    b.copy_from_slice(values(t));
    b
}

/// Pixels of 0..=255 as values of 0..1.
pub(super) fn image(pixels: &[u8], shape: [usize; 4]) -> T {
    let mut values = buffer(pixels.len());
    shape::unit_pixels(pixels, &mut values);
    values.into_tensor(shape)
}

fn dims4(t: &T) -> [usize; 4] {
    let s = t.shape();
    [s[0], s[1], s[2], s[3]]
}

fn grid(t: &T) -> pool::Grid {
    let [images, rows, cols, channels] = dims4(t);
    pool::Grid {
        images,
        rows,
        cols,
        channels,
    }
}

fn conv_shape(x: &T, w: &T, a: &ConvArgs) -> ConvShape {
    let ([n, h, wd, ci], [k, _, per_group, co]) = (dims4(x), dims4(w));
    assert_eq!(
        ci,
        per_group * a.groups,
        "channels of x {:?} and w {:?}",
        x.shape(),
        w.shape()
    );
    ConvShape {
        n,
        h,
        w: wd,
        ci,
        co,
        k,
        stride: a.stride,
        groups: a.groups,
    }
}

/// A parameter's gradient: into its slot, or as a tensor of `shape`.
fn gradient(
    slot: Option<&Slot>,
    lanes: usize,
    shape: impl Into<Shape>,
    mut write: impl FnMut(&mut LaneSums),
) -> T {
    if let Some(slot) = slot {
        slot.sink.write(slot.id, &mut |mut sums| write(&mut sums));
        return tensor(vec![], [0]);
    }
    let shape = shape.into();
    let mut g = buffer(shape.num_elements());
    write(&mut LaneSums::all(&(0..lanes), &mut g));
    g.into_tensor(shape)
}

fn convolve(x: T, w: T, a: ConvArgs, epilogue: Epilogue) -> T {
    let (x, w) = (dense(x), dense(w));
    let s = conv_shape(&x, &w, &a);
    let mut y = buffer(s.y_len());
    conv_forward(super::isa(), &s, values(&x), values(&w), &mut y, epilogue);
    y.into_tensor([s.n, s.out_h(), s.out_w(), s.co])
}

/// Sizes before and behind an axis.
fn around(shape: &Shape, axis: usize) -> [usize; 2] {
    let product = |r: std::ops::Range<usize>| r.map(|i| shape[i]).product();
    [product(0..axis), product(axis + 1..shape.num_dims())]
}

/// Puts each of `rows` rows at `at` of those of `out`.
fn put_columns<E: Copy>(x: &[E], rows: usize, at: std::ops::Range<usize>, out: &mut [E]) {
    if rows == 0 || at.is_empty() {
        return;
    }
    let width = out.len() / rows;
    for (row, x) in x.chunks_exact(at.len()).enumerate() {
        out[row * width..][at.clone()].copy_from_slice(x);
    }
}

/// The elements of a contiguous float64 tensor.
fn wide(t: &T) -> &[f64] {
    match t.layout().num_elements() {
        0 => &[],
        _ => t.as_slice::<f64>().expect("contiguous and float64"),
    }
}

fn concat<const N: usize>(parts: [T; N]) -> T {
    let parts = parts.map(dense);
    let [n, h, w, _] = dims4(&parts[0]);
    let parts = parts.each_ref().map(|p| (values(p), p.shape()[3]));
    let total = parts.iter().map(|p| p.1).sum::<usize>();
    let mut out = buffer(n * h * w * total);
    shape::concat(&parts, &mut out);
    out.into_tensor([n, h, w, total])
}

fn attention_shape(qkv: &T, a: &AttendArgs) -> attention::Shape {
    let [images, h, w, _] = dims4(qkv);
    attention::Shape {
        images,
        positions: h * w,
        heads: a.heads,
        key: a.key,
        head: a.head,
    }
}

/// Leaves the batch's statistics, where they are what normalises.
fn measure(y: &T, a: &NormArgs) {
    if let Statistics::Batch(norm) = &a.statistics {
        let [n, h, w, c] = dims4(y);
        let parts = norm::moments(super::isa(), values(y), h * w, c, &a.lanes.cut(n));
        norm.statistics().leave(parts);
    }
}

impl Kernels for Flex {
    fn conv(x: T, w: T, a: ConvArgs) -> T {
        convolve(x, w, a, Epilogue::None)
    }
    fn conv_folded(x: T, w: T, a: ConvArgs, f: Folded) -> T {
        convolve(
            x,
            w,
            a,
            Epilogue::ScaleShift {
                scale: &f.scale,
                shift: &f.shift,
                silu: f.silu,
            },
        )
    }
    fn conv_dx(dy: T, w: T, like: T, a: ConvArgs) -> T {
        let (dy, w) = (dense(dy), dense(w));
        let s = conv_shape(&like, &w, &a);
        let mut dx = buffer(s.x_len());
        conv_backward_data(super::isa(), &s, values(&dy), values(&w), &mut dx, false);
        dx.into_tensor(like.shape())
    }
    fn conv_dw(dy: T, x: T, like: T, a: ConvArgs) -> T {
        let (dy, x) = (dense(dy), dense(x));
        let s = conv_shape(&x, &like, &a);
        let lanes = a.lanes.cut(s.n);
        gradient(a.slot.as_ref(), lanes.len(), like.shape(), |sums| {
            conv_backward_weight(super::isa(), &s, values(&x), values(&dy), &lanes, sums);
        })
    }
    fn conv_bias(x: T, w: T, b: T, a: ConvArgs, _: BiasArgs) -> T {
        let b = dense(b);
        convolve(x, w, a, Epilogue::Bias(values(&b)))
    }
    fn bias_db(dy: T, a: BiasArgs) -> T {
        let dy = dense(dy);
        let [n, _, _, c] = dims4(&dy);
        let lanes = a.lanes.cut(n);
        gradient(a.slot.as_ref(), lanes.len(), [c], |sums| {
            column_sums(super::isa(), values(&dy), [n, c], &lanes, sums);
        })
    }
    fn measured(y: T, before: T, a: NormArgs) -> (T, T) {
        let y = dense(y);
        measure(&y, &a);
        (y, before)
    }
    fn norm_act(y: T, gamma: T, beta: T, _: T, a: NormArgs) -> T {
        let y = dense(y);
        if !a.beside() {
            measure(&y, &a);
        }
        let (gamma, beta) = (dense(gamma), dense(beta));
        let (gamma, beta) = (values(&gamma), values(&beta));
        let (affine, moments) = match &a.statistics {
            Statistics::Fixed(s) => (Affine::fixed(&s.0, &s.1, gamma, beta, NORM_EPS), None),
            Statistics::Batch(norm) => {
                let all = norm.statistics().merged(&a.lanes);
                (Affine::of_batch(&all, gamma, beta, NORM_EPS), Some(all))
            }
        };
        let mut z = buffer(values(&y).len());
        norm::normalise(super::isa(), values(&y), &affine, a.act, &mut z);
        a.record.set(Normalised { affine, moments });
        z.into_tensor(y.shape())
    }
    fn norm_sums(da: T, y: T, a: NormArgs) -> (T, T, T) {
        let (mut da, y) = (dense(da), dense(y));
        let [n, h, w, c] = dims4(&y);
        let isa = super::isa();
        let Normalised { affine, .. } = a.record.left();
        let lanes = a.lanes.cut(n);
        let (dz, parts) = if is_own(&da) {
            let dz = da.storage_mut();
            let parts =
                norm::gradient_sums_in_place(isa, values(&y), dz, h * w, affine, a.act, &lanes);
            (da, parts)
        } else {
            let mut dz = buffer(n * h * w * c);
            let (y, da) = (values(&y), values(&da));
            let parts = norm::gradient_sums(isa, y, da, h * w, affine, a.act, &lanes, &mut dz);
            (dz.into_tensor([n, h, w, c]), parts)
        };
        // a lane's own parameter gradients, which are summed as those of convolutions are
        let (mut of_gamma, mut of_beta) = (vec![], vec![]);
        for (sums, lane) in parts.iter().zip(&lanes) {
            let (gamma, beta) = (!lane.is_empty()).then(|| sums.parameters(affine)).unzip();
            of_gamma.push(gamma);
            of_beta.push(beta);
        }
        let [gamma, beta] = [(&a.gamma, of_gamma), (&a.beta, of_beta)]
            .map(|(slot, parts)| gradient(slot.as_ref(), lanes.len(), [c], |s| s.put(&parts)));
        if let Statistics::Batch(norm) = &a.statistics {
            norm.gradient_sums().leave(parts);
        }
        (dz, gamma, beta)
    }
    fn norm_dy(dz: T, y: T, a: NormArgs) -> T {
        let (mut dz, y) = (dense(dz), dense(y));
        let Normalised { affine, moments } = a.record.left();
        // constants take nothing of the gradient
        let (sums, count) = match &a.statistics {
            Statistics::Batch(norm) => (norm.gradient_sums().merged(&a.lanes), moments.as_ref()),
            Statistics::Fixed(_) => (norm::GradientSums::empty(dims4(&y)[3]), None),
        };
        let g = sums.finish(affine, count.map(|m| m.count));
        if !is_own(&dz) {
            dz = copy(&dz).into_tensor(y.shape());
        }
        norm::input_gradient(super::isa(), values(&y), dz.storage_mut(), affine, &g);
        dz
    }
    fn pool5(x: T, winners: Record<pool::Winners>) -> T {
        let x = dense(x);
        let g = grid(&x);
        let mut y = buffer(g.len());
        winners.set(pool::max_pool5(super::isa(), values(&x), g, &mut y));
        y.into_tensor(x.shape())
    }
    fn pool5_dx(dy: T, winners: Record<pool::Winners>) -> T {
        let dy = dense(dy);
        let g = grid(&dy);
        let mut dx = buffer(g.len());
        pool::max_pool5_gradient(super::isa(), winners.left(), values(&dy), g, &mut dx);
        dx.into_tensor(dy.shape())
    }
    fn up2(x: T) -> T {
        let x = dense(x);
        let [n, h, w, c] = dims4(&x);
        let mut y = buffer(4 * n * h * w * c);
        shape::upsample2(values(&x), w, c, &mut y);
        y.into_tensor([n, 2 * h, 2 * w, c])
    }
    fn up2_dx(dy: T) -> T {
        let dy = dense(dy);
        let [n, h, w, c] = dims4(&dy);
        let mut dx = buffer(n * h * w * c / 4);
        shape::upsample2_gradient(values(&dy), w / 2, c, &mut dx);
        dx.into_tensor([n, h / 2, w / 2, c])
    }
    fn cat2(a: T, b: T) -> T {
        concat([a, b])
    }
    fn cat3(a: T, b: T, c: T) -> T {
        concat([a, b, c])
    }
    fn cat4(a: T, b: T, c: T, d: T) -> T {
        concat([a, b, c, d])
    }
    fn join2(a: T, b: T, axis: usize) -> T {
        let mut shape = a.shape();
        let [_, inner] = around(&shape, axis);
        let widths = [&a, &b].map(|t| t.shape()[axis] * inner);
        shape[axis] += b.shape()[axis];
        if a.dtype() == DType::F64 {
            let (a, b) = (a.to_contiguous(), b.to_contiguous());
            let mut y = vec![0.0f64; shape.num_elements()];
            shape::concat(&[(wide(&a), widths[0]), (wide(&b), widths[1])], &mut y);
            return FlexTensor::from_data(TensorData::new(y, shape));
        }
        let (a, b) = (dense(a), dense(b));
        let mut y = buffer(shape.num_elements());
        shape::concat(&[(values(&a), widths[0]), (values(&b), widths[1])], &mut y);
        y.into_tensor(shape)
    }
    fn along(x: T, axis: usize, start: usize, len: usize) -> T {
        let mut shape = x.shape();
        let [_, inner] = around(&shape, axis);
        let (width, first, taken) = (shape[axis] * inner, start * inner, len * inner);
        shape[axis] = len;
        if x.dtype() == DType::F64 {
            let x = x.to_contiguous();
            let mut y = vec![0.0f64; shape.num_elements()];
            shape::slice_channels(wide(&x), width, first, taken, &mut y);
            return FlexTensor::from_data(TensorData::new(y, shape));
        }
        let x = dense(x);
        let mut y = buffer(shape.num_elements());
        shape::slice_channels(values(&x), width, first, taken, &mut y);
        y.into_tensor(shape)
    }
    fn within(x: T, axis: usize, start: usize, total: usize) -> T {
        let mut shape = x.shape();
        let [rows, inner] = around(&shape, axis);
        let at = start * inner..(start + shape[axis]) * inner;
        shape[axis] = total;
        if x.dtype() == DType::F64 {
            let x = x.to_contiguous();
            let mut y = vec![0.0f64; shape.num_elements()];
            put_columns(wide(&x), rows, at, &mut y);
            return FlexTensor::from_data(TensorData::new(y, shape));
        }
        let x = dense(x);
        let mut y = buffer(shape.num_elements());
        y.fill(0.0);
        put_columns(values(&x), rows, at, &mut y);
        y.into_tensor(shape)
    }
    fn part(x: T, start: usize, len: usize) -> T {
        let x = dense(x);
        let [n, h, w, c] = dims4(&x);
        let mut y = buffer(n * h * w * len);
        shape::slice_channels(values(&x), c, start, len, &mut y);
        y.into_tensor([n, h, w, len])
    }
    fn add_to_part(total: T, g: T, start: usize) -> T {
        let (mut total, g) = (dense(total), dense(g));
        let (c, len) = (total.shape()[3], g.shape()[3]);
        if is_own(&total) {
            shape::add_to_channels(total.storage_mut(), c, start, len, values(&g));
            return total;
        }
        let mut sum = copy(&total);
        shape::add_to_channels(&mut sum, c, start, len, values(&g));
        sum.into_tensor(total.shape())
    }
    fn shared(x: T) -> T {
        x
    }
    fn sum(a: T, b: T) -> T {
        let (a, b) = (dense(a), dense(b));
        let mut y = buffer(values(&a).len());
        shape::add(values(&a), values(&b), &mut y);
        y.into_tensor(a.shape())
    }
    fn on_slices(a: T, b: T, f: Slices) -> (T, T) {
        let (a, b) = (dense(a), dense(b));
        let (mut x, mut y) = (buffer(values(&a).len()), buffer(values(&b).len()));
        (f.0)(values(&a), values(&b), &mut x, &mut y);
        (x.into_tensor(a.shape()), y.into_tensor(b.shape()))
    }
    fn rank_sum(x: T, s: Summed) -> T {
        let x = x.to_contiguous();
        let narrow = x.as_slice::<f32>();
        let own: Vec<f64> = match narrow {
            Some(v) => v.iter().map(|&v| f64::from(v)).collect(),
            None => x.as_slice::<f64>().expect("float32 or float64").to_vec(),
        };
        let mut sum = vec![0.0; own.len()];
        let all = s.ranks.gather(&s.name, "sum", own.clone());
        for of_rank in all.unwrap_or_else(|| vec![own]) {
            sum.iter_mut().zip(of_rank).for_each(|(s, v)| *s += v);
        }
        let data = TensorData::new(sum, x.shape());
        FlexTensor::from_data(match narrow {
            Some(_) => data.convert_dtype(DType::F32),
            None => data,
        })
    }
    fn injected(x: T, gradient: T) -> T {
        assert_eq!(
            x.shape(),
            gradient.shape(),
            "a gradient has the shape of what it belongs to"
        );
        tensor(vec![0.0], [1])
    }
    fn attended(qkv: T, a: AttendArgs) -> T {
        let qkv = dense(qkv);
        let s = attention_shape(&qkv, &a);
        let [n, h, w, _] = dims4(&qkv);
        let (mut out, mut own) = (buffer(n * h * w * s.width()), buffer(n * h * w * s.width()));
        a.record.set(attention::attend(
            super::isa(),
            values(&qkv),
            s,
            &mut out,
            &mut own,
        ));
        out.into_tensor([n, h, w, s.width()])
    }
    fn attended_dqkv(d: T, qkv: T, a: AttendArgs) -> T {
        let (d, qkv) = (dense(d), dense(qkv));
        let s = attention_shape(&qkv, &a);
        let mut dqkv = buffer(values(&qkv).len());
        attention::attend_gradient(
            super::isa(),
            values(&qkv),
            a.record.left(),
            values(&d),
            None,
            s,
            &mut dqkv,
        );
        dqkv.into_tensor(qkv.shape())
    }
}
