//! Sums over images in an order that does not depend on who computes them.
//!
//! The images of a micro-batch are cut into lanes, contiguous ranges. A sum over images is formed for each lane by
//! itself and then over the lanes in a binary tree: of `l` lanes the first `l.next_power_of_two() / 2` form one
//! subtree, the others the second one, and an empty lane adds nothing. Two ranks that hold two lanes each and add
//! their results get the bits of one rank that holds four.

use std::iter::Peekable;
use std::ops::Range;

/// The lanes of a micro-batch that a process holds: a range of all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lanes {
    total: usize,
    own: Range<usize>,
    /// Images of the whole micro-batch; `None` where this process holds all of them.
    images: Option<usize>,
}

impl Lanes {
    /// What runs have where `--lanes` is not given, and what is done outside a run.
    pub const USUAL: Lanes = Lanes::whole(4);

    /// All `total` lanes, of however many images.
    pub const fn whole(total: usize) -> Self {
        Self {
            total,
            own: 0..total,
            images: None,
        }
    }

    /// Those of `rank` among `size`, of a micro-batch of `images` images on all ranks together.
    pub fn of_rank(total: usize, rank: usize, size: usize, images: usize) -> Self {
        Self {
            total,
            own: lanes_of(rank, size, total),
            images: Some(images),
        }
    }

    /// Lanes of all ranks together.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Numbers of this process's lanes.
    pub fn own(&self) -> Range<usize> {
        self.own.clone()
    }

    /// Images of the whole micro-batch; `images` is how many this process holds.
    pub fn all(&self, images: usize) -> usize {
        self.images.unwrap_or(images)
    }

    /// Images of this process before its first one, in the whole micro-batch.
    fn first(&self, images: usize) -> usize {
        self.own.start * images / self.total
    }

    /// Images that this process holds, of the whole micro-batch.
    pub fn images(&self) -> Option<Range<usize>> {
        self.images
            .map(|n| self.first(n)..self.own.end * n / self.total)
    }

    /// The images of each own lane, counted from this process's first; `images` is how many it holds.
    ///
    /// # Panics
    /// If these are not as many as its lanes have.
    pub fn cut(&self, images: usize) -> Vec<Range<usize>> {
        let all = self.all(images);
        let first = self.first(all);
        let lanes: Vec<_> = self
            .own
            .clone()
            .map(|l| l * all / self.total - first..(l + 1) * all / self.total - first)
            .collect();
        check(&lanes, images);
        lanes
    }

    /// The largest whole subtrees of the own lanes, as ranges of own lanes, counted from the first.
    pub fn subtrees(&self) -> Vec<Range<usize>> {
        let first = self.own.start;
        let nodes = nodes(self.total, self.own.clone());
        nodes
            .into_iter()
            .map(|n| n.start - first..n.end - first)
            .collect()
    }
}

/// The lanes that `rank` of `size` holds: `floor(rank lanes / size)` to `floor((rank + 1) lanes / size)`.
pub fn lanes_of(rank: usize, size: usize, lanes: usize) -> Range<usize> {
    rank * lanes / size..(rank + 1) * lanes / size
}

/// Where a subtree over `range` divides.
pub fn half(range: &Range<usize>) -> usize {
    range.start + range.len().next_power_of_two() / 2
}

/// The largest whole subtrees of the tree over `0..lanes` that make up `own`, in order.
pub fn nodes(lanes: usize, own: Range<usize>) -> Vec<Range<usize>> {
    fn walk(node: Range<usize>, own: &Range<usize>, out: &mut Vec<Range<usize>>) {
        if node.is_empty() || node.end <= own.start || own.end <= node.start {
            return;
        }
        if own.start <= node.start && node.end <= own.end {
            out.push(node);
            return;
        }
        let half = half(&node);
        walk(node.start..half, own, out);
        walk(half..node.end, own, out);
    }
    let mut out = Vec::new();
    walk(0..lanes, &own, &mut out);
    out
}

/// Images of each lane: lane `l` of `lanes` begins at `floor(l * images / lanes)`.
pub fn cut(images: usize, lanes: usize) -> Vec<Range<usize>> {
    Lanes::whole(lanes).cut(images)
}

