//! Results as aligned text.

use console::measure_text_width;

/// One line of the table of classes. A value of -1 does not exist and shows as `-`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassRow<'a> {
    pub name: &'a str,
    pub images: usize,
    pub instances: usize,
    pub precision: f64,
    pub recall: f64,
    pub ap50: f64,
    /// Over IoU 0.5 to 0.95.
    pub ap: f64,
}

/// `rows` beneath a line of titles: the first column to the left, the others to the right, two spaces between. Every line
/// ends with a line feed.
pub fn table(titles: &[&str], rows: &[Vec<String>]) -> String {
    let mut lines: Vec<Vec<&str>> = vec![titles.to_vec()];
    lines.extend(
        rows.iter()
            .map(|row| row.iter().map(String::as_str).collect()),
    );
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells
            .map(|cell| measure_text_width(cell))
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let mut out = String::new();
    for line in &lines {
        let mut text = String::new();
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let padding = " ".repeat(width - measure_text_width(cell));
            if column == 0 {
                text += &format!("{cell}{padding}");
            } else {
                text += &format!("  {padding}{cell}");
            }
        }
        out += text.trim_end();
        out.push('\n');
    }
    out
}

/// One line for each class beneath the line of all.
pub fn class_table(all: &ClassRow<'_>, classes: &[ClassRow<'_>]) -> String {
    let cells = |row: &ClassRow<'_>| {
        let mut cells = vec![
            row.name.to_string(),
            row.images.to_string(),
            row.instances.to_string(),
        ];
        cells.extend([row.precision, row.recall, row.ap50, row.ap].map(figure));
        cells
    };
    let rows: Vec<_> = std::iter::once(all).chain(classes).map(cells).collect();
    table(
        &["class", "images", "instances", "P", "R", "AP50", "AP50-95"],
        &rows,
    )
}

/// The twelve figures (AP AP50 AP75 APs APm APl AR1 AR10 AR100 ARs ARm ARl) on two lines under their names.
pub fn coco_table(figures: &[f64; 12]) -> String {
    let half = |titles: [&str; 6], figures: &[f64]| {
        let cells = std::iter::once("COCO".to_string());
        let cells = cells.chain(figures.iter().copied().map(figure)).collect();
        // Equal widths let the two halves stand beneath each other.
        let mut padded = vec!["    ".to_string()];
        padded.extend(titles.map(|t| format!("{t:>5}")));
        table(
            &padded.iter().map(String::as_str).collect::<Vec<_>>(),
            &[cells],
        )
    };
    let (precision, recall) = figures.split_at(6);
    half(["AP", "AP50", "AP75", "APs", "APm", "APl"], precision)
        + &half(["AR1", "AR10", "AR100", "ARs", "ARm", "ARl"], recall)
}

fn figure(value: f64) -> String {
    if value < 0.0 {
        "-".into()
    } else {
        format!("{value:.3}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str) -> ClassRow<'_> {
        ClassRow {
            name,
            images: 87,
            instances: 1138,
            precision: 0.5,
            recall: 0.25,
            ap50: 0.4449,
            ap: 1.0,
        }
    }

    #[test]
    fn classes_are_aligned_and_what_does_not_exist_is_a_dash() {
        let none = ClassRow {
            instances: 0,
            images: 0,
            precision: -1.0,
            recall: -1.0,
            ap50: -1.0,
            ap: -1.0,
            ..row("Größe 細胞")
        };
        assert_eq!(
            class_table(&row("all"), &[row("a"), none]),
            "\
class       images  instances      P      R   AP50  AP50-95
all             87       1138  0.500  0.250  0.445    1.000
a               87       1138  0.500  0.250  0.445    1.000
Größe 細胞       0          0      -      -      -        -
"
        );
    }

    #[test]
    fn the_twelve_figures_stand_beneath_their_names() {
        let mut figures = [0.5; 12];
        figures[3] = -1.0;
        figures[8] = 0.98765;
        assert_eq!(
            coco_table(&figures),
            "         AP   AP50   AP75    APs    APm    APl
COCO  0.500  0.500  0.500      -  0.500  0.500
        AR1   AR10  AR100    ARs    ARm    ARl
COCO  0.500  0.500  0.988  0.500  0.500  0.500
"
        );
    }
}
