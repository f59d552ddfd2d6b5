//! What ranks tell each other at the beginning of a collective, so that a mismatch is an error and not a mix-up.

use crate::dist::buffer::{DType, ReduceOp};
use crate::dist::group::Work;

/// Bytes of a header.
pub(crate) const HEADER: usize = 128;
const MAGIC: u32 = 0x79_74_64_31;
/// Bytes of the label that are compared.
const NAME: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    AllReduce,
    AllReduceTree,
    ReduceScatter,
    AllGather,
    AllGatherVariable,
    AllToAll,
    Broadcast,
    Message,
    Barrier,
}

const KINDS: [(Kind, &str); 9] = [
    (Kind::AllReduce, "all_reduce"),
    (Kind::AllReduceTree, "all_reduce_tree"),
    (Kind::ReduceScatter, "reduce_scatter"),
    (Kind::AllGather, "all_gather"),
    (Kind::AllGatherVariable, "all_gather_variable"),
    (Kind::AllToAll, "all_to_all"),
    (Kind::Broadcast, "broadcast"),
    (Kind::Message, "send/recv"),
    (Kind::Barrier, "barrier"),
];
const DTYPES: [DType; 6] = [
    DType::F32,
    DType::F64,
    DType::I32,
    DType::I64,
    DType::U64,
    DType::U8,
];
const OPS: [ReduceOp; 3] = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) group: u64,
    pub(crate) sequence: u64,
    pub(crate) kind: Kind,
    pub(crate) dtype: DType,
    pub(crate) op: ReduceOp,
    /// Root or number of lanes.
    pub(crate) root: u32,
    /// Elements, where all ranks have the same number.
    pub(crate) len: u64,
    /// Of further arguments that must agree.
    pub(crate) digest: u64,
    /// Elements for the rank that gets this header, where each may get another number.
    pub(crate) count: u64,
    /// Bit `i`: the `i`-th part has values.
    pub(crate) present: u64,
    pub(crate) name: Vec<u8>,
}

/// FNV-1a, for arguments that must agree.
pub(crate) fn digest(values: impl IntoIterator<Item = u64>) -> u64 {
    values
        .into_iter()
        .flat_map(u64::to_le_bytes)
        .fold(0xcbf2_9ce4_8422_2325, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
        })
}

impl Header {
    /// Of a collective, as far as the work tells.
    pub(crate) fn of(work: &Work, name: &str) -> Self {
        let mut end = name.len().min(NAME);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        let mut header = Header {
            group: 0,
            sequence: 0,
            kind: Kind::Barrier,
            dtype: DType::U8,
            op: ReduceOp::Sum,
            root: 0,
            len: 0,
            digest: 0,
            count: 0,
            present: 0,
            name: name.as_bytes()[..end].to_vec(),
        };
        let h = &mut header;
        match work {
            Work::AllReduce(op, b) => {
                (h.kind, h.op, h.dtype, h.len) = (Kind::AllReduce, *op, b.dtype(), b.len() as u64);
            }
            Work::AllReduceTree(p) => {
                (h.kind, h.dtype, h.len) = (Kind::AllReduceTree, p.dtype, p.len as u64);
                h.root = p.lanes as u32;
            }
            Work::ReduceScatter(op, b, counts) => {
                (h.kind, h.op, h.dtype) = (Kind::ReduceScatter, *op, b.dtype());
                h.len = b.len() as u64;
                h.digest = digest(counts.iter().map(|&c| c as u64));
            }
            Work::AllGather(b) => {
                (h.kind, h.dtype, h.len) = (Kind::AllGather, b.dtype(), b.len() as u64);
            }
            Work::AllGatherVariable(b) => (h.kind, h.dtype) = (Kind::AllGatherVariable, b.dtype()),
            Work::AllToAll(parts) => {
                h.kind = Kind::AllToAll;
                h.dtype = parts.first().map_or(DType::U8, |b| b.dtype());
            }
            Work::Broadcast(root, b) => {
                (h.kind, h.dtype, h.len) = (Kind::Broadcast, b.dtype(), b.len() as u64);
                h.root = *root as u32;
            }
            Work::Send(_, b) => (h.kind, h.dtype) = (Kind::Message, b.dtype()),
            Work::Recv(_, dtype) => (h.kind, h.dtype) = (Kind::Message, *dtype),
            Work::Barrier => {}
        }
        header
    }

