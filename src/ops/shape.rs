//! Pooling, upsampling, concatenation, residuals and the products of an attention block.

use super::extension::{AttendArgs, Kernels, Record, available};
use super::reference;
use burn::backend::Dispatch;
use burn::tensor::Tensor;

/// Maximum over 5x5 windows, stride 1, padding 2: `[n, h, w, c]` -> `[n, h, w, c]`.
pub fn max_pool5(x: Tensor<4>) -> Tensor<4> {
    if available(&x) {
        return Tensor::from_dispatch(<Dispatch as Kernels>::pool5(
            x.into_dispatch(),
            Record::new(),
        ));
    }
    reference::max_pool5(x)
}

/// Nearest-neighbour doubling: `[n, h, w, c]` -> `[n, 2h, 2w, c]`.
pub fn upsample2(x: Tensor<4>) -> Tensor<4> {
    if available(&x) {
        return Tensor::from_dispatch(<Dispatch as Kernels>::up2(x.into_dispatch()));
    }
    reference::upsample2(x)
}

/// Concatenation of channels.
pub fn concat(mut parts: Vec<Tensor<4>>) -> Tensor<4> {
    if !parts.iter().all(available) {
        return join(parts, 3);
    }
    // the extension knows no lists of tensors: up to four at a time
    while parts.len() > 1 {
        let rest = parts.split_off(parts.len().min(4));
        let mut taken = parts.into_iter().map(Tensor::into_dispatch);
        let joined = match [taken.next(), taken.next(), taken.next(), taken.next()] {
            [Some(a), Some(b), Some(c), Some(d)] => <Dispatch as Kernels>::cat4(a, b, c, d),
            [Some(a), Some(b), Some(c), None] => <Dispatch as Kernels>::cat3(a, b, c),
            [Some(a), Some(b), None, None] => <Dispatch as Kernels>::cat2(a, b),
            _ => unreachable!("two to four parts were taken"),
        };
        parts = vec![Tensor::from_dispatch(joined)];
        parts.extend(rest);
    }
    parts.pop().expect("something to concatenate")
}

/// Concatenation along an axis, the last two first.
pub fn join<const D: usize>(mut parts: Vec<Tensor<D>>, axis: usize) -> Tensor<D> {
    let last = parts.pop().expect("something to concatenate");
    parts.into_iter().rev().fold(last, |rest, part| {
        let (part, rest) = (part.into_dispatch(), rest.into_dispatch());
        Tensor::from_dispatch(<Dispatch as Kernels>::join2(part, rest, axis))
    })
}

/// `x` for several readers: their gradients are added up before they meet those of what else reads `x`.
pub fn shared(x: Tensor<4>) -> Tensor<4> {
    Tensor::from_dispatch(<Dispatch as Kernels>::shared(x.into_dispatch()))
}

/// Channels `start..start + len`.
pub fn split_channels(x: Tensor<4>, start: usize, len: usize) -> Tensor<4> {
    Tensor::from_dispatch(<Dispatch as Kernels>::along(
        x.into_dispatch(),
        3,
        start,
        len,
    ))
}

/// Channels `start..start + len` of an activation that a later operation reads as a whole (the concatenation at the
/// end of a cross-stage block): the gradient is then added in place instead of to a padded copy. `x` must be the result
/// of an operation, not a leaf of the graph.
pub fn part(x: Tensor<4>, start: usize, len: usize) -> Tensor<4> {
    if available(&x) {
        return Tensor::from_dispatch(<Dispatch as Kernels>::part(x.into_dispatch(), start, len));
    }
    split_channels(x, start, len)
}

/// Residual addition.
pub fn add(a: Tensor<4>, b: Tensor<4>) -> Tensor<4> {
    if available(&a) && available(&b) {
        return Tensor::from_dispatch(<Dispatch as Kernels>::sum(
            a.into_dispatch(),
            b.into_dispatch(),
        ));
    }
    a + b
}

/// Multi-head attention over the positions of an image (Vaswani et al. 2017).
///
/// `qkv` `[n, h, w, heads * (2 * key_dim + head_dim)]`, per head the channels of query, key and value in this order.
/// Returns the attended values and the values themselves, both `[n, h, w, heads * head_dim]`.
pub fn attend(
    qkv: Tensor<4>,
    heads: usize,
    key_dim: usize,
    head_dim: usize,
) -> (Tensor<4>, Tensor<4>) {
    let [n, h, w, _] = qkv.dims();
    let positions = h * w;
    let kernels = available(&qkv);
    let per_head = qkv
        .clone()
        .reshape([n, positions, heads, 2 * key_dim + head_dim]);
    let v = split_channels(per_head.clone(), 2 * key_dim, head_dim);
    let values = v.reshape([n, h, w, heads * head_dim]);
    if kernels {
        let a = AttendArgs {
            heads,
            key: key_dim,
            head: head_dim,
            record: Record::new(),
        };
        let attended =
            Tensor::from_dispatch(<Dispatch as Kernels>::attended(qkv.into_dispatch(), a));
        return (attended, values);
    }
    let attended = reference::attended(per_head, key_dim, head_dim);
    (attended.reshape([n, h, w, heads * head_dim]), values)
}
