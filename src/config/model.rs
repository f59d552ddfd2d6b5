//! Model YAML: families embedded in the binary, or a file of the user's.
//!
//! `yolo26n` and `yolo26n.yaml` name family `yolo26` at scale `n`; a path to a file is read as it stands,
//! its scale being `scale:` in the file or the last letter of its name.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use thiserror::Error;

/// Families that the binary carries.
const EMBEDDED: [(&str, &str); 3] = [
    ("yolo26", include_str!("../../configs/yolo26.yaml")),
    ("yolo11", include_str!("../../configs/yolo11.yaml")),
    ("yolov8", include_str!("../../configs/yolov8.yaml")),
];

/// Why a model could not be resolved.
#[derive(Debug, Error)]
pub enum ModelConfigError {
    /// Neither a file nor an embedded name.
    #[error("unknown model '{given}'; known are {known}, or a path to a model YAML{hint}")]
    Unknown {
        given: String,
        known: String,
        hint: String,
    },
    /// The file could not be read.
    #[error("cannot read model file {path}: {source}")]
    Read {
        path: String,
        source: std::io::Error,
    },
    /// The YAML does not parse.
    #[error("{path}: {reason}")]
    Parse { path: String, reason: String },
    /// The scale is not in the file's table.
    #[error(
        "{path}: scale '{scale}' is not in its table of scales ({known}); set `scale:` or end the file's name with the letter"
    )]
    Scale {
        path: String,
        scale: String,
        known: String,
    },
    /// A layer is inconsistent.
    #[error("{path}: layer {layer}: {reason}")]
    Layer {
        path: String,
        layer: usize,
        reason: String,
    },
}

/// How a scale letter changes depth and width.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// Factor of the repeats above 1.
    pub depth: f64,
    /// Factor of the channels.
    pub width: f64,
    /// Channels are cut to this before they are scaled.
    pub max_channels: usize,
    /// Every c3k2 block gets `c3k: true`.
    #[serde(default)]
    pub c3k: bool,
}

/// The class branch of the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClassBranch {
    /// Two full 3x3 convolutions.
    Full,
    /// Two pairs of depthwise 3x3 and pointwise convolutions.
    Depthwise,
}

/// Kind of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockKind {
    Conv,
    C2f,
    C3k2,
    Sppf,
    C2psa,
    Upsample,
    Concat,
    Detect,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum From {
    One(i64),
    Many(Vec<i64>),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLayer {
    block: BlockKind,
    from: Option<From>,
    #[serde(default)]
    out: usize,
    #[serde(default = "one")]
    repeats: usize,
    #[serde(default = "one")]
    kernel: usize,
    #[serde(default = "one")]
    stride: usize,
    expansion: Option<f64>,
    #[serde(default)]
    c3k: bool,
    #[serde(default)]
    attention: bool,
    shortcut: Option<bool>,
    #[serde(default = "three")]
    pools: usize,
    #[serde(default = "yes")]
    activation: bool,
}

fn one() -> usize {
    1
}
fn three() -> usize {
    3
}
fn yes() -> bool {
    true
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawModel {
    family: String,
    reg_max: usize,
    one_to_one: bool,
    head_class_branch: ClassBranch,
    scales: BTreeMap<String, Scale>,
    scale: Option<String>,
    layers: Vec<RawLayer>,
}

/// A layer after scaling.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerSpec {
    pub block: BlockKind,
    /// Absolute indices of the layers it reads; empty for the first, which reads the image.
    pub from: Vec<usize>,
    /// Output channels (0 where the block decides: upsample, concat, detect).
    pub out: usize,
    pub repeats: usize,
    pub kernel: usize,
    pub stride: usize,
    pub expansion: f64,
    pub c3k: bool,
    pub attention: bool,
    pub shortcut: bool,
    pub pools: usize,
    pub activation: bool,
}

/// A network as the model builder takes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// Family and scale, as in `yolo26n`.
    pub name: String,
    pub reg_max: usize,
    /// A second head that is trained one-to-one on detached features.
    pub one_to_one: bool,
    pub class_branch: ClassBranch,
    /// Width of the class branches, where it is not the one that follows from the number of classes: that of the
    /// weights which training started from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_width: Option<usize>,
    pub layers: Vec<LayerSpec>,
}

