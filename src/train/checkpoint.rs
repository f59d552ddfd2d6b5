//! The file of a checkpoint: everything that a run needs to go on with the same bits, with a checksum.
//!
//! Layout: a line that names the format; the length of the header as 8 bytes; the header as JSON; float32 sections as
//! the header lists them, little-endian; the SHA-256 of all that. Random state is not in it, because everything random
//! is a function of (seed, epoch, position).

use crate::loss::ShownLoss;
use crate::model::weights::Metadata;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

const MAGIC: &[u8] = b"yolo-train checkpoint 2\n";
const SUM: usize = 32;

/// How far a run is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// Epoch that is under way, from 0.
    pub epoch: usize,
    /// Its micro-batches that are done; all of them while it is validated.
    pub batch: usize,
}

/// The best epoch so far.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// From 0.
    pub epoch: usize,
    pub ap: f64,
}

/// Whole numbers and sums of the engine; its arrays are the sections.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Optimizer steps.
    pub steps: u64,
    pub images_seen: u64,
    /// Of the live weights and of the average.
    pub batches_tracked: [u64; 2],
    /// Of the step that is under way: sums of target scores of the heads in each lane, images of each lane,
    /// micro-batches.
    pub score_sums: Vec<[f64; 2]>,
    pub lane_images: Vec<usize>,
    pub micro_batches: usize,
    /// Of float16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
}

/// State of the scaling of losses.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    pub scale: f32,
    /// Steps since it changed.
    pub good_steps: u32,
}

/// What a checkpoint says besides its arrays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Version of the program that wrote it.
    pub version: String,
    /// Instruction set of the kernels: others round differently.
    pub isa: String,
    /// The run's options as in `args.yaml`.
    pub settings: String,
    /// Epochs of the schedule, which `--resume RUN --epochs N` and `--time` change.
    pub epochs: usize,
    pub position: Position,
    /// Of the epoch's part that is done.
    pub loss: ShownLoss,
    pub best: Option<Best>,
    /// Training time so far.
    pub seconds: f64,
    /// results.csv so far.
    pub results: String,
    pub counters: Counters,
    /// The network, and the classes and their ids.
    pub metadata: Metadata,
    /// Hash of the splits of the data set.
    pub data: String,
    /// Nothing is left to do: the best weights were validated, the files are complete.
    pub finished: bool,
    /// Names and lengths of the arrays, in order.
    pub sections: Vec<(String, usize)>,
}

/// Why a checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("cannot read {}: {source}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{} is damaged: {what}", path.display())]
    Damaged { path: PathBuf, what: String },
    #[error("{} does not fit its own run: {what}", path.display())]
    Content { path: PathBuf, what: String },
}

/// The bytes of a checkpoint. `sections` are in the header's order.
#[must_use]
pub fn to_bytes(header: &Header, sections: &[&[f32]]) -> Vec<u8> {
    debug_assert!(
        header
            .sections
            .iter()
            .map(|s| s.1)
            .eq(sections.iter().map(|s| s.len()))
    );
    let json = serde_json::to_vec(header).expect("plain data serializes");
    let floats: usize = sections.iter().map(|s| s.len()).sum();
    let mut bytes = Vec::with_capacity(MAGIC.len() + 8 + json.len() + 4 * floats + SUM);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&(json.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&json);
    for section in sections {
        bytes.extend(section.iter().flat_map(|v| v.to_le_bytes()));
    }
    bytes
}

/// Adds the checksum, which takes longer than the copy and so may be done elsewhere.
pub fn seal(bytes: &mut Vec<u8>) {
    let sum = Sha256::digest(&*bytes);
    bytes.extend_from_slice(&sum);
}

/// A checkpoint in memory, whole and with the right checksum.
#[derive(Debug)]
pub struct Checkpoint {
    pub header: Header,
    path: PathBuf,
    bytes: Vec<u8>,
    /// Where the sections begin.
    start: usize,
}

