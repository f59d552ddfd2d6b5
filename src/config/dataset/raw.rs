//! The dataset YAML as serde sees it: every shape that a key may have, unknown keys kept by name.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::download::RawDownload;

#[derive(Debug, Default)]
pub(super) struct RawDataset {
    pub path: Option<String>,
    pub train: Option<RawSplit>,
    pub val: Option<RawSplit>,
    pub validation: Option<RawSplit>,
    pub test: Option<RawSplit>,
    pub names: Option<RawNames>,
    pub nc: Option<usize>,
    pub download: Option<RawDownload>,
    pub generate: Option<String>,
    pub unknown: Vec<String>,
}

#[derive(Debug)]
pub(super) enum RawSplit {
    Paths(Vec<String>),
    Pair { images: String, annotations: String },
}

#[derive(Debug)]
pub(super) enum RawNames {
    List(Vec<String>),
    /// Class number and name, in the file's order.
    Map(Vec<(u64, String)>),
}

impl<'de> Deserialize<'de> for RawDataset {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DatasetVisitor;
        impl<'de> Visitor<'de> for DatasetVisitor {
            type Value = RawDataset;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("the keys of a data set (path, train, val, names, …)")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawDataset, A::Error> {
                let mut raw = RawDataset::default();
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "path" => raw.path = map.next_value()?,
                        "train" => raw.train = map.next_value::<MaybeSplit>()?.0,
                        "val" => raw.val = map.next_value::<MaybeSplit>()?.0,
                        "validation" => raw.validation = map.next_value::<MaybeSplit>()?.0,
                        "test" => raw.test = map.next_value::<MaybeSplit>()?.0,
                        "names" => raw.names = map.next_value()?,
                        "nc" => raw.nc = map.next_value()?,
                        "download" => raw.download = map.next_value()?,
                        "generate" => raw.generate = map.next_value()?,
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                            raw.unknown.push(key);
                        }
                    }
                }
                Ok(raw)
            }
        }
        deserializer.deserialize_map(DatasetVisitor)
    }
}

/// A split's value; null and "" mean that the split is not given.
struct MaybeSplit(Option<RawSplit>);

impl<'de> Deserialize<'de> for MaybeSplit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SplitVisitor;
        impl<'de> Visitor<'de> for SplitVisitor {
            type Value = MaybeSplit;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a folder, a .txt list, a list of those, a COCO .json, or {images: DIR, annotations: FILE}")
            }

            fn visit_unit<E: Error>(self) -> Result<MaybeSplit, E> {
                Ok(MaybeSplit(None))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<MaybeSplit, E> {
                let text = text.trim();
                Ok(MaybeSplit(
                    (!text.is_empty()).then(|| RawSplit::Paths(vec![text.to_owned()])),
                ))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<MaybeSplit, A::Error> {
                let mut paths = Vec::new();
                while let Some(path) = seq.next_element::<String>()? {
                    paths.push(path);
                }
                Ok(MaybeSplit(
                    (!paths.is_empty()).then_some(RawSplit::Paths(paths)),
                ))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<MaybeSplit, A::Error> {
                let mut images = None;
                let mut annotations = None;
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "images" => images = Some(map.next_value::<String>()?),
                        "annotations" => annotations = Some(map.next_value::<String>()?),
                        other => {
                            return Err(A::Error::custom(format!(
                                "unknown key `{other}` in a split: it takes images and annotations"
                            )));
                        }
                    }
                }
                match (images, annotations) {
                    (Some(images), Some(annotations)) => Ok(MaybeSplit(Some(RawSplit::Pair {
                        images,
                        annotations,
                    }))),
                    _ => Err(A::Error::custom(
                        "a split given as a map needs both images: DIR and annotations: FILE",
                    )),
                }
            }
        }
        deserializer.deserialize_any(SplitVisitor)
    }
}

impl<'de> Deserialize<'de> for RawNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NamesVisitor;
        impl<'de> Visitor<'de> for NamesVisitor {
            type Value = RawNames;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a list of class names, or a map from class number to name")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<RawNames, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = seq.next_element::<String>()? {
                    names.push(name);
                }
                Ok(RawNames::List(names))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawNames, A::Error> {
                let mut pairs = Vec::new();
                while let Some(key) = map.next_key::<String>()? {
                    let class = key.trim().parse::<u64>().map_err(|_| {
                        A::Error::custom(format!(
                            "`{key}` in names is not a class number (0, 1, 2, …)"
                        ))
                    })?;
                    pairs.push((class, map.next_value::<String>()?));
                }
                Ok(RawNames::Map(pairs))
            }
        }
        deserializer.deserialize_any(NamesVisitor)
    }
}