impl ModelSpec {
    /// Resolves `--model`: a path to a YAML file, or a name such as `yolo26n`.
    ///
    /// # Errors
    /// [`ModelConfigError`] with the file, the layer and what is allowed.
    pub fn resolve(model: &str) -> Result<Self, ModelConfigError> {
        let path = Path::new(model);
        if path.is_file() {
            let text = std::fs::read_to_string(path).map_err(|source| ModelConfigError::Read {
                path: model.into(),
                source,
            })?;
            let stem = path
                .file_stem()
                .map(|s| s.to_string_lossy().into_owned())
                .unwrap_or_default();
            let letter = stem.chars().last().map(String::from).unwrap_or_default();
            return Self::parse(model, &text, &letter);
        }
        let name = model
            .strip_suffix(".yaml")
            .or(model.strip_suffix(".yml"))
            .unwrap_or(model);
        for (family, text) in EMBEDDED {
            if let Some(scale) = name.strip_prefix(family)
                && ["n", "s", "m", "l", "x"].contains(&scale)
            {
                return Self::parse(&format!("{family}.yaml"), text, scale);
            }
        }
        let names = Self::known();
        let hint = names
            .iter()
            .map(|n| (strsim::damerau_levenshtein(n, name), n))
            .min()
            .filter(|(distance, _)| *distance <= 3)
            .map(|(_, n)| format!("; did you mean {n}?"))
            .unwrap_or_default();
        let known = EMBEDDED
            .map(|(f, _)| format!("{f}{{n,s,m,l,x}}"))
            .join(", ");
        Err(ModelConfigError::Unknown {
            given: model.into(),
            known,
            hint,
        })
    }

    /// All names that the binary carries.
    #[must_use]
    pub fn known() -> Vec<String> {
        EMBEDDED
            .iter()
            .flat_map(|(f, _)| ["n", "s", "m", "l", "x"].map(|s| format!("{f}{s}")))
            .collect()
    }

