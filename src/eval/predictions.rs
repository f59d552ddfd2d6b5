//! predictions.json in the COCO results format.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use serde::Serialize;

use super::results::{CocoDetection, image_at};
use super::{Detection, EvalError};
use crate::data::Split;
use crate::report::files::write_atomic_with;

/// Collects detections and writes them as `[{image_id, category_id, bbox: [x, y, width, height], score}, …]`, with
/// `file_name` too where the ids of the images are not in a file of the user's.
///
/// Numbers are written in the shortest form that reads back to the same bits, and are those that `Evaluator` scores for
/// the same detections. One detection a line, images in the order of the split, each image's detections as given.
#[derive(Debug, Clone)]
pub struct Predictions<'a> {
    pub(super) split: &'a Split,
    /// By image index.
    pub(super) images: BTreeMap<usize, Vec<CocoDetection>>,
}

#[derive(Serialize)]
struct Row<'a> {
    image_id: u64,
    category_id: u64,
    bbox: [f64; 4],
    score: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_name: Option<&'a str>,
}

impl<'a> Predictions<'a> {
    pub fn new(split: &'a Split) -> Self {
        Self {
            split,
            images: BTreeMap::new(),
        }
    }

    /// The detections of `split.images[image_index]`, in pixels of the original image.
    ///
    /// # Errors
    /// As `Evaluator::add`.
    pub fn add(&mut self, image_index: usize, detections: &[Detection]) -> Result<(), EvalError> {
        let image = image_at(self.split, image_index)?;
        if self.images.contains_key(&image_index) {
            return Err(EvalError::ImageTwice {
                file: image.file_name.clone(),
            });
        }
        let rows = detections
            .iter()
            .map(|d| CocoDetection::new(self.split, image, d))
            .collect::<Result<_, _>>()?;
        self.images.insert(image_index, rows);
        Ok(())
    }

    /// The split, and the images that were added with their detections, in its order.
    pub(super) fn images(&self) -> (&'a Split, impl Iterator<Item = (usize, &[CocoDetection])>) {
        let images = self.images.iter();
        (
            self.split,
            images.map(|(&index, found)| (index, found.as_slice())),
        )
    }

    /// The detections of `split.images[image_index]`, as [`add`](Self::add) took them; none where it took none.
    #[must_use]
    pub fn of(&self, image_index: usize) -> Vec<Detection> {
        let rows = self.images.get(&image_index).into_iter().flatten();
        rows.filter_map(|row| {
            let [x, y, width, height] = row.bbox;
            let ids = &self.split.category_ids;
            Some(Detection {
                xyxy: [x, y, x + width, y + height].map(|v| v as f32),
                score: row.score as f32,
                class: ids.iter().position(|&id| id == row.category_id)?,
            })
        })
        .collect()
    }

    /// # Errors
    /// What writing the file reports.
    pub fn write(&self, path: &Path) -> Result<(), EvalError> {
        write_atomic_with(path, |out| self.write_to(out)).map_err(|source| EvalError::Write {
            path: path.to_owned(),
            source,
        })
    }

