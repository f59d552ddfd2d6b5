//! Functions of the loss that are precise to a few units of float32's last place on every runtime: the shading language
//! of wgpu promises little of `atan`, and `ln(1 + e)` of a small `e` is a matter of its form.

use cubecl::prelude::*;
use std::f32::consts::{FRAC_PI_2, FRAC_PI_4, PI};

/// Added to heights, areas and squared diagonals, as in [`crate::loss::boxes`].
pub(super) const EPS: f32 = 1e-7;
/// 4 / pi^2.
const ANGLE_SCALE: f32 = 0.405_284_73;

/// `1 / (1 + e^-x)`.
#[cube]
pub(super) fn sigmoid(x: f32) -> f32 {
    let e = f32::exp(-f32::abs(x));
    let high = 1.0f32 / (1.0f32 + e);
    select(x < 0.0f32, e * high, high)
}

/// `ln(1 + e^x)`, relative also where it is small; what is not a number stays so.
#[cube]
pub(super) fn softplus(x: f32) -> f32 {
    let size = f32::abs(x);
    let e = f32::exp(-size);
    // ln(1 + e) = 2 artanh(t) with t = e / (2 + e) <= 1/3
    let t = e / (2.0f32 + e);
    let u = t * t;
    let mut p = u * (1.0f32 / 13.0f32) + 1.0f32 / 11.0f32;
    p = p * u + 1.0f32 / 9.0f32;
    p = p * u + 1.0f32 / 7.0f32;
    p = p * u + 1.0f32 / 5.0f32;
    p = p * u + 1.0f32 / 3.0f32;
    // max(x, 0) in a form that keeps what is not a number
    0.5f32 * (x + size) + 2.0f32 * (t + t * u * p)
}

/// Angle of the point `(x, y)`, to about 1e-7 of itself where it is small (the polynomial of Cephes' `atanf`).
#[cube]
pub(super) fn angle(y: f32, x: f32) -> f32 {
    let (ax, ay) = (f32::abs(x), f32::abs(y));
    let small = f32::min(ax, ay);
    let large = f32::max(ax, ay);
    // 0 / 0 is 0 here
    let z = small / f32::max(large, 1e-37f32);
    let far = z > 0.414_213_57f32;
    let z = select(far, (z - 1.0f32) / (z + 1.0f32), z);
    let u = z * z;
    let mut p = u * 8.053_744_5e-2f32 - 1.387_768_6e-1f32;
    p = p * u + 1.997_771_1e-1f32;
    p = p * u - 3.333_295e-1f32;
    let within = select(far, FRAC_PI_4, 0.0f32) + (p * u * z + z);
    let first = select(ay > ax, FRAC_PI_2 - within, within);
    let half = select(x < 0.0f32, PI - first, first);
    select(y < 0.0f32, -half, half)
}

/// `atan(w2 / h2) - atan(w1 / h1)` for `h2 > 0`, without the cancellation of two angles.
#[cube]
fn turn(w1: f32, h1: f32, w2: f32, h2: f32) -> f32 {
    let w = select(h1 < 0.0f32, -w1, w1);
    let h = f32::abs(h1);
    angle(w2 * h - w * h2, h2 * h + w2 * w)
}

/// Corners of two boxes.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Pair {
    pub p0: f32,
    pub p1: f32,
    pub p2: f32,
    pub p3: f32,
    pub t0: f32,
    pub t1: f32,
    pub t2: f32,
    pub t3: f32,
}

/// Intersection over union; `side` and `area` are what is added to heights and to the union.
#[cube]
pub(super) fn iou(b: &Pair, side: f32, area: f32) -> f32 {
    let w = f32::max(f32::min(b.p2, b.t2) - f32::max(b.p0, b.t0), 0.0f32);
    let h = f32::max(f32::min(b.p3, b.t3) - f32::max(b.p1, b.t1), 0.0f32);
    let inter = w * h;
    let p = (b.p2 - b.p0) * (b.p3 - b.p1 + side);
    let t = (b.t2 - b.t0) * (b.t3 - b.t1 + side);
    inter / (p + t - inter + area)
}

