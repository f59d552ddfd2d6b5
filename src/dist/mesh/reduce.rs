//! Collectives that join values: all-reduce (over ranks or lanes), reduce-scatter, broadcast (of which only the root
//! gives a value).
//!
//! Each rank owns a slice. In pieces, every rank sends its values of a slice to the owner (C), who joins all of them in
//! the order of the tree and sends the result to all (R). A stream carries C and R pieces in an order that both sides
//! know; the results lag behind, so that pieces of both phases are under way at the same time and stay in the caches.
//! Short values go to every rank at once, each of which joins all of them: one way instead of two, the same bits.
//!
//! Why this cannot stall: `R(k)` needs `C(k)` of all ranks, and before `C(k)` a stream carries only `R(j)` with
//! `j < k - LAG`; so the smallest `k` that is not complete can always go on.

use std::ops::Range;

use super::link::PIECE;
use super::wire::{Advance, Fault, Heads, Step, Wire};
use crate::dist::buffer::{Buffer, Element, ReduceOp};
use crate::dist::handle::Output;
use crate::dist::tree::{Leaf, Order};

/// Pieces by which results follow contributions.
const LAG: usize = 2;
/// Most bytes of the values of one rank that go to every rank at once.
const DIRECT: usize = 32 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Item {
    Contribution(usize),
    Result(usize),
}

fn schedule(contributions: usize, results: usize) -> Vec<Item> {
    let steps = contributions.max(if results > 0 { results + LAG } else { 0 });
    let mut items = Vec::with_capacity(contributions + results);
    for i in 0..steps {
        if i < contributions {
            items.push(Item::Contribution(i));
        }
        if i >= LAG && i - LAG < results {
            items.push(Item::Result(i - LAG));
        }
    }
    items
}

/// What is joined and who gets it.
pub(crate) struct Plan {
    pub(crate) op: ReduceOp,
    /// Over the parts of all ranks, in order of ranks.
    pub(crate) order: Order,
    /// Parts of each rank.
    pub(crate) parts: Vec<usize>,
    pub(crate) scope: Scope,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Scope {
    /// Everybody gets everything.
    All,
    /// The number of elements that each rank gets.
    Scatter(Vec<usize>),
}

pub(crate) struct Reduce<T> {
    plan: Plan,
    me: usize,
    /// This rank's parts. The first present one is `out`, an empty vector stands in its place.
    own: Vec<Option<Vec<T>>>,
    first: Option<usize>,
    out: Vec<T>,
    /// What each rank owns; everything where `direct`.
    slices: Vec<Range<usize>>,
    direct: bool,
    gather: bool,
    /// Elements of a piece of one part.
    unit: usize,
    outgoing: Vec<Vec<Item>>,
    out_at: Vec<usize>,
    incoming: Vec<Option<Vec<Item>>>,
    in_at: Vec<usize>,
    /// Whether the next piece of a rank is there and waits for those of the others.
    waiting: Vec<bool>,
    /// Pieces of this rank's slice that are joined.
    reduced: usize,
}

impl<T: Element> Reduce<T> {
    /// `own`: one entry for each part of this rank, of `len` elements each.
    pub(crate) fn new(plan: Plan, me: usize, len: usize, mut own: Vec<Option<Vec<T>>>) -> Self {
        let size = plan.parts.len();
        let most = plan.parts.iter().copied().max().unwrap_or(1).max(1);
        let bytes = len * size_of::<T>() * most;
        let direct = bytes <= DIRECT && plan.scope == Scope::All && size > 1;
        let slices: Vec<_> = match &plan.scope {
            _ if direct => vec![0..len; size],
            Scope::All => (0..size)
                .map(|r| r * len / size..(r + 1) * len / size)
                .collect(),
            Scope::Scatter(counts) => counts
                .iter()
                .scan(0, |at, &c| {
                    *at += c;
                    Some(*at - c..*at)
                })
                .collect(),
        };
        let first = own.iter().position(Option::is_some);
        let out = match first {
            Some(i) => own[i].replace(Vec::new()).expect("present"),
            None => vec![T::zeroed(); len],
        };
        let unit = (PIECE / size_of::<T>() / most).max(1);
        let gather = plan.scope == Scope::All && !direct;
        let mut reduce = Reduce {
            me,
            own,
            first,
            out,
            direct,
            gather,
            unit,
            outgoing: Vec::new(),
            out_at: vec![0; size],
            incoming: vec![None; size],
            in_at: vec![0; size],
            waiting: vec![false; size],
            reduced: 0,
            slices,
            plan,
        };
        let mask = reduce.present();
        reduce.outgoing = (0..size)
            .map(|to| {
                if to == me {
                    Vec::new()
                } else {
                    reduce.schedule(me, to, mask)
                }
            })
            .collect();
        reduce
    }

