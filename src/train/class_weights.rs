//! `--class-weights`: factors of the classification loss by class.

use super::error::TrainError;
use crate::config::{Settings, nearest};
use crate::data::Split;
use crate::report::Console;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// The word that computes them from the training images.
const BALANCED: &str = "balanced";
/// Classes that are printed.
const LISTED: usize = 20;
/// Largest factor of a file: beyond it is a slip of the finger.
const LARGEST: f64 = 1000.0;

/// What is wrong with `--class-weights`.
#[derive(Debug, Error)]
pub enum ClassWeightsError {
    #[error(
        "cannot read the class weights {}: {source}; --class-weights is 'balanced' or a file{}",
        path.display(),
        suggestion.map(|s| format!("; did you mean {s}?")).unwrap_or_default()
    )]
    Read {
        path: PathBuf,
        source: std::io::Error,
        suggestion: Option<&'static str>,
    },
    #[error(
        "{}: {reason}; a map from names of classes to weights (RBC: 0.5), or a list of a weight for each class, is expected",
        path.display()
    )]
    Format { path: PathBuf, reason: String },
    #[error(
        "{}: no class is called {name}; the classes are {known}{}",
        path.display(),
        suggestion.as_ref().map(|s| format!("; did you mean {s}?")).unwrap_or_default()
    )]
    Name {
        path: PathBuf,
        name: String,
        known: String,
        suggestion: Option<String>,
    },
    #[error(
        "{}: the weight of {name} is {value}, allowed is a number above 0, at most {LARGEST}",
        path.display()
    )]
    Value {
        path: PathBuf,
        name: String,
        value: f64,
    },
    #[error(
        "{}: {found} weights for {} classes: {known}",
        path.display(),
        expected
    )]
    Count {
        path: PathBuf,
        found: usize,
        expected: usize,
        known: String,
    },
}

/// The weights of `--class-weights` for the classes of `train`, printed; `None` without the option.
///
/// # Errors
/// [`TrainError::ClassWeights`].
pub(super) fn class_weights(
    settings: &Settings,
    train: &Split,
    console: &Console,
) -> Result<Option<Arc<[f64]>>, TrainError> {
    let Some(request) = &settings.class_weights else {
        return Ok(None);
    };
    let weights = if request == BALANCED {
        let mut counts = vec![0; train.names.len()];
        for label in train.images.iter().flat_map(|i| &i.labels) {
            counts[label.class] += 1;
        }
        balanced(&counts)
    } else {
        read(Path::new(request), &train.names)?
    };
    console.note(line(request, &train.names, &weights));
    Ok(Some(weights.into()))
}

fn line(request: &str, names: &[String], weights: &[f64]) -> String {
    let shown: Vec<String> = names
        .iter()
        .zip(weights)
        .take(LISTED)
        .map(|(n, w)| format!("{n} {w:.3}"))
        .collect();
    let more = match names.len().saturating_sub(LISTED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("class weights ({request}): {}{more}", shown.join(", "))
}

/// `w = k / sqrt(instances)`, with `k` such that the mean over instances is 1: rare classes weigh more, the loss of all
/// positives keeps its size. The square root (as in Mahajan et al. 2018) because the inverse itself would let a class of
/// few instances, whose background terms are weighed too, outweigh all others. Classes without instances get 1.
fn balanced(counts: &[usize]) -> Vec<f64> {
    let instances: usize = counts.iter().sum();
    // sum of n * k / sqrt(n) = instances
    let roots: f64 = counts.iter().map(|&n| (n as f64).sqrt()).sum();
    let weight = |&n: &usize| match n {
        0 => 1.0,
        n => instances as f64 / roots / (n as f64).sqrt(),
    };
    counts.iter().map(weight).collect()
}

/// What a file holds.
enum Content {
    List(Vec<f64>),
    /// In the order of the file.
    Map(Vec<(String, f64)>),
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Content;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a map or a list")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Content, A::Error> {
                let mut weights = vec![];
                while let Some(weight) = list.next_element()? {
                    weights.push(weight);
                }
                Ok(Content::List(weights))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Content, A::Error> {
                let mut pairs = vec![];
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Content::Map(pairs))
            }
        }
        d.deserialize_any(Either)
    }
}

fn read(path: &Path, names: &[String]) -> Result<Vec<f64>, ClassWeightsError> {
    let text = std::fs::read_to_string(path).map_err(|source| ClassWeightsError::Read {
        path: path.into(),
        source,
        suggestion: nearest(&path.to_string_lossy(), [BALANCED]).map(|_| BALANCED),
    })?;
    parse(path, &text, names)
}

