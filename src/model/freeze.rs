//! `--freeze`: layers and parameters that training leaves as they are.

use super::layout::Layout;
use super::network::Network;
use crate::config::nearest;
use std::collections::BTreeSet;
use thiserror::Error;

/// Why a request to freeze cannot be met.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FreezeError {
    /// More layers than there are.
    #[error("--freeze {given}: {model} has {layers} layers, 0 to {}", layers - 1)]
    Layer {
        given: String,
        model: String,
        layers: usize,
    },
    /// A name that no parameter has.
    #[error(
        "--freeze {name}: no parameter of {model} has this name or begins with it (as in 23.cv2 or model.23.cv2){}",
        .suggestion.as_ref().map(|s| format!("; did you mean {s}?")).unwrap_or_default()
    )]
    Name {
        name: String,
        model: String,
        suggestion: Option<String>,
    },
    /// Nothing is left to train.
    #[error("--freeze {given}: nothing of {model} would be left to train")]
    Everything { given: String, model: String },
}

/// What was frozen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frozen {
    /// Tensors and their elements.
    pub tensors: usize,
    pub parameters: usize,
    /// Batch norms that use their running statistics.
    pub norms: usize,
}

/// An item of a request.
enum Item<'a> {
    Layer(usize),
    Name(&'a str),
}

/// The text as layers and names: `N` means the first N layers, `I,J,…` (also `[I]` and `I,`) these layers, everything
/// else names; names and numbers may be mixed in a list.
fn items(text: &str) -> (Vec<Item<'_>>, bool) {
    let trimmed = text.trim();
    let inner = trimmed
        .strip_prefix('[')
        .and_then(|t| t.strip_suffix(']'))
        .unwrap_or(trimmed);
    let first = inner == trimmed && inner.parse::<usize>().is_ok();
    let words = inner.split(',').map(str::trim).filter(|w| !w.is_empty());
    let items = words.map(|w| w.parse().map_or(Item::Name(w), Item::Layer));
    (items.collect(), first)
}