    /// Which of this rank's parts have values.
    pub(crate) fn present(&self) -> u64 {
        (0..self.own.len())
            .filter(|&i| self.own[i].is_some())
            .fold(0, |mask, i| mask | 1 << i)
    }

    fn pieces(&self, rank: usize) -> usize {
        self.slices[rank].len().div_ceil(self.unit)
    }

    /// Elements of the `k`-th piece of the slice of `rank`.
    fn at(&self, rank: usize, k: usize) -> Range<usize> {
        let slice = &self.slices[rank];
        let start = slice.start + k * self.unit;
        start..slice.end.min(start + self.unit)
    }

    fn schedule(&self, from: usize, to: usize, present: u64) -> Vec<Item> {
        let contributions = if present == 0 { 0 } else { self.pieces(to) };
        let results = if self.gather { self.pieces(from) } else { 0 };
        schedule(contributions, results)
    }

    fn send(&mut self, wire: &mut Wire<'_>, to: usize) -> Result<bool, Fault> {
        let mut progress = false;
        while let Some(item) = self.outgoing[to].get(self.out_at[to]) {
            let sent = match *item {
                Item::Contribution(k) => {
                    let at = self.at(to, k);
                    let parts: Vec<&[u8]> = (0..self.own.len())
                        .filter_map(|i| {
                            let values = self.own[i].as_ref()?;
                            let values = if Some(i) == self.first {
                                &self.out
                            } else {
                                values
                            };
                            Some(bytemuck::cast_slice(&values[at.clone()]))
                        })
                        .collect();
                    wire.push(to, &parts)?
                }
                Item::Result(k) if k < self.reduced => {
                    let at = self.at(self.me, k);
                    wire.push(to, &[bytemuck::cast_slice(&self.out[at])])?
                }
                Item::Result(_) => false,
            };
            if !sent {
                break;
            }
            self.out_at[to] += 1;
            progress = true;
        }
        Ok(progress)
    }

    fn receive(&mut self, wire: &mut Wire<'_>, from: usize, present: u64) -> Result<bool, Fault> {
        let mut progress = false;
        if self.incoming[from].is_none() {
            self.incoming[from] = Some(self.schedule(from, self.me, present));
        }
        loop {
            let items = self.incoming[from].as_ref().expect("made above");
            match items.get(self.in_at[from]) {
                None => break,
                Some(&Item::Contribution(k)) => {
                    if !self.waiting[from] {
                        let len = self.at(self.me, k).len() * present.count_ones() as usize;
                        self.waiting[from] = wire.fill(from, len * size_of::<T>())?;
                    }
                    break;
                }
                Some(&Item::Result(k)) => {
                    let at = self.at(from, k);
                    let bytes = at.len() * size_of::<T>();
                    if !wire.fill(from, bytes)? {
                        break;
                    }
                    let out: &mut [u8] = bytemuck::cast_slice_mut(&mut self.out[at]);
                    out.copy_from_slice(wire.piece(from, bytes));
                    wire.pop(from, bytes);
                    self.in_at[from] += 1;
                    progress = true;
                }
            }
        }
        Ok(progress)
    }

