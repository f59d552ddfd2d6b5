//! `Kernels` on Burn's CubeCL backend.

use super::flat;
use super::launch::{Cut, T, dense, dims4, empty};
use super::norm::{Places, Source};
use super::sums::{Target, cast};
use super::{attention, conv, norm, pool, shape, sums};
use crate::ops::cpu;
use crate::ops::extension::{
    AttendArgs, BiasArgs, ConvArgs, Folded, Kernels, NormArgs, Record, Slices, Statistics, Summed,
};
use crate::ops::group::{Member, Rows};
use crate::ops::ranks::{Ranks, Running};
use burn::tensor::{DType, TensorData};
use burn_cubecl::CubeBackend;
use burn_cubecl::ops::into_data_sync;
use std::sync::atomic::Ordering;

/// The values of a tensor, on the host.
pub(in crate::ops) fn download(t: T) -> TensorData {
    into_data_sync(dense(t))
}

fn floats(t: T) -> Vec<f32> {
    let data = download(t).convert_dtype(DType::F32);
    data.try_to_vec::<f32>().expect("converted to float32")
}

/// Weights in the activation's type.
fn weights(w: T, x: &T) -> T {
    dense(cast(w, x.dtype))
}

/// The running statistics of a norm on the device.
fn places(r: &Running) -> Places {
    let flat = r.flat.clone().inner();
    let flat = flat
        .try_into_primitive::<CubeBackend>()
        .expect("running statistics lie on the device of the activations");
    assert!(
        flat.is_contiguous() && flat.dtype == DType::F32,
        "running statistics are one flat float32 tensor"
    );
    Places {
        flat,
        mean: r.mean,
        var: r.var,
    }
}

/// `own` `[own lanes, k]` of all ranks, through the host.
pub(crate) fn gather_through_host(
    ranks: &(impl Ranks + ?Sized),
    of: &str,
    what: &'static str,
    own: T,
) -> Option<T> {
    let width = own.meta.shape()[1];
    let values = floats(own.clone()).into_iter().map(f64::from).collect();
    let all = ranks.gather(of, what, values)?;
    let all: Vec<f32> = all.into_iter().flatten().map(|v| v as f32).collect();
    let shape = [all.len() / width.max(1), width];
    Some(flat::upload(&own.device, &all, shape, DType::F32))
}

/// What `rows` of a norm are of: all lanes where an exchange brought them together, otherwise the own ones.
fn counted(cut: Cut, rows: &Rows, norm: &Member) -> Cut {
    if !norm.group.is_synced() || rows.table.meta.shape()[0] != cut.lanes {
        // also what is left of an exchange that failed
        return cut;
    }
    Cut {
        first: 0,
        own: cut.lanes,
        images: cut.all,
        ..cut
    }
}

/// The table of a group's own lanes.
fn own_table(like: &T, cut: Cut) -> impl FnOnce(usize) -> T {
    move |columns| empty(like, [cut.own, columns], DType::F32)
}

/// Leaves the batch's statistics, where they are what normalises.
fn measure(y: &T, a: &NormArgs) {
    if let Statistics::Batch(norm) = &a.statistics {
        let cut = Cut::new(&a.lanes, dims4(y)[0]);
        let rows = norm.statistics().own_rows(own_table(y, cut));
        norm::moments(y, cut, &rows);
    }
}

fn convolve(x: T, w: T, bias: Option<T>, a: &ConvArgs) -> T {
    let x = dense(x);
    let w = weights(w, &x);
    let s = conv::Sizes::new(&x, &w, a.stride, a.groups);
    match bias {
        Some(b) => conv::forward_bias(&x, &w, &b, &s, a),
        None => conv::forward(&x, &w, &s, a),
    }
}

