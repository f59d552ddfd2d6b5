//! Complete IoU (Zheng et al. 2020): overlap, distance of centres, aspect ratio.

use burn::tensor::Tensor;
use std::f64::consts::PI;

const EPS: f64 = 1e-7;

/// A box whose CIoU with many others is wanted, in float64.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    xyxy: [f64; 4],
    area: f64,
    /// Angle of the diagonal.
    angle: f64,
}

fn size(r: [f64; 4]) -> (f64, f64) {
    (r[2] - r[0], r[3] - r[1] + EPS)
}

impl Target {
    #[must_use]
    pub fn new(xyxy: [f64; 4]) -> Self {
        let (w, h) = size(xyxy);
        Self {
            xyxy,
            area: w * h,
            angle: (w / h).atan(),
        }
    }

    /// Intersection over union with `b`: CIoU is never larger.
    #[must_use]
    pub fn iou(&self, b: [f64; 4]) -> f64 {
        let a = self.xyxy;
        let (w, h) = size(b);
        let overlap =
            |lo1: f64, hi1: f64, lo2: f64, hi2: f64| (hi1.min(hi2) - lo1.max(lo2)).max(0.0);
        let inter = overlap(a[0], a[2], b[0], b[2]) * overlap(a[1], a[3], b[1], b[3]);
        inter / (self.area + w * h - inter + EPS)
    }

    /// CIoU with `b`, whose intersection over union is known.
    #[must_use]
    pub fn ciou(&self, b: [f64; 4], iou: f64) -> f64 {
        let a = self.xyxy;
        let (w, h) = size(b);
        let cw = a[2].max(b[2]) - a[0].min(b[0]);
        let ch = a[3].max(b[3]) - a[1].min(b[1]);
        let c2 = cw * cw + ch * ch + EPS;
        let dx = b[0] + b[2] - a[0] - a[2];
        let dy = b[1] + b[3] - a[1] - a[3];
        let rho2 = (dx * dx + dy * dy) / 4.0;
        let v = 4.0 / (PI * PI) * ((w / h).atan() - self.angle).powi(2);
        let alpha = v / (v - iou + (1.0 + EPS));
        iou - (rho2 / c2 + v * alpha)
    }
}

/// CIoU of two boxes `x1 y1 x2 y2`, in float64.
#[must_use]
pub fn ciou(a: [f64; 4], b: [f64; 4]) -> f64 {
    let a = Target::new(a);
    a.ciou(b, a.iou(b))
}

/// CIoU of `[n, 4]` predictions with `[n, 4]` targets, differentiable in the predictions: `[n, 1]`.
/// The weight alpha of the aspect term carries no gradient.
pub fn ciou_tensor(pred: Tensor<2>, target: Tensor<2>) -> Tensor<2> {
    let col = |t: &Tensor<2>, i: usize| t.clone().narrow(1, i, 1);
    let [px1, py1, px2, py2] = std::array::from_fn(|i| col(&pred, i));
    let [tx1, ty1, tx2, ty2] = std::array::from_fn(|i| col(&target, i));
    let (w1, h1) = (px2.clone() - px1.clone(), py2.clone() - py1.clone() + EPS);
    let (w2, h2) = (tx2.clone() - tx1.clone(), ty2.clone() - ty1.clone() + EPS);
    let overlap = |lo1: &Tensor<2>, hi1: &Tensor<2>, lo2: &Tensor<2>, hi2: &Tensor<2>| {
        (hi1.clone().min_pair(hi2.clone()) - lo1.clone().max_pair(lo2.clone())).clamp_min(0.0)
    };
    let inter = overlap(&px1, &px2, &tx1, &tx2) * overlap(&py1, &py2, &ty1, &ty2);
    let union = w1.clone() * h1.clone() + w2.clone() * h2.clone() - inter.clone() + EPS;
    let iou = inter / union;
    let cw = px2.clone().max_pair(tx2.clone()) - px1.clone().min_pair(tx1.clone());
    let ch = py2.clone().max_pair(ty2.clone()) - py1.clone().min_pair(ty1.clone());
    let c2 = cw.square() + ch.square() + EPS;
    let rho2 = ((tx1 + tx2 - px1 - px2).square() + (ty1 + ty2 - py1 - py2).square()) / 4.0;
    let v = ((w2 / h2).atan() - (w1 / h1).atan()).square() * (4.0 / (PI * PI));
    let alpha = (v.clone() / (v.clone() - iou.clone() + (1.0 + EPS))).detach();
    iou - (rho2 / c2 + v * alpha)
}