/// What [`iou`] lacks to the CIoU: it is `iou - penalty`.
#[cube]
pub(super) fn penalty(b: &Pair, iou: f32, side: f32, area: f32) -> f32 {
    let cw = f32::max(b.p2, b.t2) - f32::min(b.p0, b.t0);
    let ch = f32::max(b.p3, b.t3) - f32::min(b.p1, b.t1);
    let c2 = cw * cw + ch * ch + area;
    let dx = b.t0 + b.t2 - b.p0 - b.p2;
    let dy = b.t1 + b.t3 - b.p1 - b.p3;
    let rho2 = (dx * dx + dy * dy) / 4.0f32;
    let a = turn(
        b.p2 - b.p0,
        b.p3 - b.p1 + side,
        b.t2 - b.t0,
        b.t3 - b.t1 + side,
    );
    let v = ANGLE_SCALE * a * a;
    rho2 / c2 + v * v / (v - iou + (1.0f32 + EPS))
}

/// CIoU of a prediction with its target, and its slope along one side of the prediction (0..4: left, top, right,
/// bottom); the weight of the aspect term is a constant.
#[cube]
pub(super) fn ciou_slope(b: &Pair, side: u32) -> (f32, f32) {
    let w1 = b.p2 - b.p0;
    let h1 = b.p3 - b.p1 + EPS;
    let w2 = b.t2 - b.t0;
    let h2 = b.t3 - b.t1 + EPS;
    let shared_w = f32::min(b.p2, b.t2) - f32::max(b.p0, b.t0);
    let shared_h = f32::min(b.p3, b.t3) - f32::max(b.p1, b.t1);
    let iw = f32::max(shared_w, 0.0f32);
    let ih = f32::max(shared_h, 0.0f32);
    let inter = iw * ih;
    let union = w1 * h1 + w2 * h2 - inter + EPS;
    let iou = inter / union;
    let cw = f32::max(b.p2, b.t2) - f32::min(b.p0, b.t0);
    let ch = f32::max(b.p3, b.t3) - f32::min(b.p1, b.t1);
    let c2 = cw * cw + ch * ch + EPS;
    let dx = b.t0 + b.t2 - b.p0 - b.p2;
    let dy = b.t1 + b.t3 - b.p1 - b.p3;
    let rho2 = (dx * dx + dy * dy) / 4.0f32;
    let a = turn(w1, h1, w2, h2);
    let v = ANGLE_SCALE * a * a;
    let alpha = v / (v - iou + (1.0f32 + EPS));
    let diagonal = w1 * w1 + h1 * h1;

    let vertical = side % 2 == 1;
    let far = side >= 2;
    let sign = select(far, 1.0f32, -1.0f32);
    let p = select(vertical, select(far, b.p3, b.p1), select(far, b.p2, b.p0));
    let t = select(vertical, select(far, b.t3, b.t1), select(far, b.t2, b.t0));
    let other_shared = select(vertical, iw, ih);
    let other_size = select(vertical, w1, h1);
    let shared = select(vertical, shared_h, shared_w);
    let off = select(vertical, dy, dx);
    // does this side bound the intersection, the enclosing box?
    let inner = shared > 0.0f32 && select(far, p < t, p > t);
    let outer = select(far, p > t, p < t);
    let d_inter = select(inner, sign * other_shared, 0.0f32);
    let d_union = sign * other_size - d_inter;
    let d_iou = (d_inter - iou * d_union) / union;
    let d_c2 = select(outer, 2.0f32 * sign * select(vertical, ch, cw), 0.0f32);
    let d_rho2 = -off / 2.0f32;
    let d_angle = sign * select(vertical, -w1, h1) / diagonal;
    let d_v = -2.0f32 * ANGLE_SCALE * a * d_angle;
    let ciou = iou - (rho2 / c2 + v * alpha);
    let slope = d_iou - (d_rho2 - rho2 / c2 * d_c2) / c2 - alpha * d_v;
    (ciou, slope)
}