impl Kernels for CubeBackend {
    fn conv(x: T, w: T, a: ConvArgs) -> T {
        convolve(x, w, None, &a)
    }
    fn conv_dx(dy: T, w: T, like: T, a: ConvArgs) -> T {
        let dy = dense(dy);
        let w = weights(w, &dy);
        let s = conv::Sizes::new(&like, &w, a.stride, a.groups);
        conv::backward_data(&dy, &w, &s, &a)
    }
    fn conv_dw(dy: T, x: T, like: T, a: ConvArgs) -> T {
        let (dy, x) = (dense(dy), dense(x));
        let s = conv::Sizes::new(&x, &like, a.stride, a.groups);
        let cut = Cut::new(&a.lanes, s.n);
        let target = Target::of(a.slot.as_ref());
        let shape = like.meta.shape().clone();
        conv::backward_weight(
            &dy,
            &x,
            &s,
            cut,
            &a.lanes.cut(s.n),
            target,
            shape,
            like.dtype,
        )
    }
    fn conv_folded(x: T, w: T, a: ConvArgs, f: Folded) -> T {
        let y = Self::conv(x, w, a);
        let c = f.scale.len();
        let [scale, shift] =
            [&f.scale, &f.shift].map(|v| flat::upload(&y.device, v, [c], DType::F32));
        shape::affine(&y, &scale, &shift, f.silu)
    }
    fn conv_bias(x: T, w: T, b: T, a: ConvArgs, _: BiasArgs) -> T {
        convolve(x, w, Some(dense(b)), &a)
    }
    fn bias_db(dy: T, a: BiasArgs) -> T {
        let dy = dense(dy);
        let [n, _, _, c] = dims4(&dy);
        let cut = Cut::new(&a.lanes, n);
        let (parts, per_image) = sums::column_sums(&dy);
        let target = Target::of(a.slot.as_ref());
        sums::lane_sums(&parts, per_image, c, cut, target, [c].into(), DType::F32)
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
        let [gamma, beta] = [gamma, beta].map(|t| dense(cast(t, DType::F32)));
        let [n, h, w, c] = dims4(&y);
        let cut = Cut::new(&a.lanes, n);
        if let Some(r) = &a.running {
            r.rows.store((h * w) as u32, Ordering::Relaxed);
        }
        let running = a.running.as_ref().map(|r| (places(r), r.momentum as f32));
        let (source, cut) = match &a.statistics {
            Statistics::Fixed(s) => {
                // those of the device, where there are some
                let places = running.map(|r| r.0).unwrap_or_else(|| Places {
                    flat: flat::upload(
                        &y.device,
                        &[&s.0[..], &s.1[..]].concat(),
                        [2 * c],
                        DType::F32,
                    ),
                    mean: 0,
                    var: c,
                });
                (Source::Fixed(places), cut)
            }
            Statistics::Batch(norm) => {
                let rows = norm.statistics().all_rows();
                let cut = counted(cut, &rows, norm);
                (Source::Lanes(rows, running), cut)
            }
        };
        let (z, stats) = norm::normalise(&y, &gamma, &beta, source, cut, a.act);
        a.record.keep(vec![stats]);
        z
    }
    fn norm_sums(da: T, y: T, a: NormArgs) -> (T, T, T) {
        let (da, y) = (dense(da), dense(y));
        let cut = Cut::new(&a.lanes, dims4(&y)[0]);
        let stats = &a.record.kept()[0];
        let rows = match &a.statistics {
            Statistics::Batch(norm) => norm.gradient_sums().own_rows(own_table(&y, cut)),
            Statistics::Fixed(_) => Rows {
                table: own_table(&y, cut)(2 * dims4(&y)[3]),
                at: 0,
            },
        };
        let [gamma, beta] = [&a.gamma, &a.beta].map(|s| Target::of(s.as_ref()));
        let (dgamma, dbeta) = norm::gradient_sums(&da, &y, stats, cut, a.act, &rows, gamma, beta);
        (da, dgamma, dbeta)
    }
    fn norm_dy(da: T, y: T, a: NormArgs) -> T {
        let (da, y) = (dense(da), dense(y));
        let cut = Cut::new(&a.lanes, dims4(&y)[0]);
        let stats = &a.record.kept()[0];
        let (rows, cut) = match &a.statistics {
            Statistics::Fixed(_) => (None, cut),
            Statistics::Batch(norm) => {
                let rows = norm.gradient_sums().all_rows();
                let cut = counted(cut, &rows, norm);
                (Some(rows), cut)
            }
        };
        norm::input_gradient(&da, &y, stats, rows, cut, a.act)
    }
    fn pool5(x: T, winners: Record<cpu::pool::Winners>) -> T {
        let (y, w) = pool::pool5(&dense(x));
        winners.keep(vec![w]);
        y
    }
    fn pool5_dx(dy: T, winners: Record<cpu::pool::Winners>) -> T {
        pool::pool5_dx(&dense(dy), &winners.kept()[0])
    }
    fn up2(x: T) -> T {
        shape::up2(&dense(x))
    }
    fn up2_dx(dy: T) -> T {
        shape::up2_dx(&dense(dy))
    }
    fn cat2(a: T, b: T) -> T {
        let parts = [a, b].map(dense);
        shape::concat(&parts.each_ref(), 3)
    }
    fn cat3(a: T, b: T, c: T) -> T {
        let parts = [a, b, c].map(dense);
        shape::concat(&parts.each_ref(), 3)
    }
    fn cat4(a: T, b: T, c: T, d: T) -> T {
        let parts = [a, b, c, d].map(dense);
        shape::concat(&parts.each_ref(), 3)
    }
    fn join2(a: T, b: T, axis: usize) -> T {
        let parts = [a, b].map(dense);
        shape::concat(&parts.each_ref(), axis)
    }
    fn along(x: T, axis: usize, start: usize, len: usize) -> T {
        shape::along(&dense(x), axis, start, len)
    }
    fn within(x: T, axis: usize, start: usize, total: usize) -> T {
        shape::within(&dense(x), axis, start, total)
    }
    fn part(x: T, start: usize, len: usize) -> T {
        shape::along(&dense(x), 3, start, len)
    }
    fn add_to_part(total: T, g: T, start: usize) -> T {
        shape::add_to_part(dense(total), &dense(g), start)
    }
    fn shared(x: T) -> T {
        x
    }
    fn sum(a: T, b: T) -> T {
        shape::sum(&dense(a), &dense(b))
    }
    fn on_slices(_: T, _: T, _: Slices) -> (T, T) {
        unreachable!("what is on a GPU is computed there")
    }
    fn rank_sum(x: T, s: Summed) -> T {
        let own: Vec<f64> = floats(x.clone()).into_iter().map(f64::from).collect();
        let mut sum = vec![0.0; own.len()];
        let all = s.ranks.gather(&s.name, "sum", own.clone());
        for of_rank in all.unwrap_or_else(|| vec![own]) {
            sum.iter_mut().zip(of_rank).for_each(|(s, v)| *s += v);
        }
        let sum: Vec<f32> = sum.into_iter().map(|v| v as f32).collect();
        cast(
            flat::upload(&x.device, &sum, x.meta.shape().clone(), DType::F32),
            x.dtype,
        )
    }
    fn injected(x: T, gradient: T) -> T {
        assert_eq!(
            x.meta.shape(),
            gradient.meta.shape(),
            "a gradient has the shape of what it belongs to"
        );
        flat::upload_f32(&x.device, &[0.0])
    }
    fn attended(qkv: T, a: AttendArgs) -> T {
        attention::attended(&dense(qkv), &a)
    }
    fn attended_dqkv(d: T, qkv: T, a: AttendArgs) -> T {
        attention::attended_dqkv(&dense(d), &dense(qkv), &a)
    }
}