impl Checkpoint {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`CheckpointError`], also where a single bit differs from what was written.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let bytes = std::fs::read(path).map_err(|source| CheckpointError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(path, bytes)
    }

    /// The whole file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where it came from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks the bytes of a file, which was at `path`.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn parse(path: &Path, bytes: Vec<u8>) -> Result<Self, CheckpointError> {
        let damaged = |what: String| CheckpointError::Damaged {
            path: path.to_owned(),
            what,
        };
        if !bytes.starts_with(MAGIC) {
            return Err(damaged(format!(
                "it does not begin as a checkpoint of this version does ({} bytes)",
                bytes.len()
            )));
        }
        let short = || {
            damaged(format!(
                "it is cut off after {} bytes, in its header",
                bytes.len()
            ))
        };
        let head = MAGIC.len() + 8;
        let length = bytes.get(MAGIC.len()..head).ok_or_else(short)?;
        let length = u64::from_le_bytes(length.try_into().expect("eight bytes"));
        let start = usize::try_from(length)
            .ok()
            .and_then(|n| n.checked_add(head))
            .filter(|end| *end <= bytes.len())
            .ok_or_else(short)?;
        // the checksum comes first: a header with a flipped bit may still be JSON
        let content = bytes.len().saturating_sub(SUM).max(start);
        if Sha256::digest(&bytes[..content])[..] != bytes[content..] {
            return Err(damaged(format!(
                "the checksum over its {} bytes does not agree: it is cut off or was changed",
                bytes.len()
            )));
        }
        let header: Header = serde_json::from_slice(&bytes[head..start])
            .map_err(|e| damaged(format!("its header: {e}")))?;
        let floats: usize = header.sections.iter().map(|s| s.1).sum();
        if start + 4 * floats != content {
            return Err(damaged(format!(
                "{} bytes of arrays where its header says {}",
                content - start,
                4 * floats
            )));
        }
        Ok(Self {
            header,
            path: path.to_owned(),
            bytes,
            start,
        })
    }

    /// Copies the arrays into `targets`, which have the names and lengths of the header's list; an array of the
    /// targets that the file lacks is filled with zeros.
    ///
    /// # Errors
    /// [`CheckpointError::Content`] naming an array that is there in another length, or that no target takes.
    pub fn restore(&self, targets: &mut [(String, &mut [f32])]) -> Result<(), CheckpointError> {
        let wrong = |what: String| CheckpointError::Content {
            path: self.path.clone(),
            what,
        };
        for (name, len) in &self.header.sections {
            match targets.iter().find(|(n, _)| n == name) {
                Some((_, t)) if t.len() == *len => {}
                Some((_, t)) => {
                    return Err(wrong(format!(
                        "array {name} has {len} numbers, the network needs {}",
                        t.len()
                    )));
                }
                None => return Err(wrong(format!("array {name} has no place"))),
            }
        }
        for (name, target) in targets {
            let mut at = self.start;
            let found = self.header.sections.iter().find(|(n, len)| {
                let here = n == name;
                at += if here { 0 } else { 4 * len };
                here
            });
            if found.is_none() {
                target.fill(0.0);
                continue;
            }
            let (values, _) = self.bytes[at..].as_chunks::<4>();
            for (t, v) in target.iter_mut().zip(values) {
                *t = f32::from_le_bytes(*v);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::model::ModelSpec;
    use crate::loss::Components;
    use proptest::prelude::*;

    pub(in crate::train) fn header() -> Header {
        Header {
            version: "1".into(),
            isa: "portable".into(),
            settings: "epochs: 3\n".into(),
            epochs: 3,
            position: Position { epoch: 1, batch: 2 },
            loss: ShownLoss {
                sums: Components {
                    boxes: 0.1 + 0.2,
                    classes: 1e-300,
                    distances: 1.0 / 3.0,
                },
                score_sum: 5e17,
            },
            best: Some(Best { epoch: 0, ap: 0.3 }),
            seconds: 1.5,
            results: "epoch\n1\n".into(),
            counters: Counters {
                steps: u64::MAX,
                ..Counters::default()
            },
            metadata: Metadata {
                category_ids: vec![7],
                imgsz: 64,
                licence: "none".into(),
                model: "yolo26n".into(),
                names: vec!["a".into()],
                spec: ModelSpec::resolve("yolo26n").unwrap(),
                version: "1".into(),
            },
            data: "00".into(),
            finished: false,
            sections: vec![("a".into(), 3), ("b".into(), 2)],
        }
    }

    const A: [f32; 3] = [1.0, -0.0, f32::MIN_POSITIVE / 2.0];
    const B: [f32; 2] = [f32::MAX, 0.1];

    fn bytes() -> Vec<u8> {
        let mut b = to_bytes(&header(), &[&A, &B]);
        seal(&mut b);
        b
    }

    fn parse(bytes: Vec<u8>) -> Result<Checkpoint, CheckpointError> {
        Checkpoint::parse(Path::new("x.ckpt"), bytes)
    }

    #[test]
    fn what_was_written_is_read_bit_for_bit() {
        let c = parse(bytes()).unwrap();
        assert_eq!(c.header, header());
        let (mut a, mut b, mut absent) = ([9.0; 3], [9.0; 2], [9.0; 4]);
        c.restore(&mut [
            ("b".into(), &mut b),
            ("absent".into(), &mut absent),
            ("a".into(), &mut a),
        ])
        .unwrap();
        assert_eq!(a.map(f32::to_bits), A.map(f32::to_bits));
        assert_eq!((b, absent), (B, [0.0; 4]));
    }

    #[test]
    fn an_array_of_another_length_or_without_a_place_is_named() {
        let c = parse(bytes()).unwrap();
        let (mut a, mut b) = ([0.0; 3], [0.0; 1]);
        let e = c
            .restore(&mut [("a".into(), &mut a), ("b".into(), &mut b)])
            .unwrap_err();
        assert!(e.to_string().contains("array b has 2 numbers"), "{e}");
        let e = c.restore(&mut [("a".into(), &mut a)]).unwrap_err();
        assert!(e.to_string().contains("array b has no place"), "{e}");
    }

    proptest! {
        #[test]
        fn a_cut_or_a_flipped_bit_anywhere_is_recognised(at in 0.0f64..1.0, bit in 0u8..8) {
            let whole = bytes();
            let at = (at * whole.len() as f64) as usize;
            let damaged = |b: Vec<u8>| matches!(parse(b), Err(CheckpointError::Damaged { .. }));
            prop_assert!(damaged(whole[..at].to_vec()));
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << bit;
            prop_assert!(damaged(flipped));
            let mut longer = whole;
            longer.push(bit);
            prop_assert!(damaged(longer));
        }
    }
}
