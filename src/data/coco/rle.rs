//! Run-length masks of COCO, as far as a box needs them: the extent of the ones.
//!
//! A mask of `height` x `width` is read column by column; `counts` are the lengths of alternating runs of
//! zeros and ones, beginning with zeros, either plain or packed into a string: base 32, least significant
//! digit first, digit + 48 as a character, bit 5 set where more follow, sign extended from bit 4, and from
//! the fourth count on the difference to the count two before (the COCO API's mask format).

/// Run lengths of the packed form.
///
/// # Errors
/// What is wrong with the text.
pub fn unpack(text: &str) -> Result<Vec<u64>, String> {
    let mut counts: Vec<u64> = Vec::new();
    let mut bytes = text.bytes();
    while let Some(mut byte) = bytes.next() {
        let mut value: i64 = 0;
        let mut shift = 0;
        loop {
            let digit = byte.wrapping_sub(48);
            if digit > 63 || shift > 50 {
                return Err(format!(
                    "the mask's counts hold an unusable `{}`",
                    byte as char
                ));
            }
            value |= i64::from(digit & 0x1f) << shift;
            shift += 5;
            if digit & 0x20 == 0 {
                if digit & 0x10 != 0 {
                    value |= -1 << shift;
                }
                break;
            }
            byte = bytes
                .next()
                .ok_or("the mask's counts end within a number")?;
        }
        if counts.len() > 2 {
            // Counts are below 2^55, so this neither wraps nor leaves i64.
            value += counts[counts.len() - 2] as i64;
        }
        let count = u64::try_from(value).map_err(|_| "the mask has a negative run".to_owned())?;
        if count > u64::from(u32::MAX) {
            return Err("the mask has a run longer than any image".to_owned());
        }
        counts.push(count);
    }
    Ok(counts)
}

/// `[x, y, width, height]` of the ones in a mask of `height` x `width`; `None` if there are none.
///
/// # Errors
/// When the runs are longer than the mask.
pub fn extent(counts: &[u64], height: u64, width: u64) -> Result<Option<[f64; 4]>, String> {
    let cells = height
        .checked_mul(width)
        .filter(|&cells| cells > 0)
        .ok_or_else(|| format!("the mask's size is {height} x {width}"))?;
    let (mut left, mut right) = (u64::MAX, 0);
    let (mut top, mut bottom) = (u64::MAX, 0);
    let mut at: u64 = 0;
    for (index, &count) in counts.iter().enumerate() {
        let end = at.saturating_add(count);
        if end > cells {
            return Err(format!(
                "the mask's runs cover more than its {height} x {width} cells"
            ));
        }
        if index % 2 == 1 && count > 0 {
            let (first, last) = (at, end - 1);
            left = left.min(first / height);
            right = right.max(last / height);
            if first / height == last / height {
                top = top.min(first % height);
                bottom = bottom.max(last % height);
            } else {
                // A run over a column's end touches the bottom row, then the top row.
                top = 0;
                bottom = height - 1;
            }
        }
        at = end;
    }
    if left == u64::MAX {
        return Ok(None);
    }
    let number = |value: u64| value as f64;
    Ok(Some([
        number(left),
        number(top),
        number(right - left + 1),
        number(bottom - top + 1),
    ]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The inverse of [`unpack`], for the property test.
    fn pack(counts: &[u64]) -> String {
        let mut text = String::new();
        for (index, &count) in counts.iter().enumerate() {
            let mut value = count as i64;
            if index > 2 {
                value -= counts[index - 2] as i64;
            }
            loop {
                let mut digit = (value & 0x1f) as u8;
                value >>= 5;
                let more = if digit & 0x10 != 0 {
                    value != -1
                } else {
                    value != 0
                };
                if more {
                    digit |= 0x20;
                }
                text.push((digit + 48) as char);
                if !more {
                    break;
                }
            }
        }
        text
    }

    #[test]
    fn small_masks_have_the_extent_one_sees() {
        // 3 rows, 4 columns; ones in column 1 rows 1..2 and column 2 row 0.
        assert_eq!(extent(&[4, 3, 5], 3, 4), Ok(Some([1.0, 0.0, 2.0, 3.0])));
        assert_eq!(extent(&[4, 1, 7], 3, 4), Ok(Some([1.0, 1.0, 1.0, 1.0])));
        assert_eq!(extent(&[12], 3, 4), Ok(None));
        assert_eq!(extent(&[0, 12], 3, 4), Ok(Some([0.0, 0.0, 4.0, 3.0])));
        assert!(extent(&[10, 9], 3, 4).is_err());
        assert!(extent(&[], 0, 4).is_err());
        assert!(unpack("~~~").is_err());
    }

    proptest! {
        #[test]
        fn packed_counts_unpack_to_themselves(counts in prop::collection::vec(0u64..100_000, 0..30)) {
            prop_assert_eq!(unpack(&pack(&counts)), Ok(counts));
        }

        #[test]
        fn any_text_unpacks_or_is_an_error(text in "\\PC{0,30}") {
            let _ = unpack(&text);
        }

        #[test]
        fn the_extent_is_that_of_the_drawn_mask(counts in prop::collection::vec(0u64..9, 0..12), height in 1u64..8) {
            let cells: u64 = counts.iter().sum();
            let width = cells.div_ceil(height).max(1);
            let mut mask = Vec::new();
            for (index, &count) in counts.iter().enumerate() {
                mask.extend(std::iter::repeat_n(index % 2 == 1, count as usize));
            }
            let ones: Vec<(u64, u64)> = (0..mask.len() as u64)
                .filter(|&at| mask[at as usize])
                .map(|at| (at / height, at % height))
                .collect();
            let expected = ones.iter().map(|p| p.0).min().map(|left| {
                let right = ones.iter().map(|p| p.0).max().unwrap();
                let top = ones.iter().map(|p| p.1).min().unwrap();
                let bottom = ones.iter().map(|p| p.1).max().unwrap();
                [left as f64, top as f64, (right - left + 1) as f64, (bottom - top + 1) as f64]
            });
            prop_assert_eq!(extent(&counts, height, width), Ok(expected));
        }
    }
}
