//! The tree that every sum over lanes is formed in, whoever holds the lanes.
//!
//! It is that of [`crate::ops::cpu::lanes`]: of `l` lanes the first `l.next_power_of_two() / 2` form one subtree, the
//! others the second one, and an empty lane adds nothing (not even the sign of a zero). A rank that holds a whole
//! subtree may add it up by itself and send one value in place of several: the bits are the same.

use std::ops::Range;

use super::buffer::{Element, ReduceOp};
use crate::ops::cpu::lanes::half;

pub use crate::ops::cpu::lanes::{lanes_of, nodes};

/// A step of the evaluation on a stack.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    Leaf(usize),
    Join,
}

/// The order in which the values of some subtrees are joined to the value of the whole.
#[derive(Debug, Clone)]
pub struct Order {
    steps: Vec<Step>,
    leaves: usize,
    depth: usize,
}

/// One of the values that are joined.
#[derive(Debug, Clone, Copy)]
pub enum Leaf<'a, T> {
    /// Adds nothing.
    Empty,
    /// What stands in the output before.
    Output,
    Values(&'a [T]),
}

/// Elements that are joined at a time, so that intermediate values stay in the first cache.
const BLOCK: usize = 1024;

impl Order {
    /// The tree over `whole`, whose leaves are `subtrees`: they are whole subtrees and cover `whole` in order.
    pub fn new(whole: Range<usize>, subtrees: &[Range<usize>]) -> Self {
        fn walk(
            node: Range<usize>,
            subtrees: &[Range<usize>],
            next: &mut usize,
            steps: &mut Vec<Step>,
        ) {
            if node.is_empty() {
                return;
            }
            if subtrees[*next] == node {
                steps.push(Step::Leaf(*next));
                *next += 1;
                return;
            }
            let half = half(&node);
            walk(node.start..half, subtrees, next, steps);
            walk(half..node.end, subtrees, next, steps);
            steps.push(Step::Join);
        }
        let (mut steps, mut next) = (Vec::new(), 0);
        walk(whole, subtrees, &mut next, &mut steps);
        assert_eq!(
            next,
            subtrees.len(),
            "subtrees must cover the lanes in order"
        );
        let (mut now, mut depth) = (0usize, 0);
        for step in &steps {
            match step {
                Step::Leaf(_) => now += 1,
                Step::Join => now -= 1,
            }
            depth = depth.max(now);
        }
        Order {
            steps,
            leaves: next,
            depth,
        }
    }

    /// One leaf for each of `count` lanes.
    pub fn single(count: usize) -> Self {
        let lanes: Vec<_> = (0..count).map(|l| l..l + 1).collect();
        Order::new(0..count, &lanes)
    }

    /// Joins values of any kind, one for each leaf.
    pub fn fold<V>(
        &self,
        leaves: impl IntoIterator<Item = V>,
        mut join: impl FnMut(V, V) -> V,
    ) -> Option<V> {
        let mut leaves: Vec<Option<V>> = leaves.into_iter().map(Some).collect();
        let mut stack: Vec<V> = Vec::with_capacity(self.depth);
        for step in &self.steps {
            match *step {
                Step::Leaf(l) => stack.push(leaves.get_mut(l)?.take()?),
                Step::Join => {
                    let (b, a) = (stack.pop()?, stack.pop()?);
                    stack.push(join(a, b));
                }
            }
        }
        stack.pop()
    }

