//! results.csv: one row for each epoch.

use std::io;
use std::path::{Path, PathBuf};

use super::files::write_atomic;
use super::six_digits;

/// The third of the three losses, by the kind of box regression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThirdLoss {
    /// Networks that regress distances directly (yolo26).
    L1,
    /// Networks that regress a distribution over distances (yolo11, yolov8).
    Dfl,
}

impl ThirdLoss {
    /// Its name in columns and on the console.
    pub fn name(self) -> &'static str {
        match self {
            Self::L1 => "l1",
            Self::Dfl => "dfl",
        }
    }
}

/// One epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct ResultsRow {
    /// Counted from 1.
    pub epoch: usize,
    /// Seconds since training started.
    pub seconds: f64,
    /// Mean training losses of the epoch: box, class, third.
    pub train: [f64; 3],
    /// `None` where the epoch was not validated; its cells stay empty.
    pub validation: Option<ValidationResults>,
    /// Learning rate of each parameter group at the end of the epoch.
    pub learning_rates: Vec<f64>,
}

/// The validation part of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValidationResults {
    /// At the best mean F1, IoU 0.5.
    pub precision: f64,
    pub recall: f64,
    /// AP AP50 AP75 APs APm APl AR1 AR10 AR100 ARs ARm ARl; -1 where a figure does not exist.
    pub coco: [f64; 12],
    /// Mean validation losses: box, class, third.
    pub losses: [f64; 3],
}

const COCO_COLUMNS: [&str; 12] = [
    "AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl",
];

/// The file and its rows.
///
/// Columns have the names that tools for the YOLO family expect, followed by the twelve COCO figures; numbers have six
/// significant digits. Every push rewrites the whole file under a temporary name and renames it: a few kilobytes an
/// epoch, in exchange for a file that is never cut off in the middle of a row.
#[derive(Debug, Clone)]
pub struct ResultsCsv {
    path: PathBuf,
    groups: usize,
    text: String,
}

impl ResultsCsv {
    /// A table without rows; nothing is written before the first row. `groups` is the number of parameter groups.
    pub fn new(path: &Path, third: ThirdLoss, groups: usize) -> Self {
        let third = third.name();
        let losses = |part: &str| ["box", "cls", third].map(|loss| format!("{part}/{loss}_loss"));
        let mut columns = vec!["epoch".to_string(), "time".to_string()];
        columns.extend(losses("train"));
        columns.extend(
            ["precision(B)", "recall(B)", "mAP50(B)", "mAP50-95(B)"]
                .map(|m| format!("metrics/{m}")),
        );
        columns.extend(losses("val"));
        columns.extend((0..groups).map(|g| format!("lr/pg{g}")));
        columns.extend(COCO_COLUMNS.map(|c| format!("metrics/coco_{c}")));
        Self {
            path: path.to_owned(),
            groups,
            text: columns.join(",") + "\n",
        }
    }

    /// The whole text so far.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Goes on after `text`, which [`Self::text`] gave.
    ///
    /// # Errors
    /// What writing reports, with the path.
    pub fn go_on(&mut self, text: &str) -> io::Result<()> {
        self.text = text.to_owned();
        write_atomic(&self.path, self.text.as_bytes())
    }

    /// Adds a row and writes the file.
    ///
    /// # Errors
    /// What writing reports, with the path; the row is kept and written with the next one. A row with another number of
    /// learning rates is refused (`InvalidInput`).
    pub fn push(&mut self, row: &ResultsRow) -> io::Result<()> {
        if row.learning_rates.len() != self.groups {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "{}: a row of {} learning rates, but the columns are for {}",
                    self.path.display(),
                    row.learning_rates.len(),
                    self.groups
                ),
            ));
        }
        let validation =
            |values: &dyn Fn(&ValidationResults) -> Vec<f64>, n: usize| match &row.validation {
                Some(v) => values(v).into_iter().map(six_digits).collect(),
                None => vec![String::new(); n],
            };
        let mut cells = vec![row.epoch.to_string(), six_digits(row.seconds)];
        cells.extend(row.train.map(six_digits));
        cells.extend(validation(
            &|v| vec![v.precision, v.recall, v.coco[1], v.coco[0]],
            4,
        ));
        cells.extend(validation(&|v| v.losses.to_vec(), 3));
        cells.extend(row.learning_rates.iter().copied().map(six_digits));
        cells.extend(validation(&|v| v.coco.to_vec(), 12));
        self.text += &cells.join(",");
        self.text.push('\n');
        write_atomic(&self.path, self.text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(epoch: usize, validated: bool) -> ResultsRow {
        ResultsRow {
            epoch,
            seconds: 12.3456789 * epoch as f64,
            train: [3.5, 4.25, 0.001234567],
            validation: validated.then_some(ValidationResults {
                precision: 0.75,
                recall: 1.0 / 3.0,
                coco: [
                    0.1, 0.2, 0.3, -1.0, 0.5, 0.6, 0.07, 0.08, 0.09, -1.0, 0.11, 0.12,
                ],
                losses: [1.0, 2.0, 3e-5],
            }),
            learning_rates: vec![0.01, 0.00333333333, 1e-6],
        }
    }

    #[test]
    fn the_file_has_the_expected_columns_and_is_rewritten_with_each_row() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.csv");
        let mut csv = ResultsCsv::new(&path, ThirdLoss::L1, 3);
        assert!(!path.exists());
        csv.push(&row(1, true)).unwrap();
        csv.push(&row(2, false)).unwrap();
        let golden = "\
epoch,time,train/box_loss,train/cls_loss,train/l1_loss,\
metrics/precision(B),metrics/recall(B),metrics/mAP50(B),metrics/mAP50-95(B),\
val/box_loss,val/cls_loss,val/l1_loss,lr/pg0,lr/pg1,lr/pg2,\
metrics/coco_AP,metrics/coco_AP50,metrics/coco_AP75,metrics/coco_APs,metrics/coco_APm,metrics/coco_APl,\
metrics/coco_AR1,metrics/coco_AR10,metrics/coco_AR100,metrics/coco_ARs,metrics/coco_ARm,metrics/coco_ARl
1,12.3457,3.5,4.25,0.00123457,0.75,0.333333,0.2,0.1,1,2,3e-05,0.01,0.00333333,1e-06,\
0.1,0.2,0.3,-1,0.5,0.6,0.07,0.08,0.09,-1,0.11,0.12
2,24.6914,3.5,4.25,0.00123457,,,,,,,,0.01,0.00333333,1e-06,,,,,,,,,,,,
";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), golden);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let columns = |line: &str| line.split(',').count();
        assert!(golden.lines().all(|line| columns(line) == 27));
    }

    #[test]
    fn the_third_loss_is_named_after_the_network() {
        let csv = ResultsCsv::new(Path::new("r.csv"), ThirdLoss::Dfl, 8);
        assert!(csv.text.contains(",train/dfl_loss,") && csv.text.contains(",val/dfl_loss,"));
        assert!(csv.text.contains(",lr/pg7,metrics/coco_AP,"));
    }

    #[test]
    fn a_row_for_other_columns_is_refused_and_a_failed_write_is_made_up_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("later").join("results.csv");
        let mut csv = ResultsCsv::new(&path, ThirdLoss::L1, 2);
        let e = csv.push(&row(1, true)).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::InvalidInput);

        let mut csv = ResultsCsv::new(&path, ThirdLoss::L1, 3);
        let e = csv.push(&row(1, true)).unwrap_err();
        assert!(e.to_string().starts_with(&path.display().to_string()));
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        csv.push(&row(2, true)).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 3);
    }
}
