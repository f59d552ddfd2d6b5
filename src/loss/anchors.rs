//! Anchor points of all levels, and decoding of distances to boxes.

/// Cell centres of all levels, in the order of the head's outputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Anchors {
    /// Centres in pixels.
    pub xy: Vec<[f64; 2]>,
    /// Stride of each anchor's level in pixels.
    pub stride: Vec<f64>,
    /// (first anchor, rows, columns, stride) of each level.
    pub levels: Vec<Level>,
    /// Image width and height in pixels.
    pub size: [f64; 2],
}

/// One level of the head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    pub first: usize,
    pub rows: usize,
    pub cols: usize,
    pub stride: usize,
}

impl Anchors {
    /// Anchors of an image of `height` x `width` pixels, multiples of every stride.
    #[must_use]
    pub fn new(height: usize, width: usize, strides: &[usize]) -> Self {
        let mut a = Self {
            xy: vec![],
            stride: vec![],
            levels: vec![],
            size: [width as f64, height as f64],
        };
        for &stride in strides {
            let (rows, cols) = (height / stride, width / stride);
            a.levels.push(Level {
                first: a.xy.len(),
                rows,
                cols,
                stride,
            });
            let s = stride as f64;
            for y in 0..rows {
                for x in 0..cols {
                    a.xy.push([(x as f64 + 0.5) * s, (y as f64 + 0.5) * s]);
                    a.stride.push(s);
                }
            }
        }
        a
    }

    /// Number of anchors of an image.
    #[must_use]
    pub fn len(&self) -> usize {
        self.xy.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.xy.is_empty()
    }

    /// Box `x1 y1 x2 y2` in pixels for distances left, top, right, bottom in stride units.
    #[must_use]
    pub fn to_box(&self, anchor: usize, ltrb: [f64; 4]) -> [f64; 4] {
        let ([x, y], s) = (self.xy[anchor], self.stride[anchor]);
        [
            x - ltrb[0] * s,
            y - ltrb[1] * s,
            x + ltrb[2] * s,
            y + ltrb[3] * s,
        ]
    }
}

/// Distances of an anchor from its raw output: `raw` is `4 * reg_max` long.
///
/// For `reg_max` 1 the output is the distance; otherwise it is the mean of a softmax over the bins
/// 0 .. reg_max - 1 (Li et al. 2020, Generalized Focal Loss).
#[must_use]
pub fn distances(raw: impl Fn(usize) -> f64, reg_max: usize) -> [f64; 4] {
    std::array::from_fn(|side| {
        if reg_max == 1 {
            return raw(side);
        }
        let logits = (0..reg_max).map(|b| raw(side * reg_max + b));
        let max = logits.clone().fold(f64::NEG_INFINITY, f64::max);
        let (mut sum, mut mean) = (0.0, 0.0);
        for (b, l) in logits.enumerate() {
            let e = (l - max).exp();
            sum += e;
            mean += e * b as f64;
        }
        mean / sum
    })
}
