//! Colours of classes.

use super::Colour;

/// The eight colours of Okabe and Ito (2008, "Color Universal Design"), which people with any of the usual kinds of colour
/// blindness can tell apart, without black; the order puts the most different ones first.
const BASE: [Colour; 7] = [
    [0, 114, 178],   // blue
    [230, 159, 0],   // orange
    [0, 158, 115],   // bluish green
    [204, 121, 167], // reddish purple
    [86, 180, 233],  // sky blue
    [213, 94, 0],    // vermilion
    [240, 228, 66],  // yellow
];

/// The colour of a class: always the same. More classes than colours get lighter and darker ones, then the same again; the
/// name beside a box says the rest.
#[must_use]
pub fn class_colour(class: usize) -> Colour {
    let base = BASE[class % BASE.len()];
    match class / BASE.len() % 3 {
        0 => base,
        1 => base.map(|v| (u16::from(v) * 3 / 5) as u8),
        _ => base.map(|v| (255 - (255 - u16::from(v)) / 2) as u8),
    }
}

/// Black or white, whichever has the greater contrast on `ground` (relative luminance and contrast of WCAG 2.2).
#[must_use]
pub fn ink_on(ground: Colour) -> Colour {
    // contrast with white is 1.05 / (l + 0.05), with black (l + 0.05) / 0.05: equal at l = 0.179
    if luminance(ground) > 0.179 {
        [0; 3]
    } else {
        [255; 3]
    }
}

fn luminance(colour: Colour) -> f64 {
    let [r, g, b] = colour.map(|v| {
        let v = f64::from(v) / 255.0;
        if v <= 0.04045 {
            v / 12.92
        } else {
            ((v + 0.055) / 1.055).powf(2.4)
        }
    });
    0.2126 * r + 0.7152 * g + 0.0722 * b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_21_classes_have_different_colours_and_each_keeps_its_own() {
        let mut colours: Vec<Colour> = (0..21).map(class_colour).collect();
        assert_eq!(class_colour(21), colours[0]);
        colours.sort_unstable();
        colours.dedup();
        assert_eq!(colours.len(), 21);
    }

    #[test]
    fn letters_stand_out_from_every_colour() {
        assert_eq!(ink_on([255; 3]), [0; 3]);
        assert_eq!(ink_on([0; 3]), [255; 3]);
        for class in 0..21 {
            let ground = class_colour(class);
            let (a, b) = (luminance(ground), luminance(ink_on(ground)));
            let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
            assert!(contrast >= 4.5, "{ground:?}: {contrast}");
        }
    }
}