    /// Joins the leaves, element by element, into `out`; all empty: zeros.
    pub fn run<T: Element>(&self, op: ReduceOp, leaves: &[Leaf<'_, T>], out: &mut [T]) {
        match op {
            ReduceOp::Sum => self.join(T::plus, leaves, out),
            ReduceOp::Max => self.join(T::larger, leaves, out),
            ReduceOp::Min => self.join(T::smaller, leaves, out),
        }
    }

    #[inline(always)]
    fn join<T: Element>(&self, f: impl Fn(T, T) -> T, leaves: &[Leaf<'_, T>], out: &mut [T]) {
        assert_eq!(leaves.len(), self.leaves);
        for leaf in leaves {
            if let Leaf::Values(v) = leaf {
                assert_eq!(v.len(), out.len(), "values of different lengths");
            }
        }
        let mut present = leaves.iter().filter(|l| !matches!(l, Leaf::Empty));
        match (present.next(), present.next(), present.next()) {
            (None, ..) => out.fill(T::zeroed()),
            (Some(Leaf::Values(v)), None, _) => out.copy_from_slice(v),
            (Some(_), None, _) => {}
            (Some(Leaf::Output), Some(Leaf::Values(b)), None) => {
                for (o, &b) in out.iter_mut().zip(*b) {
                    *o = f(*o, b);
                }
            }
            (Some(Leaf::Values(a)), Some(Leaf::Output), None) => {
                for (o, &a) in out.iter_mut().zip(*a) {
                    *o = f(a, *o);
                }
            }
            (Some(Leaf::Values(a)), Some(Leaf::Values(b)), None) => {
                for ((o, &a), &b) in out.iter_mut().zip(*a).zip(*b) {
                    *o = f(a, b);
                }
            }
            _ => self.join_blocks(f, leaves, out),
        }
    }

    #[inline(always)]
    fn join_blocks<T: Element>(
        &self,
        f: impl Fn(T, T) -> T,
        leaves: &[Leaf<'_, T>],
        out: &mut [T],
    ) {
        let mut memory = vec![T::zeroed(); self.depth * BLOCK];
        // Which places of the stack hold a value.
        let mut filled = Vec::with_capacity(self.depth);
        for (i, out) in out.chunks_mut(BLOCK).enumerate() {
            let at = i * BLOCK..i * BLOCK + out.len();
            let n = out.len();
            filled.clear();
            for step in &self.steps {
                match *step {
                    Step::Leaf(l) => {
                        let place = &mut memory[filled.len() * BLOCK..][..n];
                        match leaves[l] {
                            Leaf::Empty => {}
                            Leaf::Output => place.copy_from_slice(out),
                            Leaf::Values(v) => place.copy_from_slice(&v[at.clone()]),
                        }
                        filled.push(!matches!(leaves[l], Leaf::Empty));
                    }
                    Step::Join => {
                        let b = filled.pop().expect("a join follows two values");
                        let top = filled.len() * BLOCK;
                        let (left, right) = memory.split_at_mut(top);
                        let (left, right) = (&mut left[top - BLOCK..][..n], &right[..n]);
                        let a = filled.last_mut().expect("a join follows two values");
                        if *a && b {
                            for (a, &b) in left.iter_mut().zip(right) {
                                *a = f(*a, b);
                            }
                        } else if b {
                            left.copy_from_slice(right);
                        }
                        *a |= b;
                    }
                }
            }
            out.copy_from_slice(&memory[..n]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::cpu::lanes;
    use proptest::prelude::*;

    #[test]
    fn ranks_hold_whole_subtrees_where_their_number_divides_four() {
        assert_eq!(nodes(4, 0..4), vec![0..4]);
        assert_eq!(nodes(4, 2..4), vec![2..4]);
        assert_eq!(nodes(4, 1..4), vec![1..2, 2..4]);
        assert_eq!(nodes(3, 0..2), vec![0..2]);
        assert_eq!(nodes(6, 0..3), vec![0..2, 2..3]);
        for rank in 0..3 {
            assert_eq!(nodes(4, lanes_of(rank, 3, 4)).len(), 1);
        }
    }

    #[test]
    fn values_of_any_kind_are_joined_in_the_same_order() {
        let join = |a: String, b: String| format!("({a}{b})");
        let of = |count: usize| Order::single(count).fold((0..count).map(|l| l.to_string()), join);
        assert_eq!(of(1).as_deref(), Some("0"));
        assert_eq!(of(4).as_deref(), Some("((01)(23))"));
        assert_eq!(of(5).as_deref(), Some("(((01)(23))4)"));
        assert_eq!(of(0), None);
    }

    proptest! {
        /// Over any cut into subtrees the bits are those of `lanes::tree_sum`, which the kernels use.
        #[test]
        fn any_cut_of_the_lanes_gives_the_bits_of_one_rank(
            count in 1usize..12, ranks in 1usize..6, len in prop_oneof![0usize..5, Just(1023usize), Just(2500)],
            seed in any::<u32>(), empty in any::<u16>(),
        ) {
            let ranks = ranks.min(count);
            let value = |l: usize, i: usize| {
                let x = (l as u32 * 7919 + i as u32 * 104_729).wrapping_mul(seed | 1);
                (x % 10_007) as f32 / 7.0 - 700.0
            };
            let parts: Vec<Option<Vec<f32>>> = (0..count)
                .map(|l| (empty >> l & 1 == 0).then(|| (0..len).map(|i| value(l, i)).collect()))
                .collect();
            let views: Vec<Option<&[f32]>> = parts.iter().map(Option::as_deref).collect();
            let mut expected = vec![f32::NAN; len];
            lanes::tree_sum(&views, &mut expected);

            let mut subtrees = Vec::new();
            let mut sums: Vec<Option<Vec<f32>>> = Vec::new();
            for rank in 0..ranks {
                for node in nodes(count, lanes_of(rank, ranks, count)) {
                    let own: Vec<_> = node.clone().map(|l| l..l + 1).collect();
                    let leaves: Vec<_> = node.clone().map(|l| match &parts[l] {
                        Some(v) => Leaf::Values(&v[..]),
                        None => Leaf::Empty,
                    }).collect();
                    let any = node.clone().any(|l| parts[l].is_some());
                    let mut sum = vec![f32::NAN; len];
                    Order::new(node.clone(), &own).run(ReduceOp::Sum, &leaves, &mut sum);
                    sums.push(any.then_some(sum));
                    subtrees.push(node);
                }
            }
            // One of the values stands in the output, as it does on a rank.
            for place in 0..sums.len() {
                let mut out = sums[place].clone().unwrap_or_else(|| vec![f32::NAN; len]);
                let leaves: Vec<_> = sums.iter().enumerate().map(|(i, s)| match s {
                    None => Leaf::Empty,
                    Some(_) if i == place => Leaf::Output,
                    Some(v) => Leaf::Values(&v[..]),
                }).collect();
                Order::new(0..count, &subtrees).run(ReduceOp::Sum, &leaves, &mut out);
                let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(bits(&out), bits(&expected));
            }
        }
    }
}
