//! Weights in safetensors files, under the names and shapes of published checkpoints.
//!
//! A file holds float32 tensors `[out, in/groups, k, k]`, the running statistics, and one metadata key with sorted
//! JSON. It has no dates and no paths: equal runs give equal files.

use super::init::State;
use super::layout::{Layout, ParamInfo};
use crate::config::model::ModelSpec;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use thiserror::Error;

/// The metadata key.
pub const METADATA_KEY: &str = "yolo-train";
/// Licence entry of weights trained from scratch.
pub const OWN_LICENCE: &str =
    "trained from scratch; the weights are yours, the data set's terms apply";

/// Why weights could not be read.
#[derive(Debug, Error)]
pub enum WeightsError {
    /// Missing or unreadable file.
    #[error("cannot read weights {path}: {source}")]
    Read {
        path: String,
        source: std::io::Error,
    },
    /// Not a safetensors file, or a damaged one.
    #[error("{path} is not a complete safetensors file: {reason}")]
    Format { path: String, reason: String },
    /// No metadata of ours.
    #[error(
        "{path} holds no '{METADATA_KEY}' metadata: it was not written by this program (it names the model and the classes)"
    )]
    NoMetadata { path: String },
    /// A tensor is missing.
    #[error(
        "{path}: tensor {name} is missing; the file does not fit model {model} with {classes} classes"
    )]
    Missing {
        path: String,
        name: String,
        model: String,
        classes: usize,
    },
    /// A tensor has another shape.
    #[error("{path}: tensor {name} is {found:?}, expected {expected:?}")]
    Shape {
        path: String,
        name: String,
        found: Vec<usize>,
        expected: Vec<usize>,
    },
    /// Nothing to start from.
    #[error(
        "{path}: no tensor fits {model}; {found} tensors are there, as {example}, and {model} has such as {expected}"
    )]
    NothingFits {
        path: String,
        model: String,
        found: usize,
        example: String,
        expected: String,
    },
    /// A tensor is not float32.
    #[error("{path}: tensor {name} is {found}, expected F32")]
    Type {
        path: String,
        name: String,
        found: String,
    },
}

/// What a weights file says of itself. Fields are in alphabetical order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metadata {
    /// Original category id of each class.
    pub category_ids: Vec<u64>,
    /// Image size of training.
    pub imgsz: usize,
    pub licence: String,
    pub model: String,
    pub names: Vec<String>,
    pub spec: ModelSpec,
    pub version: String,
}

/// `[k, k, in, out]` -> `[out, in, k, k]`; other shapes are unchanged.
fn to_file(info: &ParamInfo, values: &[f32]) -> (Vec<usize>, Vec<f32>) {
    let [kh, kw, ci, co] = *info.shape.as_slice() else {
        return (info.shape.clone(), values.to_vec());
    };
    let mut out = Vec::with_capacity(values.len());
    for o in 0..co {
        for i in 0..ci {
            for k in 0..kh * kw {
                out.push(values[(k * ci + i) * co + o]);
            }
        }
    }
    (file_shape(info), out)
}

pub(super) fn file_shape(info: &ParamInfo) -> Vec<usize> {
    match *info.shape.as_slice() {
        // a constant over bins is stored as a 1x1 convolution over them
        [kh, kw, ci, co] => vec![co, ci, kh, kw],
        _ => info.shape.clone(),
    }
}

pub(super) fn from_file(info: &ParamInfo, file: &[f32], into: &mut [f32]) {
    if let [kh, kw, ci, co] = *info.shape.as_slice() {
        let mut values = file.iter();
        for o in 0..co {
            for i in 0..ci {
                for k in 0..kh * kw {
                    into[(k * ci + i) * co + o] = *values.next().expect("shapes were compared");
                }
            }
        }
    } else {
        into.copy_from_slice(file);
    }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The same JSON with the keys of every object in alphabetical order.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let by_key: BTreeMap<String, Value> = map.into_iter().collect();
            by_key
                .into_iter()
                .map(|(k, v)| (k, sorted(v)))
                .collect::<serde_json::Map<_, _>>()
                .into()
        }
        Value::Array(items) => items.into_iter().map(sorted).collect::<Vec<_>>().into(),
        other => other,
    }
}