/// Where sums over groups of lanes go.
#[derive(Debug)]
pub struct LaneSums<'a> {
    /// Ranges of lanes, counted in the lanes that the kernel is given.
    pub groups: &'a [Range<usize>],
    /// One for each group.
    pub out: Vec<&'a mut [f32]>,
    /// Add to what is there instead of overwriting it.
    pub add: bool,
}

impl<'a> LaneSums<'a> {
    /// One sum over all lanes, overwritten.
    pub fn all(lanes: &'a Range<usize>, out: &'a mut [f32]) -> Self {
        Self {
            groups: std::slice::from_ref(lanes),
            out: vec![out],
            add: false,
        }
    }

    /// Puts the sums of values of the lanes; `None` is an empty lane.
    pub fn put(&mut self, parts: &[Option<Vec<f32>>]) {
        for (group, out) in self.groups.iter().zip(&mut self.out) {
            let parts: Vec<Option<&[f32]>> =
                parts[group.clone()].iter().map(Option::as_deref).collect();
            if self.add {
                let mut sum = vec![0.0; out.len()];
                tree_sum(&parts, &mut sum);
                store(
                    parts.iter().any(Option::is_some).then_some(&sum[..]),
                    out,
                    true,
                );
            } else {
                tree_sum(&parts, out);
            }
        }
    }
}

/// Puts a sum, or adds it to what is there; `None` is that of empty lanes.
#[inline(always)]
pub(super) fn store(sum: Option<&[f32]>, out: &mut [f32], add: bool) {
    match (sum, add) {
        (Some(sum), true) => out.iter_mut().zip(sum).for_each(|(o, s)| *o += s),
        (Some(sum), false) => out.copy_from_slice(sum),
        (None, true) => {}
        (None, false) => out.fill(0.0),
    }
}

/// Asserts that the lanes are the consecutive parts of `0..images`.
pub(super) fn check(lanes: &[Range<usize>], images: usize) {
    let mut at = 0;
    for lane in lanes {
        assert!(
            lane.start == at && lane.end >= at,
            "lanes must be consecutive: {lanes:?}"
        );
        at = lane.end;
    }
    assert_eq!(at, images, "lanes must cover all images: {lanes:?}");
}

/// Combines what `leaf` gives for each index of `range` in the tree's order; `None` adds nothing.
pub fn tree<T>(
    range: Range<usize>,
    leaf: &mut impl FnMut(usize) -> Option<T>,
    join: &mut impl FnMut(T, T) -> T,
) -> Option<T> {
    match range.len() {
        0 => None,
        1 => leaf(range.start),
        _ => {
            let half = half(&range);
            let left = tree(range.start..half, leaf, join);
            let right = tree(half..range.end, leaf, join);
            match (left, right) {
                (Some(a), Some(b)) => Some(join(a, b)),
                (a, b) => a.or(b),
            }
        }
    }
}

/// Joins the values of whole subtrees, in order, to that of the tree over `0..lanes`; `None` adds nothing.
pub fn tree_of_nodes<T>(
    lanes: usize,
    nodes: &[Range<usize>],
    values: Vec<Option<T>>,
    join: &mut impl FnMut(T, T) -> T,
) -> Option<T> {
    fn walk<'a, T>(
        node: Range<usize>,
        nodes: &mut Peekable<impl Iterator<Item = (&'a Range<usize>, Option<T>)>>,
        join: &mut impl FnMut(T, T) -> T,
    ) -> Option<T> {
        if node.is_empty() {
            return None;
        }
        if nodes.peek().is_none_or(|(n, _)| **n == node) {
            return nodes.next().and_then(|(_, v)| v);
        }
        let half = half(&node);
        let left = walk(node.start..half, nodes, join);
        let right = walk(half..node.end, nodes, join);
        match (left, right) {
            (Some(a), Some(b)) => Some(join(a, b)),
            (a, b) => a.or(b),
        }
    }
    assert_eq!(nodes.len(), values.len(), "a value for each subtree");
    walk(0..lanes, &mut nodes.iter().zip(values).peekable(), join)
}