    /// For people: kind, operation, type and length.
    pub(crate) fn what(&self) -> String {
        let kind = KINDS[self.kind as usize].1;
        let (dtype, len) = (self.dtype, self.len);
        match self.kind {
            Kind::AllReduce | Kind::ReduceScatter => {
                format!("{kind} {} of {dtype} x {len}", self.op)
            }
            Kind::AllReduceTree => format!("{kind} over {} lanes of {dtype} x {len}", self.root),
            Kind::AllGather => format!("{kind} of {dtype} x {len}"),
            Kind::Broadcast => format!("{kind} from rank {} of {dtype} x {len}", self.root),
            Kind::AllGatherVariable | Kind::AllToAll | Kind::Message => {
                format!("{kind} of {dtype}")
            }
            Kind::Barrier => kind.into(),
        }
    }

    /// For people, in the same words as [`crate::dist::error::Collective`].
    pub(crate) fn describe(&self) -> String {
        format!(
            "collective {:?} (number {}, {})",
            String::from_utf8_lossy(&self.name),
            self.sequence,
            self.what()
        )
    }

    /// Whether both belong to one collective.
    pub(crate) fn agrees(&self, other: &Header) -> bool {
        let shared = |h: &Header| Header {
            count: 0,
            present: 0,
            ..h.clone()
        };
        shared(self) == shared(other)
    }

    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4] = self.kind as u8;
        out[5] = self.dtype as u8;
        out[6] = self.op as u8;
        out[7] = self.name.len() as u8;
        out[8..12].copy_from_slice(&self.root.to_le_bytes());
        let words = [
            self.group,
            self.sequence,
            self.len,
            self.digest,
            self.count,
            self.present,
        ];
        for (i, word) in words.into_iter().enumerate() {
            out[16 + 8 * i..][..8].copy_from_slice(&word.to_le_bytes());
        }
        out[64..64 + self.name.len()].copy_from_slice(&self.name);
        out
    }

    /// `None`: no rank sends this.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER] = bytes.try_into().ok()?;
        let word = |i: usize| {
            let at = 16 + 8 * i;
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
        };
        let half =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let name = usize::from(bytes[7]);
        if half(0) != MAGIC || name > NAME {
            return None;
        }
        Some(Header {
            kind: KINDS.get(usize::from(bytes[4]))?.0,
            dtype: *DTYPES.get(usize::from(bytes[5]))?,
            op: *OPS.get(usize::from(bytes[6]))?,
            root: half(8),
            group: word(0),
            sequence: word(1),
            len: word(2),
            digest: word(3),
            count: word(4),
            present: word(5),
            name: bytes[64..64 + name].to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::Buffer;

    #[test]
    fn a_header_survives_the_wire() {
        let work = Work::ReduceScatter(ReduceOp::Max, Buffer::zeros(DType::I64, 5), vec![2, 3]);
        let header = Header {
            group: 7,
            sequence: 1 << 40,
            count: 3,
            present: 5,
            ..Header::of(&work, &"ü".repeat(40))
        };
        let back = Header::decode(&header.encode()).unwrap();
        assert_eq!(back, header);
        assert!(back.agrees(&Header {
            count: 0,
            present: 0,
            ..header.clone()
        }));
        assert!(!back.agrees(&Header {
            len: 6,
            ..header.clone()
        }));
        assert_eq!(back.what(), "reduce_scatter max of i64 x 5");
    }

    #[test]
    fn arguments_that_differ_give_another_digest() {
        assert_ne!(digest([1, 2]), digest([2, 1]));
        assert_ne!(digest([1]), digest([1, 0]));
    }

    #[test]
    fn garbage_is_no_header() {
        assert_eq!(Header::decode(&[0; HEADER]), None);
        let mut bytes = Header::of(&Work::Barrier, "x").encode();
        bytes[4] = 99;
        assert_eq!(Header::decode(&bytes), None);
    }
}