/// Whether `name` is `prefix`, or goes on after it with a dot.
fn begins(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// As a request may name it: without the leading `model.`.
fn short(name: &str) -> &str {
    name.strip_prefix("model.").unwrap_or(name)
}

impl Network {
    /// Freezes what `request` names: `10` is the first ten layers, `0,1,5` are these layers, `23.cv2` or `model.23.cv2`
    /// is what is called so or begins so (up to a dot). A batch norm whose scale and bias are frozen keeps its running
    /// statistics.
    ///
    /// # Errors
    /// [`FreezeError`]; nothing is frozen then.
    pub fn freeze(&mut self, request: &str) -> Result<Frozen, FreezeError> {
        let layers = self.spec.layers.len();
        let model = || self.spec.name.clone();
        let (items, first) = items(request);
        let mut prefixes: Vec<String> = vec![];
        for item in items {
            match item {
                Item::Layer(n) if first && n <= layers => {
                    prefixes.extend((0..n).map(|i| i.to_string()));
                }
                Item::Layer(i) if !first && i < layers => prefixes.push(i.to_string()),
                Item::Layer(i) => {
                    return Err(FreezeError::Layer {
                        given: i.to_string(),
                        model: model(),
                        layers,
                    });
                }
                Item::Name(name) => {
                    let known = |p: &str| begins(short(p), short(name));
                    if !self.layout.params.iter().any(|p| known(&p.name)) {
                        return Err(FreezeError::Name {
                            name: name.into(),
                            model: model(),
                            suggestion: suggestion(&self.layout, name),
                        });
                    }
                    prefixes.push(short(name).into());
                }
            }
        }
        let wanted = |name: &str| prefixes.iter().any(|p| begins(short(name), p));
        let chosen: BTreeSet<String> = self
            .layout
            .params
            .iter()
            .filter(|p| wanted(&p.name))
            .map(|p| p.name.clone())
            .collect();
        let left = |p: &super::layout::ParamInfo| p.trained() && !chosen.contains(&p.name);
        if !self.layout.params.iter().any(left) {
            return Err(FreezeError::Everything {
                given: request.into(),
                model: model(),
            });
        }
        let mut frozen = Frozen {
            tensors: 0,
            parameters: 0,
            norms: 0,
        };
        for p in &mut self.layout.params {
            if p.trained() && chosen.contains(&p.name) {
                p.frozen = true;
                frozen.tensors += 1;
                frozen.parameters += p.len();
            }
        }
        for n in &mut self.layout.norms {
            let part = |what: &str| chosen.contains(&format!("{}.{what}", n.name));
            if part("weight") && part("bias") {
                n.frozen = true;
                frozen.norms += 1;
            }
        }
        Ok(frozen)
    }
}

/// The part of a parameter's name that is most like `name`, spelt like it.
fn suggestion(layout: &Layout, name: &str) -> Option<String> {
    let mut known = BTreeSet::new();
    for p in &layout.params {
        let full = short(&p.name);
        let ends = full.match_indices('.').map(|(i, _)| i);
        known.extend(ends.map(|i| &full[..i]));
        known.insert(full);
    }
    let nearest = nearest(short(name), known)?;
    let prefix = if name.starts_with("model.") {
        "model."
    } else {
        ""
    };
    Some(format!("{prefix}{nearest}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::ModelSpec;

    fn network() -> Network {
        Network::new(ModelSpec::resolve("yolo26n").unwrap(), 3)
    }

    fn frozen(request: &str) -> (Vec<String>, Vec<String>) {
        let mut n = network();
        let f = n.freeze(request).unwrap();
        let params: Vec<_> = n.layout.params.iter().filter(|p| p.frozen).collect();
        assert_eq!(f.tensors, params.len());
        assert_eq!(f.parameters, params.iter().map(|p| p.len()).sum::<usize>());
        let norms: Vec<_> = n.layout.norms.iter().filter(|n| n.frozen).collect();
        assert_eq!(f.norms, norms.len());
        (
            params.iter().map(|p| p.name.clone()).collect(),
            norms.iter().map(|n| n.name.clone()).collect(),
        )
    }

    #[test]
    fn a_number_is_the_first_layers_and_a_list_is_these_layers() {
        let layers = |request: &str| {
            let (params, norms) = frozen(request);
            let of = |names: &[String]| -> BTreeSet<usize> {
                let layer = |n: &String| n.split('.').nth(1).unwrap().parse().unwrap();
                names.iter().map(layer).collect()
            };
            assert_eq!(of(&params), of(&norms), "norms go with their layers");
            of(&params)
        };
        assert_eq!(layers("3"), BTreeSet::from([0, 1, 2]));
        assert_eq!(layers("0"), BTreeSet::new());
        for list in ["0,1,5", "[0, 1, 5]", " 0 , 1,5,", "model.0,1,5"] {
            assert_eq!(layers(list), BTreeSet::from([0, 1, 5]), "{list}");
        }
        for one in ["3,", "[3]", "model.3"] {
            assert_eq!(layers(one), BTreeSet::from([3]), "{one}");
        }
        // all of layer 2, and nothing of layers 20 to 23
        assert!(frozen("2,").0.iter().all(|n| n.starts_with("model.2.")));
    }

    #[test]
    fn names_end_at_dots_and_may_leave_out_the_first_word() {
        let cv2 = frozen("23.cv2");
        assert_eq!(cv2, frozen("model.23.cv2"));
        assert!(cv2.0.iter().all(|n| n.starts_with("model.23.cv2.")));
        assert!(cv2.0.contains(&"model.23.cv2.0.2.bias".into()));
        let (params, norms) = frozen("0.conv,1.bn,2.cv1.bn.weight");
        let want = [
            "model.0.conv.weight",
            "model.1.bn.weight",
            "model.1.bn.bias",
            "model.2.cv1.bn.weight",
        ];
        assert_eq!(params, want);
        assert_eq!(norms, ["model.1.bn"], "scale and bias are both frozen");
    }

    #[test]
    fn what_matches_nothing_is_an_error_and_freezes_nothing() {
        for (request, part) in [
            ("23.cv9", "did you mean 23.cv"),
            ("model.22.cv4", "did you mean model.22.cv"),
            ("24", ""),
            ("23.cv", "23.cv2"),
            ("frobnicate", "no parameter of yolo26n"),
            ("0,99", "yolo26n has 24 layers, 0 to 23"),
            ("25", "yolo26n has 24 layers"),
            ("model", ""),
        ] {
            let mut n = network();
            let e = n.freeze(request).unwrap_err().to_string();
            assert!(e.contains(part) && e.lines().count() == 1, "{e}");
            assert_eq!(n.layout, network().layout, "{request}");
        }
        let e = network().freeze("24").unwrap_err();
        assert!(matches!(e, FreezeError::Everything { .. }), "{e}");
    }
}
