//! One suite for every engine: random collectives against an oracle that knows all ranks' values.

use yolo_train::dist::tree::{lanes_of, nodes};
use yolo_train::dist::{
    Buffer, Call, Channel, DType, Element, Handle, Partials, ProcessGroup, ReduceOp,
};

const DTYPES: [DType; 6] = [
    DType::F32,
    DType::F64,
    DType::I32,
    DType::I64,
    DType::U64,
    DType::U8,
];
const OPS: [ReduceOp; 3] = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min];

/// SplitMix64.
pub fn hash(a: u64, b: u64) -> u64 {
    let mut z = a
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(b.wrapping_mul(0xd1b5_4a32_d192_ed03));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Values of many magnitudes, so that the order of a sum shows in its bits.
pub fn values(dtype: DType, len: usize, key: u64) -> Buffer {
    let at = |i: usize| hash(key, i as u64);
    let real = |i: usize| {
        let h = at(i);
        (h as i32 as f64) * 2f64.powi((h >> 58) as i32 - 60)
    };
    match dtype {
        DType::F32 => Buffer::F32((0..len).map(|i| real(i) as f32).collect()),
        DType::F64 => Buffer::F64((0..len).map(|i| real(i) / 3.0).collect()),
        DType::I32 => Buffer::I32((0..len).map(|i| at(i) as i32).collect()),
        DType::I64 => Buffer::I64((0..len).map(|i| at(i) as i64).collect()),
        DType::U64 => Buffer::U64((0..len).map(at).collect()),
        DType::U8 => Buffer::U8((0..len).map(|i| at(i) as u8).collect()),
    }
}

/// The tree, written down again: of `l` values the first `l.next_power_of_two() / 2` against the others.
fn tree<T: Copy>(values: &[Option<T>], join: &impl Fn(T, T) -> T) -> Option<T> {
    if values.len() < 2 {
        return values.first().copied().flatten();
    }
    let (left, right) = values.split_at(values.len().next_power_of_two() / 2);
    match (tree(left, join), tree(right, join)) {
        (Some(a), Some(b)) => Some(join(a, b)),
        (a, b) => a.or(b),
    }
}

fn joined<T: Element>(parts: &[Option<Buffer>], len: usize, op: ReduceOp) -> Buffer {
    let parts: Vec<Option<Vec<T>>> = parts
        .iter()
        .map(|p| p.clone().map(|b| b.into_vec().unwrap()))
        .collect();
    let join = |a: T, b: T| match op {
        ReduceOp::Sum => a.plus(b),
        ReduceOp::Max => a.larger(b),
        ReduceOp::Min => a.smaller(b),
    };
    T::wrap(
        (0..len)
            .map(|i| {
                let lane: Vec<Option<T>> = parts.iter().map(|p| Some(p.as_ref()?[i])).collect();
                tree(&lane, &join).unwrap_or_else(T::zeroed)
            })
            .collect(),
    )
}

/// What a reduction over `parts` must give.
pub fn oracle(parts: &[Option<Buffer>], dtype: DType, len: usize, op: ReduceOp) -> Buffer {
    match dtype {
        DType::F32 => joined::<f32>(parts, len, op),
        DType::F64 => joined::<f64>(parts, len, op),
        DType::I32 => joined::<i32>(parts, len, op),
        DType::I64 => joined::<i64>(parts, len, op),
        DType::U64 => joined::<u64>(parts, len, op),
        DType::U8 => joined::<u8>(parts, len, op),
    }
}

/// Equal to the last bit.
#[track_caller]
fn same(got: &Buffer, expected: &Buffer, what: &str) {
    assert_eq!(got.dtype(), expected.dtype(), "{what}");
    assert_eq!(got.len(), expected.len(), "{what}");
    if got.bytes() != expected.bytes() {
        let width = got.bytes().len() / got.len();
        let at = (0..got.len())
            .find(|i| {
                let r = i * width..(i + 1) * width;
                got.bytes()[r.clone()] != expected.bytes()[r]
            })
            .unwrap();
        panic!("{what}: element {at} of {} differs", got.len());
    }
}

/// A length: none, few, odd, longer than a piece, longer than what is under way at once.
fn length(h: u64) -> usize {
    match h % 9 {
        0 => 0,
        1 => 1,
        2 => 2 + (h >> 8) as usize % 30,
        3 => 1021,
        4 => 2048,
        5 => 4096 + (h >> 8) as usize % 5000,
        6 => 32 * 1024 + 1,
        7 => 100_003,
        _ => 400_001,
    }
}

/// What is checked when a collective is complete.
type Check = Box<dyn FnOnce()>;

fn one(handle: Handle<Buffer>, expected: Buffer, what: String) -> Check {
    Box::new(move || same(&handle.wait().unwrap(), &expected, &what))
}

fn many(handle: Handle<Vec<Buffer>>, expected: Vec<Buffer>, what: String) -> Check {
    Box::new(move || {
        let got = handle.wait().unwrap();
        assert_eq!(got.len(), expected.len());
        for (got, expected) in got.iter().zip(&expected) {
            same(got, expected, &what);
        }
    })
}

/// Starts the `i`-th random collective of `seed`.
fn start(group: &dyn ProcessGroup, seed: u64, i: u64) -> Check {
    let (rank, size) = (group.rank(), group.size());
    let h = |n: u64| hash(hash(seed, i), n);
    let key = |rank: usize, n: usize| h(1000 + rank as u64 * 64 + n as u64);
    let dtype = DTYPES[h(1) as usize % 6];
    let op = OPS[h(2) as usize % 3];
    let len = length(h(3));
    let kind = h(4) % 10;
    let channel = if h(5) % 2 == 0 {
        Channel::Bulk
    } else {
        Channel::Latency
    };
    let name = format!("collective {i} kind {kind}");
    let what = format!("{name}, {dtype} x {len}, rank {rank} of {size}, seed {seed}");
    let call = Call {
        channel,
        ..Call::bulk(name)
    };
    let all =
        |len: usize| -> Vec<Buffer> { (0..size).map(|r| values(dtype, len, key(r, 0))).collect() };
    match kind {
        0 | 1 => {
            let parts: Vec<_> = all(len).into_iter().map(Some).collect();
            let mine = parts[rank].clone().unwrap();
            let expected = oracle(&parts, dtype, len, op);
            one(group.all_reduce(call, op, mine), expected, what)
        }
        2..=4 => {
            // Often the default, sometimes any number.
            let lanes = if h(6) % 3 == 0 {
                size + h(7) as usize % 9
            } else {
                size.max(4)
            };
            let parts: Vec<Option<Buffer>> = (0..lanes)
                .map(|l| {
                    let empty = h(300 + l as u64) % 4 == 0;
                    (!empty).then(|| values(dtype, len, h(500 + l as u64)))
                })
                .collect();
            let expected = oracle(&parts, dtype, len, ReduceOp::Sum);
            let own = lanes_of(rank, size, lanes);
            let partials = if h(8) % 2 == 0 {
                Partials::by_lane(lanes, dtype, len, parts[own].to_vec())
            } else {
                let sums = nodes(lanes, own).into_iter().map(|node| {
                    let parts = &parts[node];
                    let any = parts.iter().any(Option::is_some);
                    any.then(|| oracle(parts, dtype, len, ReduceOp::Sum))
                });
                Partials::by_subtree(lanes, dtype, len, sums.collect::<Vec<_>>())
            };
            one(group.all_reduce_tree(call, partials), expected, what)
        }
        5 => {
            let mut counts: Vec<usize> = (0..size)
                .map(|r| h(200 + r as u64) as usize % (len / size + 1))
                .collect();
            counts[size - 1] = len - counts[..size - 1].iter().sum::<usize>();
            let parts: Vec<_> = all(len).into_iter().map(Some).collect();
            let mine = parts[rank].clone().unwrap();
            let start: usize = counts[..rank].iter().sum();
            let slices: Vec<_> = parts
                .iter()
                .map(|p| Some(slice(p.as_ref().unwrap(), start, counts[rank])))
                .collect();
            let expected = oracle(&slices, dtype, counts[rank], op);
            one(group.reduce_scatter(call, op, mine, counts), expected, what)
        }
        6 => {
            let parts = all(len);
            many(group.all_gather(call, parts[rank].clone()), parts, what)
        }
        7 => {
            let parts: Vec<_> = (0..size)
                .map(|r| values(dtype, length(h(400 + r as u64)), key(r, 0)))
                .collect();
            many(
                group.all_gather_variable(call, parts[rank].clone()),
                parts,
                what,
            )
        }
        8 => {
            let part = |from: usize, to: usize| {
                let len = length(h(10_000 + (from * 64 + to) as u64));
                values(dtype, len, key(from, to))
            };
            let mine = (0..size).map(|to| part(rank, to)).collect();
            let expected = (0..size).map(|from| part(from, rank)).collect();
            many(group.all_to_all(call, mine), expected, what)
        }
        _ => {
            let root = h(9) as usize % size;
            let expected = values(dtype, len, key(root, 0));
            let mine = if rank == root {
                expected.clone()
            } else {
                Buffer::zeros(dtype, len)
            };
            one(group.broadcast(call, root, mine), expected, what)
        }
    }
}

fn slice(buffer: &Buffer, start: usize, len: usize) -> Buffer {
    let at = start..start + len;
    match buffer {
        Buffer::F32(v) => Buffer::F32(v[at].to_vec()),
        Buffer::F64(v) => Buffer::F64(v[at].to_vec()),
        Buffer::I32(v) => Buffer::I32(v[at].to_vec()),
        Buffer::I64(v) => Buffer::I64(v[at].to_vec()),
        Buffer::U64(v) => Buffer::U64(v[at].to_vec()),
        Buffer::U8(v) => Buffer::U8(v[at].to_vec()),
    }
}

/// Messages around a ring: short ones from everybody at once, long ones from even ranks first.
pub fn messages(group: &dyn ProcessGroup, seed: u64) {
    let (rank, size) = (group.rank(), group.size());
    if size == 1 {
        return;
    }
    let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
    for (i, len) in [0, 1, 777, 1_000_001].into_iter().enumerate() {
        let message = |from: usize| values(DType::F32, len, hash(seed, (from * 10 + i) as u64));
        let send = || group.send(Call::bulk("around"), next, message(rank));
        let receive = || group.recv(Call::bulk("around"), last, DType::F32);
        let (sent, received) = if len < 1000 || rank % 2 == 0 {
            let sent = send();
            (sent, receive())
        } else {
            let received = receive();
            (send(), received)
        };
        sent.wait().unwrap();
        same(&received.wait().unwrap(), &message(last), "a message");
    }
}

/// Runs `count` random collectives, several under way at the same time on both channels.
pub fn run(group: &dyn ProcessGroup, seed: u64, count: u64) {
    let mut checks: Vec<Check> = Vec::new();
    for i in 0..count {
        checks.push(start(group, seed, i));
        if hash(seed, i).is_multiple_of(3) {
            for check in checks.drain(..) {
                check();
            }
        }
    }
    for check in checks {
        check();
    }
    group
        .barrier(Call::latency("end of the suite"))
        .wait()
        .unwrap();
}

/// Even and odd halves, each with collectives of its own, and a group of the first two.
pub fn subgroups(group: &dyn ProcessGroup, seed: u64) {
    let (rank, size) = (group.rank(), group.size());
    let half = group
        .split(Some(rank as u32 % 2), -(rank as i64))
        .unwrap()
        .expect("every rank has a colour");
    let members: Vec<usize> = (0..size).rev().filter(|r| r % 2 == rank % 2).collect();
    assert_eq!(half.size(), members.len());
    assert_eq!(members[half.rank()], rank);
    run(&*half, hash(seed, rank as u64 % 2), 12);
    let first = group.split((rank < 2).then_some(7), 0).unwrap();
    assert_eq!(first.is_some(), rank < 2);
    if let Some(first) = &first {
        run(&**first, seed, 8);
    }
    run(group, seed + 1, 5);
}