    fn write_to(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let mut separator = "[\n";
        for (&index, detections) in &self.images {
            let image = &self.split.images[index];
            for d in detections {
                out.write_all(separator.as_bytes())?;
                separator = ",\n";
                let row = Row {
                    image_id: image.id,
                    category_id: d.category_id,
                    bbox: d.bbox,
                    score: d.score,
                    file_name: (!self.split.image_id_in_file).then_some(&image.file_name),
                };
                serde_json::to_writer(&mut *out, &row)?;
            }
        }
        out.write_all(if separator == "[\n" {
            b"[]\n"
        } else {
            b"\n]\n"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::testing::{image, split};

    fn written(predictions: &Predictions<'_>) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("predictions.json");
        predictions.write(&path).unwrap();
        std::fs::read_to_string(path).unwrap()
    }

    fn detection(xyxy: [f32; 4], score: f32, class: usize) -> Detection {
        Detection { xyxy, score, class }
    }

    #[test]
    fn rows_carry_original_ids_width_and_height_and_shortest_numbers() {
        let split = split(&[7, 90], vec![image(42, vec![]), image(17, vec![])]);
        let mut p = Predictions::new(&split);
        p.add(1, &[detection([1.0, 2.5, 11.0, 22.5], 0.5, 1)])
            .unwrap();
        p.add(0, &[detection([0.1, 0.0, 0.3, 1.0], 0.9, 0)])
            .unwrap();
        let w = f64::from(0.3_f32) - f64::from(0.1_f32);
        assert_eq!(
            written(&p),
            format!(
                "[\n{}{w}{}\n]\n",
                r#"{"image_id":42,"category_id":7,"bbox":[0.10000000149011612,0.0,"#,
                concat!(
                    r#",1.0],"score":0.8999999761581421},"#,
                    "\n",
                    r#"{"image_id":17,"category_id":90,"bbox":[1.0,2.5,10.0,20.0],"score":0.5}"#
                )
            )
        );
    }

    #[test]
    fn ids_that_are_in_no_file_come_with_the_file_name() {
        let mut split = split(&[0], vec![image(0, vec![])]);
        split.image_id_in_file = false;
        let mut p = Predictions::new(&split);
        p.add(0, &[detection([0.0, 0.0, 1.0, 1.0], 1.0, 0)])
            .unwrap();
        let rows: serde_json::Value = serde_json::from_str(&written(&p)).unwrap();
        assert_eq!(rows[0]["file_name"], "0.jpg");
    }

    #[test]
    fn detections_come_back_as_they_were_given() {
        let split = split(&[7, 90], vec![image(42, vec![]), image(17, vec![])]);
        let mut p = Predictions::new(&split);
        let given = [
            detection([1.25, 2.5, 11.0, 22.5], 0.5, 1),
            detection([0.0, 0.0, 1.0, 1.0], 0.25, 0),
        ];
        p.add(1, &given).unwrap();
        assert_eq!(p.of(1), given);
        assert_eq!(p.of(0), []);
    }

    #[test]
    fn no_detections_give_an_empty_list() {
        let split = split(&[0], vec![image(0, vec![])]);
        let mut p = Predictions::new(&split);
        p.add(0, &[]).unwrap();
        assert_eq!(written(&p), "[]\n");
    }

    #[test]
    fn a_detection_that_json_cannot_hold_is_an_error_with_the_file() {
        let split = split(&[0], vec![image(3, vec![])]);
        let mut p = Predictions::new(&split);
        let e = p.add(0, &[detection([0.0, f32::NAN, 1.0, 1.0], 0.5, 0)]);
        assert!(
            e.unwrap_err()
                .to_string()
                .starts_with("3.jpg: a detection is not finite")
        );
        let e = p.add(0, &[detection([0.0; 4], 0.5, 1)]);
        assert!(
            e.unwrap_err()
                .to_string()
                .contains("class 1, but the data set has 1 classes (0 to 0)")
        );
        assert!(
            p.add(1, &[])
                .unwrap_err()
                .to_string()
                .contains("image index 1")
        );
    }

    proptest::proptest! {
        #[test]
        fn every_number_reads_back_to_the_bits_that_the_evaluator_sees(
            xyxy in proptest::array::uniform4(-1e4_f32..1e4),
            score in 0.0_f32..1.0,
        ) {
            let split = split(&[3], vec![image(1, vec![])]);
            let d = detection(xyxy, score, 0);
            let mut p = Predictions::new(&split);
            p.add(0, &[d]).unwrap();
            let mut text = Vec::new();
            p.write_to(&mut text).unwrap();
            let rows: serde_json::Value = serde_json::from_slice(&text).unwrap();
            let seen = CocoDetection::new(&split, &split.images[0], &d).unwrap();
            for i in 0..4 {
                let read = rows[0]["bbox"][i].as_f64().unwrap();
                proptest::prop_assert_eq!(read.to_bits(), seen.bbox[i].to_bits());
            }
            proptest::prop_assert_eq!(rows[0]["score"].as_f64().unwrap().to_bits(), seen.score.to_bits());
        }
    }
}
