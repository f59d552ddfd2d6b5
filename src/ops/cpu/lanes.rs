//! Sums over images in an order that does not depend on who computes them.
//!
//! The images of a micro-batch are cut into lanes, contiguous ranges. A sum over images is formed for each lane by
//! itself and then over the lanes in a binary tree: of `l` lanes the first `l.next_power_of_two() / 2` form one
//! subtree, the others the second one, and an empty lane adds nothing. Two ranks that hold two lanes each and add
//! their results get the bits of one rank that holds four.

use std::ops::Range;

/// Images of each lane: lane `l` of `lanes` begins at `floor(l * images / lanes)`.
pub fn cut(images: usize, lanes: usize) -> Vec<Range<usize>> {
    (0..lanes)
        .map(|l| l * images / lanes..(l + 1) * images / lanes)
        .collect()
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
        len => {
            let half = range.start + len.next_power_of_two() / 2;
            let left = tree(range.start..half, leaf, join);
            let right = tree(half..range.end, leaf, join);
            match (left, right) {
                (Some(a), Some(b)) => Some(join(a, b)),
                (a, b) => a.or(b),
            }
        }
    }
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
    fn an_empty_lane_adds_nothing() {
        let mut out = [0.0; 2];
        tree_sum(&[None, Some(&[1.0, -0.0]), None, None], &mut out);
        assert_eq!(out.map(f32::to_bits), [1.0, -0.0].map(f32::to_bits));
        tree_sum(&[None, None], &mut out);
        assert_eq!(out, [0.0, 0.0]);
    }
}