/// YAML, of which JSON is a part.
fn parse(path: &Path, text: &str, names: &[String]) -> Result<Vec<f64>, ClassWeightsError> {
    let content: Content = serde_saphyr::from_str(text).map_err(|e| ClassWeightsError::Format {
        path: path.into(),
        reason: e.to_string().lines().next().unwrap_or_default().to_owned(),
    })?;
    let known = || {
        let mut shown = names.iter().take(LISTED).cloned().collect::<Vec<_>>();
        if names.len() > LISTED {
            shown.push("…".into());
        }
        shown.join(", ")
    };
    let mut weights = vec![1.0; names.len()];
    match content {
        Content::List(list) if list.len() == names.len() => weights = list,
        Content::List(list) => {
            return Err(ClassWeightsError::Count {
                path: path.into(),
                found: list.len(),
                expected: names.len(),
                known: known(),
            });
        }
        Content::Map(pairs) => {
            for (name, weight) in pairs {
                let Some(class) = names.iter().position(|n| *n == name) else {
                    let near = nearest(&name, names.iter().map(String::as_str));
                    return Err(ClassWeightsError::Name {
                        path: path.into(),
                        suggestion: near.map(String::from),
                        known: known(),
                        name,
                    });
                };
                weights[class] = weight;
            }
        }
    }
    match names
        .iter()
        .zip(&weights)
        .find(|(_, w)| !(**w > 0.0 && **w <= LARGEST))
    {
        Some((name, &value)) => Err(ClassWeightsError::Value {
            path: path.into(),
            name: name.clone(),
            value,
        }),
        None => Ok(weights),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        text.split(' ').map(String::from).collect()
    }

    #[test]
    fn balanced_weights_fall_with_the_root_of_the_instances_and_have_mean_one_over_them() {
        let counts = [400, 100, 0, 25];
        let w = balanced(&counts);
        assert!((w[1] / w[0] - 2.0).abs() < 1e-12 && (w[3] / w[0] - 4.0).abs() < 1e-12);
        assert_eq!(w[2], 1.0);
        let mean: f64 = counts.iter().zip(&w).map(|(&n, w)| n as f64 * w).sum();
        assert!((mean / 525.0 - 1.0).abs() < 1e-12);
        assert!(balanced(&[7, 7]).iter().all(|w| (w - 1.0).abs() < 1e-12));
        assert_eq!(balanced(&[0, 0]), [1.0, 1.0]);
    }

    #[test]
    fn a_file_is_a_map_or_a_list_in_yaml_or_json() {
        let n = names("RBC WBC 3");
        let read = |text: &str| parse(Path::new("w.yaml"), text, &n).unwrap();
        assert_eq!(read("WBC: 2\nRBC: 0.5\n"), [0.5, 2.0, 1.0]);
        assert_eq!(read("{\"WBC\": 2.5, \"3\": 4}"), [1.0, 2.5, 4.0]);
        assert_eq!(read("3: 4"), [1.0, 1.0, 4.0]);
        assert_eq!(read("[1, 2, 3.5]"), [1.0, 2.0, 3.5]);
        assert_eq!(read("- 1\n- 2\n- 3\n"), [1.0, 2.0, 3.0]);
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line() {
        let n = names("RBC WBC Platelets");
        for (text, part) in [
            ("Platelet: 2", "did you mean Platelets?"),
            (
                "xyz: 2",
                "no class is called xyz; the classes are RBC, WBC, Platelets",
            ),
            ("[1, 2]", "2 weights for 3 classes"),
            ("RBC: 0", "the weight of RBC is 0"),
            ("RBC: -1", "above 0"),
            ("RBC: .nan", "w.yaml: "),
            ("RBC: .inf", "w.yaml: "),
            ("RBC: much", "a map from names of classes"),
            ("balanced", "a map from names of classes"),
            ("RBC: [1]", "w.yaml: "),
            ("RBC: 1\n  x: 2", "w.yaml: "),
            ("", "w.yaml: "),
        ] {
            let e = parse(Path::new("w.yaml"), text, &n)
                .unwrap_err()
                .to_string();
            assert!(e.contains(part) && e.lines().count() == 1, "{text:?}: {e}");
        }
        let e = read(Path::new("/nowhere/balancd"), &n).unwrap_err();
        assert!(e.to_string().contains("'balanced' or a file"), "{e}");
        let e = read(Path::new("balancd"), &n).unwrap_err().to_string();
        assert!(e.ends_with("did you mean balanced?"), "{e}");
    }
}
