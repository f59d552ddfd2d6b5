//! Which group every parameter of the flat memory belongs to, and the groups' rules.

use super::super::flat;
use super::super::launch::vector_size;
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use std::ops::Range;

/// Numbers of a group's rule.
pub(super) const RULE: usize = 8;
/// Most groups: their numbers are bytes.
pub const MOST_GROUPS: usize = 256;

/// Places in a rule as kernels read it.
pub(super) const RATE: usize = 0;
pub(super) const DECAY: usize = 1;
/// What the gradient is multiplied by: normaliser, factor and clipping.
pub(super) const SCALE: usize = 2;
/// One of the modes below.
pub(super) const MODE: usize = 3;
/// Rate of Muon's part.
pub(super) const MUON: usize = 4;
/// Whether Muon's momentum moves.
pub(super) const TURNS: usize = 5;

/// Nothing trains it: its average is the same bytes, its gradient is dropped.
pub(super) const FIXED: f32 = 0.0;
/// It moves.
pub(super) const MOVES: f32 = 1.0;
/// The gradient was not finite: only it is cleared.
pub(super) const SKIPS: f32 = 2.0;

/// How the parameters of a group move in a step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rule {
    /// Rate; for Adam divided by the correction of the first moment.
    pub rate: f32,
    /// SGD: decay. AdamW: what a parameter is multiplied by, `1 - lr decay`.
    pub decay: f32,
    /// Gradients come from the one-to-one head.
    pub one_to_one: bool,
    /// Nothing trains it.
    pub fixed: bool,
    /// Rate of Muon's part, where there is one.
    pub muon: Option<f32>,
}

/// The groups of the elements of flat memory on the device: a byte each.
#[derive(Debug, Clone)]
pub struct Groups {
    /// `[ceil(len / 4)]`, the first element in the lowest byte.
    pub(super) words: CubeTensor,
    pub(super) len: usize,
    pub(super) count: usize,
    pub(super) device: CubeDevice,
}

impl Groups {
    /// `parts` are ranges of elements and their groups; they make up `0..len` one after the other.
    ///
    /// # Panics
    /// If they do not, or a group is 256 or more.
    #[must_use]
    pub fn new(parts: &[(Range<usize>, usize)], device: &CubeDevice) -> Self {
        let len = parts.last().map_or(0, |p| p.0.end);
        let mut bytes = Vec::with_capacity(len.next_multiple_of(4));
        for (at, group) in parts {
            assert_eq!(at.start, bytes.len(), "parts follow each other");
            assert!(*group < MOST_GROUPS, "group {group} of {MOST_GROUPS}");
            bytes.resize(at.end, *group as u8);
        }
        bytes.resize(len.next_multiple_of(4), 0);
        let words: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        Self {
            words: flat::upload_u32(device, &words),
            len,
            count: parts.iter().map(|p| p.1 + 1).max().unwrap_or(0),
            device: device.clone(),
        }
    }

    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Elements that a unit reads at once.
    pub(super) fn vector_size(&self) -> usize {
        vector_size(&self.device.client(), 4, self.len).min(4)
    }

    /// `[groups, RULE]` as the host knows them: the place of the scale tells the head.
    pub(super) fn table(&self, rules: &[Rule]) -> CubeTensor {
        assert_eq!(rules.len(), self.count, "rules of all groups");
        let mut table = vec![0.0; rules.len() * RULE];
        for (row, r) in table.chunks_exact_mut(RULE).zip(rules) {
            row[RATE] = r.rate;
            row[DECAY] = r.decay;
            row[SCALE] = f32::from(u8::from(r.one_to_one));
            row[MODE] = if r.fixed { FIXED } else { MOVES };
            row[MUON] = r.muon.unwrap_or(0.0);
            row[TURNS] = f32::from(u8::from(r.muon.is_some()));
        }
        flat::upload_f32(&self.device, &table)
    }
}

/// Group of element `at`.
#[cube]
pub(super) fn group(words: &[u32], at: usize) -> usize {
    let word = words[at / 4];
    ((word >> ((at % 4) as u32 * 8)) & 255) as usize
}
