/// Sizes of a convolution with padding `k / 2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConvShape {
    /// Images.
    pub n: usize,
    /// Rows of the input.
    pub h: usize,
    /// Columns of the input.
    pub w: usize,
    /// Channels of the input.
    pub ci: usize,
    /// Channels of the output.
    pub co: usize,
    /// Side of the filter, odd.
    pub k: usize,
    pub stride: usize,
    /// Divides `ci` and `co`.
    pub groups: usize,
}

impl ConvShape {
    /// Rows of the output.
    pub fn out_h(&self) -> usize {
        self.h.div_ceil(self.stride)
    }

    /// Columns of the output.
    pub fn out_w(&self) -> usize {
        self.w.div_ceil(self.stride)
    }

    /// Numbers in `x`.
    pub fn x_len(&self) -> usize {
        self.n * self.h * self.w * self.ci
    }

    /// Numbers in `y`.
    pub fn y_len(&self) -> usize {
        self.n * self.out_h() * self.out_w() * self.co
    }

    /// Numbers in the weights.
    pub fn w_len(&self) -> usize {
        self.k * self.k * (self.ci / self.groups) * self.co
    }

    /// Floating-point operations of one pass (forward, or one of the gradients), the padding's counted in.
    pub fn flops(&self) -> f64 {
        2.0 * (self.n * self.out_h() * self.out_w()) as f64 * self.w_len() as f64
    }

    /// One filter per channel.
    pub(super) fn depthwise(&self) -> bool {
        self.groups > 1 && self.groups == self.ci && self.groups == self.co
    }

    /// The same for other images.
    pub(super) fn image(&self) -> ConvShape {
        ConvShape { n: 1, ..*self }
    }

    pub(super) fn check(&self, x: &[f32], w: &[f32], y: &[f32]) {
        assert!(
            self.k % 2 == 1 && self.stride > 0 && self.groups > 0,
            "no convolution: {self:?}"
        );
        assert!(
            self.ci.is_multiple_of(self.groups) && self.co.is_multiple_of(self.groups),
            "groups do not divide the channels: {self:?}"
        );
        assert_eq!(x.len(), self.x_len(), "length of x for {self:?}");
        assert_eq!(w.len(), self.w_len(), "length of w for {self:?}");
        assert_eq!(y.len(), self.y_len(), "length of y for {self:?}");
    }
}