    fn parse(path: &str, text: &str, letter: &str) -> Result<Self, ModelConfigError> {
        let raw: RawModel = serde_saphyr::from_str(text).map_err(|e| ModelConfigError::Parse {
            path: path.into(),
            reason: one_line(&e.to_string()),
        })?;
        let letter = raw.scale.clone().unwrap_or_else(|| letter.into());
        let Some(&scale) = raw.scales.get(&letter) else {
            let known = raw.scales.keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(ModelConfigError::Scale {
                path: path.into(),
                scale: letter,
                known,
            });
        };
        let fail = |layer: usize, reason: String| ModelConfigError::Layer {
            path: path.into(),
            layer,
            reason,
        };
        if raw.reg_max == 0 || raw.reg_max > 64 {
            return Err(fail(
                0,
                format!("reg_max is {}, allowed is 1..=64", raw.reg_max),
            ));
        }
        let mut layers = Vec::with_capacity(raw.layers.len());
        for (i, l) in raw.layers.iter().enumerate() {
            let from = match &l.from {
                None if i == 0 => vec![],
                None => vec![-1],
                Some(From::One(f)) => vec![*f],
                Some(From::Many(f)) => f.clone(),
            };
            let from = from
                .into_iter()
                .map(|f| {
                    let absolute = if f < 0 { i as i64 + f } else { f };
                    usize::try_from(absolute)
                        .ok()
                        .filter(|&a| a < i)
                        .ok_or_else(|| fail(i, format!("from: {f} does not name an earlier layer")))
                })
                .collect::<Result<Vec<_>, _>>()?;
            let needs_out = !matches!(
                l.block,
                BlockKind::Upsample | BlockKind::Concat | BlockKind::Detect
            );
            if needs_out && l.out == 0 {
                return Err(fail(
                    i,
                    "out: the number of output channels is missing".into(),
                ));
            }
            if !(1..=2).contains(&l.stride) || l.kernel % 2 == 0 || l.kernel > 15 {
                return Err(fail(
                    i,
                    format!(
                        "kernel {} stride {}: allowed are odd kernels up to 15, strides 1 and 2",
                        l.kernel, l.stride
                    ),
                ));
            }
            let several = matches!(l.block, BlockKind::Concat | BlockKind::Detect);
            if !several && from.len() > 1 {
                return Err(fail(
                    i,
                    format!("{:?} reads one layer, {} are given", l.block, from.len()),
                ));
            }
            if several && from.is_empty() {
                return Err(fail(
                    i,
                    format!("{:?} must name the layers it reads", l.block),
                ));
            }
            if (l.block == BlockKind::Detect) != (i + 1 == raw.layers.len()) {
                return Err(fail(
                    i,
                    "detect must be the last layer and the only one of its kind".into(),
                ));
            }
            let out =
                (l.out.min(scale.max_channels) as f64 * scale.width / 8.0).ceil() as usize * 8;
            let repeats = if l.repeats > 1 {
                // ties to even, as in the published networks
                ((l.repeats as f64 * scale.depth).round_ties_even() as usize).max(1)
            } else {
                l.repeats
            };
            layers.push(LayerSpec {
                block: l.block,
                from,
                out: if needs_out { out } else { 0 },
                repeats,
                kernel: l.kernel,
                stride: l.stride,
                expansion: l.expansion.unwrap_or(0.5),
                c3k: l.c3k || (scale.c3k && l.block == BlockKind::C3k2),
                attention: l.attention,
                shortcut: l.shortcut.unwrap_or(l.block == BlockKind::C3k2),
                pools: l.pools,
                activation: l.activation,
            });
        }
        if layers.is_empty() {
            return Err(fail(0, "layers: at least one is needed".into()));
        }
        Ok(Self {
            name: format!("{}{letter}", raw.family),
            reg_max: raw.reg_max,
            one_to_one: raw.one_to_one,
            class_branch: raw.head_class_branch,
            class_width: None,
            layers,
        })
    }
}

fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_embedded_name_resolves_with_and_without_suffix() {
        for name in ModelSpec::known() {
            let a = ModelSpec::resolve(&name).unwrap();
            let b = ModelSpec::resolve(&format!("{name}.yaml")).unwrap();
            assert_eq!(a, b);
            assert_eq!(a.name, name);
        }
    }

    #[test]
    fn unknown_names_get_a_suggestion() {
        let e = ModelSpec::resolve("yolo62n").unwrap_err().to_string();
        assert!(e.contains("did you mean yolo26n?"), "{e}");
        assert_eq!(e.lines().count(), 1);
    }

    #[test]
    fn channels_are_cut_scaled_and_rounded_up_to_eight() {
        let m = ModelSpec::resolve("yolov8m").unwrap();
        assert_eq!(m.layers[0].out, 48);
        assert_eq!(m.layers[7].out, 576);
        let x = ModelSpec::resolve("yolo26x").unwrap();
        assert_eq!(x.layers[9].out, 768);
        assert!(x.layers[2].c3k, "m, l and x use c3k in every c3k2");
    }

    #[test]
    fn bad_layers_are_named() {
        let text = "family: t\nreg_max: 1\none_to_one: false\nhead_class_branch: full\nscales: {n: {depth: 1, width: 1, max_channels: 64}}\nlayers:\n  - {block: conv, out: 8, from: 3}\n";
        let e = ModelSpec::parse("t.yaml", text, "n")
            .unwrap_err()
            .to_string();
        assert!(e.contains("layer 0") && e.contains("from: 3"), "{e}");
        let e = ModelSpec::parse("t.yaml", text, "q")
            .unwrap_err()
            .to_string();
        assert!(e.contains("scale 'q'"), "{e}");
        let e = ModelSpec::parse("t.yaml", &text.replace("reg_max", "regmax"), "n")
            .unwrap_err()
            .to_string();
        assert!(e.contains("regmax") && e.lines().count() == 1, "{e}");
    }
}
