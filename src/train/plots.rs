//! The pictures of a run: from its data, figures and predictions to the plain numbers that `report::plot` draws.
//!
//! A picture that cannot be drawn or written is a warning, since the run's results are whole without it; but a full disk
//! ends the run as for any other of its files.

use super::error::TrainError;
use crate::config::Settings;
use crate::data::Split;
use crate::eval::{ClassCurves, ConfusionMatrix, Curves, Validation};
use crate::report::Console;
use crate::report::plot::confusion::{Confusion, confusion};
use crate::report::plot::curves::{Curve, Family, curves};
use crate::report::plot::labels::{LabelStats, labels};
use crate::report::plot::{PlotError, class_label, results};
use std::path::Path;
use std::time::Duration;

/// The confusion matrix counts detections above this, unless `--conf` is given: what a user of the weights would keep.
const MATRIX_CONFIDENCE: f64 = 0.25;
const MATRIX_IOU: f64 = 0.45;

/// results.png is drawn anew after an epoch where it is older than this: drawing takes some 40 ms.
const REDRAWN_AFTER: Duration = Duration::from_secs(30);

/// `labels.jpg`: what the labels of the training images are.
///
/// # Errors
/// [`TrainError::Write`] where the disk is full.
pub fn draw_labels(
    settings: &Settings,
    folder: &Path,
    split: &Split,
    console: &Console,
) -> Result<(), TrainError> {
    if !settings.plots {
        return Ok(());
    }
    let names = split.names.iter().enumerate();
    let names: Vec<String> = names.map(|(i, name)| class_label(i, name)).collect();
    let mut stats = LabelStats::new(&names);
    for image in &split.images {
        let (w, h) = (
            f64::from(image.width.max(1)),
            f64::from(image.height.max(1)),
        );
        stats.add_image(image.labels.iter().map(|label| {
            let [x1, y1, x2, y2] = label.xyxy.map(f64::from);
            (label.class, [x1 / w, y1 / h, x2 / w, y2 / h])
        }));
    }
    let drawn = labels(&stats, "training labels").save(&folder.join("labels.jpg"));
    unless_full(drawn, console)
}

/// `results.png` from the run's `results.csv`, whoever wrote its rows. Nothing where there is none yet.
///
/// # Errors
/// [`TrainError::Write`] where the disk is full.
pub fn draw_results(
    settings: &Settings,
    folder: &Path,
    console: &Console,
) -> Result<(), TrainError> {
    if !settings.plots || !folder.join("results.csv").exists() {
        return Ok(());
    }
    unless_full(results::redraw(folder), console)
}

/// As [`draw_results`], after an epoch of a run that goes on: only where the picture is missing or was drawn some time ago.
///
/// # Errors
/// As [`draw_results`].
pub fn refresh_results(
    settings: &Settings,
    folder: &Path,
    console: &Console,
) -> Result<(), TrainError> {
    let drawn = std::fs::metadata(folder.join("results.png")).and_then(|m| m.modified());
    // A clock that was set back makes it neither old nor young: then it is drawn.
    let fresh = drawn.is_ok_and(|at| at.elapsed().is_ok_and(|age| age < REDRAWN_AFTER));
    if fresh {
        return Ok(());
    }
    draw_results(settings, folder, console)
}

/// The curves and the confusion matrix of a validation of `split`.
///
/// # Errors
/// [`TrainError::Write`] where the disk is full.
pub fn draw_validation(
    settings: &Settings,
    folder: &Path,
    validation: &Validation<'_>,
    console: &Console,
) -> Result<(), TrainError> {
    if !settings.plots {
        return Ok(());
    }
    let names: Vec<String> = validation
        .metrics
        .per_class
        .iter()
        .map(|c| class_label(c.class, &c.name))
        .collect();
    for (file, family) in families(validation, &names) {
        unless_full(curves(&family).save(&folder.join(file)), console)?;
    }
    let confidence = settings.conf.unwrap_or(MATRIX_CONFIDENCE);
    let matrix = ConfusionMatrix::of(&validation.predictions, confidence, MATRIX_IOU);
    let at = format!("confidence > {confidence}");
    let note = format!(
        "matched at IoU > {MATRIX_IOU}, any classes; {} images",
        validation.metrics.images
    );
    for (file, normalised) in [
        ("confusion_matrix.png", false),
        ("confusion_matrix_normalized.png", true),
    ] {
        let picture = confusion(&Confusion {
            names: &names,
            counts: &matrix.counts,
            normalised,
            at: &at,
            note: &note,
        });
        unless_full(picture.save(&folder.join(file)), console)?;
    }
    Ok(())
}

