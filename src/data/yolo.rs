//! YOLO txt labels: one row a box, `class x_centre y_centre width height` as fractions of the image, or
//! `class x1 y1 x2 y2 x3 y3 …`, a polygon whose extent is the box.

use std::path::{Component, Path, PathBuf};

/// Fractions may leave 0…1 by this much.
pub const TOLERANCE: f64 = 0.01;

/// A row's content in fractions of the image: centre and size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    pub class: usize,
    /// `[x_centre, y_centre, width, height]`.
    pub xywh: [f64; 4],
}

impl Row {
    /// `[x, y, width, height]` in pixels of an image of `width` x `height`, unclipped.
    pub fn to_pixels(self, width: u32, height: u32) -> [f64; 4] {
        let [xc, yc, w, h] = self.xywh;
        let (width, height) = (f64::from(width), f64::from(height));
        [
            (xc - w / 2.0) * width,
            (yc - h / 2.0) * height,
            w * width,
            h * height,
        ]
    }
}

impl std::fmt::Display for Row {
    /// The row as a line of a label file; reading it gives the same row.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [xc, yc, w, h] = self.xywh;
        write!(f, "{} {xc} {yc} {w} {h}", self.class)
    }
}

/// A row that cannot be used: its line from 1, its text (shortened), and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadRow {
    pub line: usize,
    pub value: String,
    pub reason: String,
}

/// The rows of a label file with their line numbers, and the malformed ones.
///
/// Blank lines, tabs, CRLF and a UTF-8 byte-order mark are fine. `classes` is the number of classes.
pub fn parse(bytes: &[u8], classes: usize) -> (Vec<(usize, Row)>, Vec<BadRow>) {
    let mut rows = Vec::new();
    let mut bad = Vec::new();
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        bad.push(BadRow {
            line: 1,
            value: String::new(),
            reason: "the file is UTF-16; save it as UTF-8".to_owned(),
        });
        return (rows, bad);
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    for (index, line) in bytes.split(|byte| matches!(byte, b'\n')).enumerate() {
        let text = String::from_utf8_lossy(line);
        let text = text.trim();
        if text.is_empty() {
            continue;
        }
        match parse_row(text, classes) {
            Ok(row) => rows.push((index + 1, row)),
            Err(reason) => bad.push(BadRow {
                line: index + 1,
                value: shortened(text),
                reason,
            }),
        }
    }
    (rows, bad)
}

/// One row.
///
/// # Errors
/// What is wrong with it, for a message that shows the row beside it.
pub fn parse_row(text: &str, classes: usize) -> Result<Row, String> {
    let mut columns = text.split_whitespace();
    let class = columns.next().ok_or("the row is empty")?;
    let class = parse_class(class, classes)?;
    let mut values = Vec::with_capacity(4);
    for (index, column) in columns.enumerate() {
        let place = index + 2;
        let value: f64 = column
            .parse()
            .map_err(|_| format!("column {place}, `{column}`, is not a number"))?;
        if !value.is_finite() {
            return Err(format!("column {place}, `{column}`, is not finite"));
        }
        if !(-TOLERANCE..=1.0 + TOLERANCE).contains(&value) {
            let hint = if value > 2.0 {
                "; are these pixels? divide by the image's width and height"
            } else {
                ""
            };
            return Err(format!(
                "column {place} is {column}, outside 0…1 (fractions of the image){hint}"
            ));
        }
        values.push(value);
    }
    match values[..] {
        [xc, yc, w, h] => {
            if w < 0.0 || h < 0.0 {
                return Err("width and height must not be negative".to_owned());
            }
            Ok(Row {
                class,
                xywh: [xc, yc, w, h],
            })
        }
        ref polygon if polygon.len() >= 6 && polygon.len() % 2 == 0 => Ok(Row {
            class,
            xywh: extent(polygon),
        }),
        ref polygon if polygon.len() >= 6 => Err(format!(
            "{} coordinates: a polygon has an x and a y for every point, an even number",
            polygon.len()
        )),
        ref other => Err(format!(
            "{} columns: a box has 5 (class, x centre, y centre, width, height), a polygon 7 or more",
            other.len() + 1
        )),
    }
}