    /// Joins the next piece of this rank's slice where all contributions are there.
    fn join(&mut self, wire: &mut Wire<'_>, heads: &Heads) -> bool {
        if self.reduced == self.pieces(self.me) {
            return false;
        }
        let size = wire.size();
        let me = self.me;
        let others = move || (0..size).filter(move |&r| r != me);
        let mask = |rank: usize| heads.got[rank].as_ref().map(|h| h.present);
        if !others().all(|r| mask(r).is_some_and(|m| m == 0 || self.waiting[r])) {
            return false;
        }
        // The values that `join` overwrites must be on their way to everybody.
        if self.direct && !others().all(|r| self.out_at[r] == self.outgoing[r].len()) {
            return false;
        }
        let at = self.at(self.me, self.reduced);
        let len = at.len();
        let mut leaves: Vec<Leaf<'_, T>> = Vec::new();
        for rank in 0..size {
            if rank == self.me {
                leaves.extend((0..self.own.len()).map(|i| match &self.own[i] {
                    None => Leaf::Empty,
                    Some(_) if Some(i) == self.first => Leaf::Output,
                    Some(values) => Leaf::Values(&values[at.clone()]),
                }));
                continue;
            }
            let mask = mask(rank).unwrap_or(0);
            let total = mask.count_ones() as usize * len;
            let values: &[T] = if mask == 0 {
                &[]
            } else {
                bytemuck::cast_slice(wire.piece(rank, total * size_of::<T>()))
            };
            let mut next = 0;
            leaves.extend((0..self.plan.parts[rank]).map(|i| {
                if mask >> i & 1 == 0 {
                    return Leaf::Empty;
                }
                next += len;
                Leaf::Values(&values[next - len..next])
            }));
        }
        self.plan
            .order
            .run(self.plan.op, &leaves, &mut self.out[at]);
        for rank in 0..size {
            if rank != self.me
                && let Some(mask) = mask(rank)
                && mask != 0
            {
                wire.pop(rank, mask.count_ones() as usize * len * size_of::<T>());
                self.waiting[rank] = false;
                self.in_at[rank] += 1;
            }
        }
        self.reduced += 1;
        true
    }

    fn done(&self) -> bool {
        self.reduced == self.pieces(self.me)
            && (0..self.slices.len()).all(|r| {
                r == self.me
                    || self.out_at[r] == self.outgoing[r].len()
                        && self.incoming[r]
                            .as_ref()
                            .is_some_and(|items| self.in_at[r] == items.len())
            })
    }
}

impl<T: Element> Advance for Reduce<T> {
    fn step(&mut self, wire: &mut Wire<'_>, heads: &mut Heads) -> Result<Step, Fault> {
        let mut progress = heads.step(wire)?;
        loop {
            let mut again = false;
            for rank in 0..wire.size() {
                if rank == self.me {
                    continue;
                }
                if heads.sent(rank) {
                    again |= self.send(wire, rank)?;
                }
                if let Some(header) = &heads.got[rank] {
                    let present = header.present;
                    again |= self.receive(wire, rank, present)?;
                }
            }
            again |= self.join(wire, heads);
            progress |= again;
            if !again {
                break;
            }
        }
        Ok(if heads.complete() && self.done() {
            Step::Done
        } else if progress {
            Step::Progress
        } else {
            Step::Blocked
        })
    }

    fn finish(self: Box<Self>) -> Output {
        Output::One(T::wrap(match self.plan.scope {
            Scope::All => self.out,
            Scope::Scatter(_) => self.out[self.slices[self.me].clone()].to_vec(),
        }))
    }
}

/// Adds the lanes of each subtree up: `parts` has one entry for each lane of `subtrees`, in order.
pub(crate) fn sum_lanes<T: Element>(
    subtrees: &[Range<usize>],
    parts: Vec<Option<Vec<T>>>,
) -> Vec<Option<Vec<T>>> {
    let mut parts = parts.into_iter();
    subtrees
        .iter()
        .map(|subtree| {
            let mut lanes: Vec<_> = parts.by_ref().take(subtree.len()).collect();
            let first = lanes.iter().position(Option::is_some)?;
            let mut out = lanes[first].take().expect("present");
            let leaves: Vec<Leaf<'_, T>> = lanes
                .iter()
                .enumerate()
                .map(|(i, lane)| match lane {
                    Some(values) => Leaf::Values(&values[..]),
                    None if i == first => Leaf::Output,
                    None => Leaf::Empty,
                })
                .collect();
            let single: Vec<_> = subtree.clone().map(|l| l..l + 1).collect();
            Order::new(subtree.clone(), &single).run(ReduceOp::Sum, &leaves, &mut out);
            Some(out)
        })
        .collect()
}

/// The values of a buffer whose type is known.
pub(crate) fn typed<T: Element>(buffer: Buffer) -> Vec<T> {
    T::unwrap(buffer).expect("the type was compared before")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_follow_contributions() {
        use Item::{Contribution as C, Result as R};
        assert_eq!(schedule(3, 3), vec![C(0), C(1), C(2), R(0), R(1), R(2)]);
        assert_eq!(schedule(4, 2), vec![C(0), C(1), C(2), R(0), C(3), R(1)]);
        assert_eq!(schedule(0, 1), vec![R(0)]);
        assert_eq!(schedule(0, 0), vec![]);
    }
}