/// Element-wise sum over lanes into `out`; `None` is an empty lane. All lanes empty: zeros.
pub fn tree_sum(parts: &[Option<&[f32]>], out: &mut [f32]) {
    for part in parts.iter().flatten() {
        assert_eq!(part.len(), out.len(), "lanes of different lengths");
    }
    // In blocks, so that the intermediate sums stay in the first cache.
    const BLOCK: usize = 1024;
    for (i, out) in out.chunks_mut(BLOCK).enumerate() {
        let at = i * BLOCK..i * BLOCK + out.len();
        let sum = tree(
            0..parts.len(),
            &mut |l| {
                parts[l].map(|p| {
                    let mut block = [0.0f32; BLOCK];
                    block[..at.len()].copy_from_slice(&p[at.clone()]);
                    block
                })
            },
            &mut |mut a, b| {
                for (a, b) in a.iter_mut().zip(&b) {
                    *a += b;
                }
                a
            },
        );
        match sum {
            Some(sum) => out.copy_from_slice(&sum[..out.len()]),
            None => out.fill(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_cut_as_the_design_says() {
        assert_eq!(cut(4, 4), vec![0..1, 1..2, 2..3, 3..4]);
        assert_eq!(cut(3, 4), vec![0..0, 0..1, 1..2, 2..3]);
        assert_eq!(cut(6, 4), vec![0..1, 1..3, 3..4, 4..6]);
    }

    #[test]
    fn ranks_that_hold_part_of_the_lanes_and_add_get_the_bits_of_one_rank() {
        let lanes: Vec<Vec<f32>> = (0..4)
            .map(|l| {
                (0..3000)
                    .map(|i| ((l * 7919 + i * 104729) % 1000) as f32 / 7.0 - 70.0)
                    .collect()
            })
            .collect();
        let sum = |range: Range<usize>| {
            let parts: Vec<_> = range.map(|l| Some(&lanes[l][..])).collect();
            let mut out = vec![f32::NAN; 3000];
            tree_sum(&parts, &mut out);
            out
        };
        let whole = sum(0..4);
        let (a, b) = (sum(0..2), sum(2..4));
        let two: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        assert_eq!(whole, two);
        for i in 0..3000 {
            assert_eq!(
                whole[i],
                (lanes[0][i] + lanes[1][i]) + (lanes[2][i] + lanes[3][i])
            );
        }
    }

    #[test]
    fn ranks_cut_a_micro_batch_at_lanes_without_gap() {
        for (lanes, ranks) in [(4, 1), (4, 2), (4, 3), (4, 4), (3, 3), (6, 4), (5, 2)] {
            for images in 0..20 {
                let mut next = 0;
                let mut all = vec![];
                for rank in 0..ranks {
                    let l = Lanes::of_rank(lanes, rank, ranks, images);
                    let own = l.images().unwrap();
                    assert_eq!(own.start, next);
                    next = own.end;
                    let moved = l.cut(own.len());
                    all.extend(
                        moved
                            .into_iter()
                            .map(|r| r.start + own.start..r.end + own.start),
                    );
                }
                assert_eq!(next, images);
                assert_eq!(all, cut(images, lanes));
            }
        }
    }

    #[test]
    fn subtrees_join_in_the_order_of_the_whole_tree() {
        let show = |range: Range<usize>| {
            tree(range, &mut |l| Some(l.to_string()), &mut |a, b| {
                format!("({a} {b})")
            })
        };
        for (lanes, ranks) in [(4, 2), (4, 3), (5, 2), (7, 3), (6, 4), (1, 1)] {
            let nodes: Vec<_> = (0..ranks)
                .flat_map(|r| nodes(lanes, lanes_of(r, ranks, lanes)))
                .collect();
            let values = nodes.iter().map(|n| show(n.clone())).collect();
            let whole = tree_of_nodes(lanes, &nodes, values, &mut |a, b| format!("({a} {b})"));
            assert_eq!(whole, show(0..lanes), "{lanes} lanes, {ranks} ranks");
        }
    }

    #[test]
    fn an_empty_lane_adds_nothing() {
        let mut out = [0.0; 2];
        tree_sum(&[None, Some(&[1.0, -0.0]), None, None], &mut out);
        assert_eq!(out.map(f32::to_bits), [1.0, -0.0].map(f32::to_bits));
        tree_sum(&[None, None], &mut out);
        assert_eq!(out, [0.0, 0.0]);
    }
}