/// The bytes of a weights file.
///
/// # Errors
/// Only if the serializer refuses, which valid layouts never cause.
pub fn to_bytes(
    layout: &Layout,
    state: &State,
    metadata: &Metadata,
) -> Result<Vec<u8>, safetensors::SafeTensorError> {
    let mut entries: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> = BTreeMap::new();
    for p in &layout.params {
        let (shape, values) = to_file(p, &state.params[p.range()]);
        entries.insert(p.name.clone(), (Dtype::F32, shape, bytes(&values)));
    }
    for n in &layout.norms {
        for (what, range) in [("running_mean", n.mean()), ("running_var", n.var())] {
            let values = &state.buffers[range];
            entries.insert(
                format!("{}.{what}", n.name),
                (Dtype::F32, vec![n.channels], bytes(values)),
            );
        }
        let tracked = (state.batches_tracked as i64).to_le_bytes().to_vec();
        entries.insert(
            format!("{}.num_batches_tracked", n.name),
            (Dtype::I64, vec![], tracked),
        );
    }
    let views = entries
        .iter()
        .map(|(name, (dtype, shape, data))| {
            Ok((name, TensorView::new(*dtype, shape.clone(), data)?))
        })
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    let json = sorted(serde_json::to_value(metadata).expect("plain data serializes")).to_string();
    safetensors::serialize(
        views,
        Some(HashMap::from([(METADATA_KEY.to_string(), json)])),
    )
}

/// A weights file in memory.
pub struct WeightsFile {
    pub(super) path: String,
    bytes: Vec<u8>,
}