fn parse_class(text: &str, classes: usize) -> Result<usize, String> {
    let class = match text.parse::<u64>() {
        Ok(class) => class,
        // Some exporters write the class as a float: 3.0, 3.000000.
        Err(_) => match text.parse::<f64>() {
            Ok(value) if value >= 0.0 && value.fract() == 0.0 && value < 1e9 => value as u64,
            _ => return Err(format!("the class `{text}` is not a whole number from 0")),
        },
    };
    match usize::try_from(class) {
        Ok(class) if class < classes => Ok(class),
        _ => Err(format!(
            "class {class} does not exist: there are {classes}, numbered 0…{}",
            classes.saturating_sub(1)
        )),
    }
}

/// Centre and size of the extent of `x1 y1 x2 y2 …`.
fn extent(polygon: &[f64]) -> [f64; 4] {
    let range = |offset: usize| {
        polygon
            .iter()
            .skip(offset)
            .step_by(2)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &v| {
                (low.min(v), high.max(v))
            })
    };
    let ((left, right), (top, bottom)) = (range(0), range(1));
    [
        (left + right) / 2.0,
        (top + bottom) / 2.0,
        right - left,
        bottom - top,
    ]
}

fn shortened(text: &str) -> String {
    const LONGEST: usize = 80;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Where an image's labels lie: its path with the last component `images` replaced by `labels` and the
/// extension `.txt`, then (or without such a component) beside the image.
pub fn label_paths(image: &Path) -> Vec<PathBuf> {
    let beside = image.with_extension("txt");
    let parts: Vec<Component> = image.components().collect();
    let folders = &parts[..parts.len().saturating_sub(1)];
    let Some(last) = folders
        .iter()
        .rposition(|part| part.as_os_str() == "images")
    else {
        return vec![beside];
    };
    let mut parallel = PathBuf::new();
    for (index, part) in parts.iter().enumerate() {
        if index == last {
            parallel.push("labels");
        } else {
            parallel.push(part);
        }
    }
    vec![parallel.with_extension("txt"), beside]
}

/// A further place of an image's labels, tried where [`label_paths`] has none: beside a folder of images of
/// any spelling (`Images`), in the first of the folders `labels`, `Labels`, `annotations`, `Annotations` that
/// exists.
pub fn labels_elsewhere(image: &Path) -> Option<PathBuf> {
    let parts: Vec<Component> = image.components().collect();
    let folders = &parts[..parts.len().saturating_sub(1)];
    let last = folders.iter().rposition(|part| {
        part.as_os_str()
            .to_string_lossy()
            .eq_ignore_ascii_case("images")
    })?;
    let above: PathBuf = parts[..last].iter().collect();
    let folder = ["labels", "Labels", "annotations", "Annotations"]
        .iter()
        .map(|name| above.join(name))
        .find(|path| path.is_dir())?;
    let below: PathBuf = parts[last + 1..].iter().collect();
    Some(folder.join(below).with_extension("txt"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reason(text: &str) -> String {
        parse_row(text, 3).expect_err(text)
    }

    #[test]
    fn rows_of_every_harmless_dialect_are_read() {
        let text =
            b"\xef\xbb\xbf0 0.5 0.5 0.25 0.5\r\n\r\n1\t0.1\t0.2\t0.1\t0.1\r\n  \n2.0 .5 5e-1 1 1";
        let (rows, bad) = parse(text, 3);
        assert_eq!(bad, []);
        let lines: Vec<_> = rows.iter().map(|(line, row)| (*line, row.class)).collect();
        assert_eq!(lines, [(1, 0), (3, 1), (5, 2)]);
        assert_eq!(rows[0].1.xywh, [0.5, 0.5, 0.25, 0.5]);
        assert_eq!(rows[0].1.to_pixels(640, 480), [240.0, 120.0, 160.0, 240.0]);
    }

    #[test]
    fn a_polygon_becomes_its_extent_and_may_stand_among_boxes() {
        let (rows, bad) = parse(b"0 0.1 0.2 0.5 0.2 0.3 0.8\n1 0.5 0.5 0.1 0.1\n", 3);
        assert_eq!(bad, []);
        let [xc, yc, w, h] = rows[0].1.xywh;
        let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(near(xc, 0.3) && near(yc, 0.5) && near(w, 0.4) && near(h, 0.6));
        assert_eq!(rows.len(), 2);
    }

    #[test]
    fn malformed_rows_say_what_is_wrong() {
        assert!(reason("0 0.5 0.5 0.1").contains("4 columns"));
        assert!(reason("0 0.5 0.5 0.1 0.1 0.9").contains("6 columns"));
        assert!(reason("0 0.1 0.1 0.2 0.2 0.3 0.3 0.4").contains("even number"));
        assert!(reason("3 0.5 0.5 0.1 0.1").contains("class 3 does not exist: there are 3"));
        assert!(reason("-1 0.5 0.5 0.1 0.1").contains("`-1` is not a whole number"));
        assert!(reason("1.5 0.5 0.5 0.1 0.1").contains("`1.5` is not a whole number"));
        assert!(reason("cat 0.5 0.5 0.1 0.1").contains("`cat`"));
        assert!(reason("0 320 240 50 60").contains("are these pixels?"));
        assert!(reason("0 1.02 0.5 0.1 0.1").contains("outside 0…1"));
        assert!(reason("0 0.5 -0.02 0.1 0.1").contains("column 3 is -0.02"));
        assert!(reason("0 0.5 0.5 -0.005 0.1").contains("negative"));
        assert!(reason("0 nan 0.5 0.1 0.1").contains("not finite"));
        assert!(reason("0 0.5 0.5 inf 0.1").contains("not finite"));
        assert!(reason("0 0,5 0.5 0.1 0.1").contains("`0,5`, is not a number"));
        assert!(parse_row("0 1.01 -0.01 0.1 0.1", 3).is_ok());
        let (rows, bad) = parse(b"\xff\xfe0\0 \0", 3);
        assert!(rows.is_empty() && bad[0].reason.contains("UTF-16"));
    }

    #[test]
    fn labels_lie_in_the_parallel_tree_or_beside_the_image() {
        let paths = |image: &str| {
            label_paths(Path::new(image))
                .iter()
                .map(|path| path.to_string_lossy().into_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            paths("/d/images/set/images/train/a.b.jpg"),
            [
                "/d/images/set/labels/train/a.b.txt",
                "/d/images/set/images/train/a.b.txt"
            ]
        );
        assert_eq!(paths("d/train/a.jpg"), ["d/train/a.txt"]);
        assert_eq!(paths("images"), ["images.txt"]);
    }

    proptest! {
        #[test]
        fn a_printed_row_reads_back_as_itself(
            class in 0usize..80, xywh in prop::array::uniform4(0.0..=1.0f64),
        ) {
            let row = Row { class, xywh };
            prop_assert_eq!(parse_row(&row.to_string(), 80), Ok(row));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic_and_no_row_is_lost(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let (rows, bad) = parse(&bytes, 3);
            let lines = bytes.split(|b| *b == b'\n').count();
            prop_assert!(rows.len() + bad.len() <= lines.max(1));
        }

        #[test]
        fn rows_with_noise_in_them_are_errors_or_valid(text in "[0-9. eE+-]{0,60}") {
            if let Ok(row) = parse_row(&text, 3) {
                prop_assert!(row.class < 3 && row.xywh.iter().all(|v| v.is_finite()));
            }
        }
    }
}
