//! A validation part that is held out of the training images where a data set has none of its own.
//!
//! Whether an image is held out is a function of its name alone: adding images moves none of the others (but
//! for sets so small that the rule "at least one" decides), and neither does the order, the machine or the
//! format of the labels.

/// Which side of a held-out split is wanted, and the part that is held out, 0…1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Part {
    Training(f64),
    HeldOut(f64),
}

/// Indices of the images of one side, in order. Both sides have at least one image; of a single one both.
///
/// Images of one photograph stay together, see [`photograph`].
pub(crate) fn choose(names: &[&str], part: Part) -> Vec<usize> {
    let (is_held_out, wanted) = sides(names, part);
    (0..names.len())
        .filter(|&index| is_held_out[index] == wanted)
        .collect()
}

fn sides(names: &[&str], part: Part) -> (Vec<bool>, bool) {
    let (share, wanted) = match part {
        Part::Training(share) => (share, false),
        Part::HeldOut(share) => (share, true),
    };
    let places: Vec<u64> = names.iter().map(|name| place(photograph(name))).collect();
    let (Some(&lowest), Some(&highest)) = (places.iter().min(), places.iter().max()) else {
        return (Vec::new(), wanted);
    };
    if lowest == highest {
        return (vec![wanted; names.len()], wanted);
    }
    let limit = share * 2f64.powi(64);
    let is_held_out = places
        .iter()
        .map(|&place| place == lowest || (place != highest && (place as f64) < limit))
        .collect();
    (is_held_out, wanted)
}

/// What the split goes by: the file's name without folders and extension, and without what one labelling site
/// appends to the copies that its augmentation writes (`cat_jpg.rf.0123abcd.jpg`), so that no copy of a
/// training image is validated with.
fn photograph(name: &str) -> &str {
    let name = name.rsplit(['/', '\\']).next().unwrap_or(name);
    if let Some((before, _)) = name.split_once(".rf.") {
        return before;
    }
    match name.rsplit_once('.') {
        Some((stem, _)) if !stem.is_empty() => stem,
        _ => name,
    }
}

/// FNV-1a, then the finisher of SplitMix64, which spreads what similar names have in common.
fn place(name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let z = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn held_out<'n>(names: &[&'n str]) -> BTreeSet<&'n str> {
        choose(names, Part::HeldOut(0.1))
            .into_iter()
            .map(|index| names[index])
            .collect()
    }

    #[test]
    fn a_tenth_of_many_images_is_held_out_and_adding_images_moves_none() {
        let names: Vec<String> = (0..5000).map(|i| format!("images/{i:06}.jpg")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let of_all = held_out(&names);
        assert!((430..570).contains(&of_all.len()), "{}", of_all.len());
        let half = held_out(&names[..2500]);
        assert!(half.iter().all(|name| of_all.contains(name)));
        let kept: BTreeSet<&str> = names[..2500]
            .iter()
            .copied()
            .filter(|name| !half.contains(name))
            .collect();
        assert!(kept.is_disjoint(&of_all));
    }

    #[test]
    fn folders_extensions_and_augmented_copies_do_not_matter() {
        assert_eq!(photograph("a/b/cat_jpg.rf.0a1b.jpg"), "cat_jpg");
        assert_eq!(photograph("a\\cat.v2.png"), "cat.v2");
        assert_eq!(photograph(".jpg"), ".jpg");
        // Fixed for all time: another value would move images of data sets that exist.
        assert_eq!(
            place("000000000139"),
            place(photograph("x/000000000139.jpg"))
        );
    }

    #[test]
    fn two_images_are_one_each_and_one_is_both() {
        assert_eq!(held_out(&["a.jpg", "b.jpg"]).len(), 1);
        assert_eq!(choose(&["a.jpg", "b.jpg"], Part::Training(0.1)).len(), 1);
        assert_eq!(choose(&["a.jpg"], Part::Training(0.1)), [0]);
        assert_eq!(choose(&["a.jpg"], Part::HeldOut(0.1)), [0]);
        assert!(choose(&[], Part::HeldOut(0.1)).is_empty());
    }

    proptest! {
        #[test]
        fn the_sides_are_disjoint_complete_and_never_empty(
            names in prop::collection::btree_set("[a-z0-9]{1,6}", 2..60), share in 0.0..1.0f64,
        ) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let held = choose(&names, Part::HeldOut(share));
            let kept = choose(&names, Part::Training(share));
            prop_assert!(!held.is_empty() && !kept.is_empty());
            let mut all = [held, kept].concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..names.len()).collect::<Vec<_>>());
        }
    }
}