impl WeightsFile {
    /// Reads a file whole.
    ///
    /// # Errors
    /// [`WeightsError::Read`], [`WeightsError::Format`].
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let name = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|source| WeightsError::Read {
            path: name.clone(),
            source,
        })?;
        let file = Self { path: name, bytes };
        file.tensors()?;
        Ok(file)
    }

    pub(super) fn tensors(&self) -> Result<SafeTensors<'_>, WeightsError> {
        SafeTensors::deserialize(&self.bytes).map_err(|e| WeightsError::Format {
            path: self.path.clone(),
            reason: e.to_string(),
        })
    }

    /// What the file says of itself.
    ///
    /// # Errors
    /// [`WeightsError::NoMetadata`] for files of other programs.
    pub fn metadata(&self) -> Result<Metadata, WeightsError> {
        let json = self
            .entry(METADATA_KEY)?
            .ok_or_else(|| WeightsError::NoMetadata {
                path: self.path.clone(),
            })?;
        serde_json::from_str(&json).map_err(|e| WeightsError::Format {
            path: self.path.clone(),
            reason: format!("its metadata: {e}"),
        })
    }

    /// An entry of the file's metadata, ours or another program's.
    pub(super) fn entry(&self, key: &str) -> Result<Option<String>, WeightsError> {
        let read = SafeTensors::read_metadata(&self.bytes);
        let (_, header) = read.map_err(|e| WeightsError::Format {
            path: self.path.clone(),
            reason: e.to_string(),
        })?;
        let entries = header.metadata().as_ref();
        Ok(entries.and_then(|m| m.get(key).cloned()))
    }

    /// All values for a layout; every tensor must be there in its shape.
    ///
    /// # Errors
    /// [`WeightsError`] naming the tensor.
    pub fn load(
        &self,
        layout: &Layout,
        model: &str,
        classes: usize,
    ) -> Result<State, WeightsError> {
        let tensors = self.tensors()?;
        let read = |name: &str, expected: &[usize]| -> Result<Vec<f32>, WeightsError> {
            let path = || self.path.clone();
            let view = tensors.tensor(name).map_err(|_| WeightsError::Missing {
                path: path(),
                name: name.into(),
                model: model.into(),
                classes,
            })?;
            if view.dtype() != Dtype::F32 {
                return Err(WeightsError::Type {
                    path: path(),
                    name: name.into(),
                    found: format!("{:?}", view.dtype()),
                });
            }
            if view.shape() != expected {
                let (found, expected) = (view.shape().to_vec(), expected.to_vec());
                return Err(WeightsError::Shape {
                    path: path(),
                    name: name.into(),
                    found,
                    expected,
                });
            }
            Ok(view
                .data()
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect())
        };
        let mut state = State {
            params: vec![0.0; layout.param_len],
            buffers: vec![0.0; layout.buffer_len],
            batches_tracked: 0,
        };
        for p in &layout.params {
            let values = read(&p.name, &file_shape(p))?;
            from_file(p, &values, &mut state.params[p.range()]);
        }
        for n in &layout.norms {
            for (what, range) in [("running_mean", n.mean()), ("running_var", n.var())] {
                state.buffers[range]
                    .copy_from_slice(&read(&format!("{}.{what}", n.name), &[n.channels])?);
            }
            if let Ok(t) = tensors.tensor(&format!("{}.num_batches_tracked", n.name))
                && let Ok(b) = <[u8; 8]>::try_from(t.data())
            {
                state.batches_tracked = u64::try_from(i64::from_le_bytes(b)).unwrap_or(0);
            }
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Network, init};

    fn file(name: &str) -> (Network, State, Metadata, Vec<u8>) {
        let network = Network::new(ModelSpec::resolve(name).unwrap(), 2);
        let mut state = init::init(&network, 5);
        state.batches_tracked = 17;
        let metadata = Metadata {
            category_ids: vec![7, 90],
            imgsz: 320,
            licence: OWN_LICENCE.into(),
            model: name.into(),
            names: vec!["cat \"a\"".into(), "Hünd".into()],
            spec: network.spec.clone(),
            version: "1".into(),
        };
        let bytes = to_bytes(&network.layout, &state, &metadata).unwrap();
        (network, state, metadata, bytes)
    }

    #[test]
    fn weights_come_back_with_the_same_bits_and_equal_states_give_equal_files() {
        for name in ["yolo26n", "yolov8n"] {
            let (network, state, metadata, bytes) = file(name);
            assert_eq!(bytes, file(name).3);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("w.safetensors");
            std::fs::write(&path, &bytes).unwrap();
            let read = WeightsFile::open(&path).unwrap();
            assert_eq!(read.metadata().unwrap(), metadata);
            assert_eq!(read.load(&network.layout, name, 2).unwrap(), state);
        }
    }

    #[test]
    fn the_file_has_one_metadata_key_with_sorted_json_and_the_shapes_of_checkpoints() {
        let (.., bytes) = file("yolo26n");
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let keys = header.metadata().as_ref().unwrap();
        assert_eq!(keys.len(), 1);
        let json = &keys[METADATA_KEY];
        let value: Value = serde_json::from_str(json).unwrap();
        assert_eq!(sorted(value).to_string(), *json);
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(
            tensors.tensor("model.0.conv.weight").unwrap().shape(),
            [16, 3, 3, 3]
        );
        assert_eq!(
            tensors
                .tensor("model.10.m.0.attn.pe.conv.weight")
                .unwrap()
                .shape(),
            [128, 1, 3, 3]
        );
        assert_eq!(
            tensors
                .tensor("model.0.bn.num_batches_tracked")
                .unwrap()
                .dtype(),
            Dtype::I64
        );
    }

    #[test]
    fn damaged_and_foreign_files_are_refused_by_name() {
        let (network, _, _, bytes) = file("yolo26n");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.safetensors");
        let refused = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            WeightsFile::open(&path)
                .and_then(|f| f.load(&network.layout, "yolo26n", 2))
                .unwrap_err()
                .to_string()
        };
        assert!(
            refused(&bytes[..bytes.len() / 2])
                .contains("w.safetensors is not a complete safetensors file")
        );
        assert!(refused(b"PK\x03\x04 something else").contains("not a complete"));
        let other = file("yolov8n").3;
        let message = refused(&other);
        assert!(
            message.contains("w.safetensors: tensor model.") && message.lines().count() == 1,
            "{message}"
        );
        std::fs::write(&path, &other).unwrap();
        let wider = Network::new(ModelSpec::resolve("yolov8n").unwrap(), 3);
        let e = WeightsFile::open(&path)
            .unwrap()
            .load(&wider.layout, "yolov8n", 3)
            .unwrap_err();
        assert!(matches!(e, WeightsError::Shape { .. }), "{e}");
    }
}