fn unless_full(drawn: Result<(), PlotError>, console: &Console) -> Result<(), TrainError> {
    match drawn {
        Err(PlotError::Write { path, source }) if is_full(&source) => {
            Err(TrainError::Write { path, source })
        }
        Err(e) => {
            console.warn(format!("{e}; the run's figures do not need this picture"));
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

fn is_full(e: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    [StorageFull, QuotaExceeded].contains(&e.kind())
}

/// The four pictures of curves, each with its file name.
fn families(validation: &Validation<'_>, names: &[String]) -> [(&'static str, Family); 4] {
    let (found, metrics) = (&validation.curves, &validation.metrics);
    let at = found.best_at();
    let confidences = Curves::confidences();
    let f1 = |c: &ClassCurves| -> Vec<f64> {
        (0..confidences.len())
            .map(|i| c.by_confidence.f1(i))
            .collect()
    };
    let over_confidence = |title: &str, of: &dyn Fn(&ClassCurves) -> Vec<f64>| {
        let classes: Vec<Curve> = found
            .classes
            .iter()
            .map(|c| {
                let values = of(c);
                Curve {
                    name: format!("{:.3} {}", values[at], names[c.class]),
                    values,
                }
            })
            .collect();
        let mean = Curves::mean(
            classes.iter().map(|c| c.values.as_slice()),
            confidences.len(),
        );
        Family {
            title: format!("{title} against confidence, IoU 0.5"),
            x_label: "confidence".into(),
            y_label: title.to_lowercase().replace("f1", "F1"),
            mean: Curve {
                name: format!("{:.3} mean of all classes", mean[at]),
                values: mean,
            },
            classes,
            x: confidences.clone(),
            mark: Some((
                found.best,
                format!("figures at confidence {:.3} (best mean F1)", found.best),
            )),
        }
    };
    let by_recall = found.classes.iter().map(|c| c.by_recall.as_slice());
    let recalls = Curves::recalls();
    let precision_recall = Family {
        title: "Precision against recall, IoU 0.5".into(),
        x_label: "recall".into(),
        y_label: "precision".into(),
        mean: Curve {
            name: format!("{:.3} mean of all classes (AP50)", metrics.coco[1].max(0.0)),
            values: Curves::mean(by_recall, recalls.len()),
        },
        classes: found
            .classes
            .iter()
            .map(|c| Curve {
                name: format!("{:.3} {}", metrics.per_class[c.class].ap50, names[c.class]),
                values: c.by_recall.clone(),
            })
            .collect(),
        x: recalls,
        mark: None,
    };
    [
        ("BoxPR_curve.png", precision_recall),
        ("BoxF1_curve.png", over_confidence("F1", &f1)),
        (
            "BoxP_curve.png",
            over_confidence("Precision", &|c| c.by_confidence.precision.clone()),
        ),
        (
            "BoxR_curve.png",
            over_confidence("Recall", &|c| c.by_confidence.recall.clone()),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Log {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    #[test]
    fn a_full_disk_is_an_error_and_any_other_failure_a_warning() {
        let log = Log::default();
        let console = Console::plain(log.clone(), std::io::sink());
        let failed = |kind: ErrorKind| PlotError::Write {
            path: "run/labels.jpg".into(),
            source: Error::new(kind, "run/labels.jpg: cannot"),
        };
        let e = unless_full(Err(failed(ErrorKind::StorageFull)), &console).unwrap_err();
        assert!(matches!(e, TrainError::Write { .. }), "{e}");
        assert_eq!(log.text(), "");
        unless_full(Err(failed(ErrorKind::PermissionDenied)), &console).unwrap();
        assert!(
            log.text()
                .contains("warning: cannot write run/labels.jpg: cannot"),
            "{}",
            log.text()
        );
    }

    #[test]
    fn results_are_drawn_where_there_are_some_and_not_again_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::default();
        let console = Console::plain(log.clone(), std::io::sink());
        let settings = Settings::default();
        let picture = folder.path().join("results.png");
        draw_results(&settings, folder.path(), &console).unwrap();
        assert!(!picture.exists());

        let csv = folder.path().join("results.csv");
        std::fs::write(&csv, "epoch,train/box_loss\n1,2.5\n").unwrap();
        let off = Settings {
            plots: false,
            ..settings.clone()
        };
        refresh_results(&off, folder.path(), &console).unwrap();
        assert!(!picture.exists());
        refresh_results(&settings, folder.path(), &console).unwrap();
        let first = std::fs::read(&picture).unwrap();

        std::fs::write(&csv, "epoch,train/box_loss\n1,2.5\n2,1.5\n").unwrap();
        refresh_results(&settings, folder.path(), &console).unwrap();
        assert_eq!(
            std::fs::read(&picture).unwrap(),
            first,
            "drawn a moment ago"
        );
        draw_results(&settings, folder.path(), &console).unwrap();
        assert_ne!(std::fs::read(&picture).unwrap(), first);
        assert_eq!(log.text(), "");

        std::fs::write(&csv, "epoch\nx\n").unwrap();
        draw_results(&settings, folder.path(), &console).unwrap();
        assert!(log.text().contains("results.csv: line 2"), "{}", log.text());
    }
}
