//! Batch norm with the unbiased running variance, eps 1e-3.

use burn::tensor::Tensor;

/// Added to the variance (Ioffe and Szegedy 2015; the family's value).
pub const NORM_EPS: f64 = 1e-3;

/// Which statistics normalise.
pub enum Norm {
    /// Those of the batch, which are returned.
    Batch,
    /// Given ones (running statistics), `[channels]` each; constants of the graph.
    Fixed { mean: Tensor<1>, var: Tensor<1> },
}

/// Statistics of a batch, outside the graph.
#[derive(Debug, Clone)]
pub struct BatchStats {
    /// Elements per channel.
    pub count: usize,
    /// `[channels]`
    pub mean: Tensor<1>,
    /// Biased variance, `[channels]`.
    pub var: Tensor<1>,
}

/// `(x - mean) / sqrt(var + eps) * gamma + beta` over the last dimension of `[n, h, w, c]`.
///
/// The variance comes from centred values (two passes), which is stable for means far from zero.
pub fn batch_norm(
    x: Tensor<4>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    norm: Norm,
) -> (Tensor<4>, Option<BatchStats>) {
    let [n, h, w, c] = x.dims();
    let rows = n * h * w;
    let row = |t: Tensor<1>| t.reshape([1, c]);
    let x = x.reshape([rows, c]);
    let (centred, var, stats) = match norm {
        Norm::Batch => {
            let mean = x.clone().mean_dim(0);
            let d = x - mean.clone();
            let var = d.clone().square().mean_dim(0);
            let flat = |t: &Tensor<2>| t.clone().inner().reshape([c]);
            let stats = BatchStats {
                count: rows,
                mean: flat(&mean),
                var: flat(&var),
            };
            (d, var, Some(stats))
        }
        Norm::Fixed { mean, var } => (x - row(mean), row(var), None),
    };
    let scale = row(gamma) / (var + NORM_EPS).sqrt();
    ((centred * scale + row(beta)).reshape([n, h, w, c]), stats)
}
