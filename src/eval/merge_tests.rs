use super::merge::{Figures, Validated, merge};
use super::partial::{Partial, StateError};
use super::testing::{Draw, drawn_set, image, split};
use super::{
    Choice, ConfusionMatrix, Curves, Detection, Evaluator, Inference, Metrics, Predictions,
    SuppressConfig, ValidateError, validate,
};
use crate::config::model::ModelSpec;
use crate::data::decode::{DecodeError, Rgb};
use crate::data::loader::{Loader, LoaderConfig, LoaderError};
use crate::data::{LabelBox, Split, Truth};
use crate::dist::tcp::Transport;
use crate::dist::testing::threads;
use crate::dist::{Agreement, Buffer, Call, ProcessGroup, Report, Single, agree};
use crate::loss::{Components, Gains, ShownLoss};
use crate::model::{Network, init};
use burn::tensor::Device;
use proptest::prelude::*;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Everything that a user gets to see.
#[derive(Debug, Clone, PartialEq)]
struct Whole {
    metrics: Metrics,
    curves: Curves,
    confusion: ConfusionMatrix,
    predictions: Vec<u8>,
    loss: [u64; 4],
}

fn bits(loss: ShownLoss) -> [u64; 4] {
    let s = loss.sums;
    [s.boxes, s.classes, s.distances, loss.score_sum].map(f64::to_bits)
}

fn text(predictions: &Predictions) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("predictions.json");
    predictions.write(&path).unwrap();
    std::fs::read(path).unwrap()
}

impl Whole {
    fn of(metrics: Metrics, curves: Curves, predictions: &Predictions, loss: ShownLoss) -> Self {
        Self {
            confusion: ConfusionMatrix::of(predictions, metrics.confidence, 0.45),
            predictions: text(predictions),
            metrics,
            curves,
            loss: bits(loss),
        }
    }

    fn read(v: Validated) -> (Figures, Option<Self>) {
        let whole = v
            .whole
            .map(|w| Self::of(w.metrics, w.curves, &w.predictions, w.loss));
        (v.figures, whole)
    }
}

/// Losses whose sum depends on the order.
fn losses(batches: usize) -> Vec<ShownLoss> {
    let mut draw = Draw::new(5);
    let mut any = || (draw.unit() - 0.3) * 10_f64.powi(draw.below(12) as i32);
    (0..batches)
        .map(|_| ShownLoss {
            sums: Components {
                boxes: any(),
                classes: any(),
                distances: any(),
            },
            score_sum: any(),
        })
        .collect()
}

/// A drawn set cut into batches of images, in another order than that of the split.
struct Case {
    split: Split,
    detections: Vec<Vec<Detection>>,
    batches: Vec<Vec<usize>>,
    losses: Vec<ShownLoss>,
}

impl Case {
    fn new(seed: u64, batch: usize) -> Self {
        let (split, detections) = drawn_set(seed);
        let order: Vec<usize> = (0..60).map(|i| i * 7 % 60).collect();
        let batches: Vec<Vec<usize>> = order.chunks(batch).map(<[_]>::to_vec).collect();
        Self {
            losses: losses(batches.len()),
            split,
            detections,
            batches,
        }
    }

    fn part(&self, batches: Range<usize>) -> Partial<'_> {
        let mut partial = Partial::new(&self.split).unwrap();
        for b in batches {
            for &i in &self.batches[b] {
                partial.add(i, &self.detections[i]).unwrap();
            }
            partial.losses.push(self.losses[b]);
        }
        partial
    }

    fn part_of(&self, group: &dyn ProcessGroup) -> Partial<'_> {
        let (n, rank, size) = (self.batches.len(), group.rank(), group.size());
        self.part(rank * n / size..(rank + 1) * n / size)
    }

    /// What one process finds that knows of no ranks.
    fn alone(&self) -> Whole {
        let mut evaluator = Evaluator::new(&self.split).unwrap();
        let mut predictions = Predictions::new(&self.split);
        let mut loss = ShownLoss::default();
        for (images, &of_batch) in self.batches.iter().zip(&self.losses) {
            for &i in images {
                evaluator.add(i, &self.detections[i]).unwrap();
                predictions.add(i, &self.detections[i]).unwrap();
            }
            loss.add(of_batch);
        }
        let (metrics, curves) = evaluator.finish_with_curves();
        Whole::of(metrics, curves, &predictions, loss)
    }
}

fn same_figures(figures: &Figures, whole: &Whole) {
    let m = &whole.metrics;
    assert_eq!(
        figures.coco.map(f64::to_bits),
        m.coco.map(f64::to_bits),
        "{figures:?}"
    );
    let row = [figures.precision, figures.recall, figures.confidence];
    assert_eq!(row, [m.precision, m.recall, m.confidence]);
    assert_eq!((figures.images, figures.instances), (m.images, m.instances));
    assert_eq!(bits(figures.loss), whole.loss);
}

#[test]
fn any_number_of_ranks_finds_what_one_finds_to_the_last_bit() {
    // Two batches leave ranks without any.
    for (seed, batch) in [(11, 4), (3, 7), (8, 40), (8, 60)] {
        let case = Case::new(seed, batch);
        let alone = case.alone();
        assert!(alone.metrics.coco[0] > 0.05 && !alone.confusion.counts.is_empty());
        for ranks in [1, 2, 3, 5] {
            let all = threads(ranks, Transport::Auto, |group| {
                let own = Ok(case.part_of(group));
                Whole::read(merge(group, &case.split, own).unwrap())
            });
            for (rank, (figures, whole)) in all.iter().enumerate() {
                same_figures(figures, &alone);
                assert_eq!(whole.is_some(), rank == 0);
            }
            let whole = all[0].1.as_ref().unwrap();
            assert_eq!(whole, &alone, "{ranks} ranks");
            // Equality of floats plus equality of their shortest forms leaves no room for -0 against 0.
            assert_eq!(format!("{whole:?}"), format!("{alone:?}"));
        }
    }
}

#[test]
fn a_split_without_images_is_validated_by_all_ranks() {
    let split = split(&[4], vec![]);
    for (figures, _) in threads(3, Transport::Auto, |group| {
        Whole::read(merge(group, &split, Ok(Partial::new(&split).unwrap())).unwrap())
    }) {
        assert_eq!((figures.coco, figures.images), ([-1.0; 12], 0));
    }
}

/// How each rank ends, with what `of_rank` makes of it.
fn ends(
    case: &Case,
    ranks: usize,
    of_rank: impl Fn(usize) -> Option<ValidateError> + Sync,
) -> Vec<ValidateError> {
    threads(ranks, Transport::Auto, |group| {
        let own = match of_rank(group.rank()) {
            Some(error) => Err(error),
            None => Ok(case.part_of(group)),
        };
        merge(group, &case.split, own).err().unwrap()
    })
}

fn unreadable() -> ValidateError {
    let error = DecodeError::Empty {
        path: "7.jpg".into(),
    };
    ValidateError::Loader(LoaderError::Decode {
        file: "7.jpg".into(),
        source: Arc::new(error),
    })
}

#[test]
fn a_rank_that_fails_says_so_itself_and_the_others_name_it_and_its_reason() {
    let case = Case::new(11, 4);
    for failing in 0..3 {
        let ends = ends(&case, 3, |rank| (rank == failing).then(unreadable));
        for (rank, error) in ends.iter().enumerate() {
            match error {
                ValidateError::Loader(_) => assert_eq!(rank, failing),
                ValidateError::Peer { rank: of, reason } => {
                    assert!(rank != failing && *of == failing);
                    let parts = ["the image cannot be loaded", "the file is empty"];
                    assert!(parts.iter().all(|p| reason.contains(p)), "{reason}");
                }
                other => panic!("{other}"),
            }
        }
    }
}

#[test]
fn an_interruption_of_one_rank_interrupts_all_unless_one_fails() {
    let case = Case::new(11, 4);
    let end = ends(&case, 3, |rank| {
        (rank == 1).then_some(ValidateError::Interrupted)
    });
    let interrupted = |e: &ValidateError| matches!(e, ValidateError::Interrupted);
    assert!(end.iter().all(interrupted), "{end:?}");
    let end = ends(&case, 3, |rank| match rank {
        0 => Some(ValidateError::Interrupted),
        1 => None,
        _ => Some(unreadable()),
    });
    assert!(matches!(end[0], ValidateError::Peer { rank: 2, .. }));
    assert!(matches!(end[1], ValidateError::Peer { rank: 2, .. }));
    assert!(matches!(end[2], ValidateError::Loader(_)));
}

#[test]
fn an_image_of_two_ranks_ends_all_of_them() {
    let case = Case::new(11, 4);
    let ends = threads(3, Transport::Auto, |group| {
        merge(group, &case.split, Ok(case.part(4..5)))
            .err()
            .unwrap()
    });
    assert!(matches!(ends[0], ValidateError::Merge { rank: 1, .. }));
    for error in &ends[1..] {
        let text = error.to_string();
        assert!(
            text.starts_with("validation failed on rank 0: the validation of rank 1"),
            "{text}"
        );
        assert!(text.contains("given twice"), "{text}");
    }
}

#[test]
fn a_state_that_cannot_be_read_ends_all_ranks() {
    let case = Case::new(11, 4);
    threads(3, Transport::Auto, |group| {
        if group.rank() != 1 {
            let own = Ok(case.part_of(group));
            match (group.rank(), merge(group, &case.split, own).err().unwrap()) {
                (0, ValidateError::State { rank: 1, .. }) => {}
                (2, ValidateError::Peer { rank: 0, reason }) => {
                    assert!(reason.contains("rank 1 cannot be used"), "{reason}");
                }
                (rank, error) => panic!("{rank}: {error}"),
            }
            return;
        }
        let done = || Report::Done(vec![]);
        let name = "validation: batches";
        agree(group, Call::latency(name), done()).unwrap();
        let mut state = case.part_of(group).to_bytes();
        state.pop();
        let call = Call::bulk("validation: state");
        group.send(call, 0, Buffer::U8(state)).wait().unwrap();
        let end = agree(group, Call::latency("validation: figures"), done()).unwrap();
        assert!(matches!(end, Agreement::Failed { rank: 0, .. }));
    });
}

#[test]
fn what_is_no_state_of_this_split_is_refused_with_the_reason() {
    let case = Case::new(11, 4);
    let good = case.part(0..3).to_bytes();
    let refused = |bytes: &[u8]| match Partial::from_bytes(&case.split, bytes) {
        Ok(_) => panic!("accepted"),
        Err(e) => e,
    };
    for end in 0..good.len() {
        refused(&good[..end]);
    }
    assert!(matches!(
        refused(&[&good[..], b"!"].concat()),
        StateError::Long { bytes: 1 }
    ));
    assert!(matches!(refused(b"HCSE and more"), StateError::Foreign));
    let mut newer = good.clone();
    newer[4] = 9;
    assert!(matches!(refused(&newer), StateError::Format { found: 9 }));

    let mut smaller = case.split.clone();
    smaller.images.pop();
    let e = Partial::from_bytes(&smaller, &good).err().unwrap();
    assert!(matches!(e, StateError::OtherSplit { images: 60, .. }));
    let mut renamed = case.split.clone();
    renamed.names[2] = "other".into();
    let e = Partial::from_bytes(&renamed, &good).err().unwrap();
    assert!(e.to_string().contains("categories"), "{e}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_state_comes_back_from_its_bytes_as_it_was(
        seed in 0_u64..1000,
        batch in 1_usize..20,
        from in 0.0_f64..1.0,
        to in 0.0_f64..1.0,
    ) {
        let case = Case::new(seed, batch);
        let at = |share: f64| (share * (case.batches.len() + 1) as f64) as usize;
        let partial = case.part(at(from).min(at(to))..at(from).max(at(to)));
        let bytes = partial.to_bytes();
        let read = Partial::from_bytes(&case.split, &bytes).unwrap();
        prop_assert_eq!(&read.to_bytes(), &bytes);
        prop_assert_eq!(&read.losses, &partial.losses);
        prop_assert_eq!(text(&read.predictions), text(&partial.predictions));
        let (a, b) = (read.evaluator.finish_with_curves(), partial.evaluator.finish_with_curves());
        prop_assert_eq!(format!("{a:?}"), format!("{b:?}"));
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn damaged_bytes_are_refused_or_read_but_never_a_panic(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let case = Case::new(11, 4);
        let mut bytes = case.part(0..3).to_bytes();
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        // Where it can be read, it is also merged and finished.
        let _ = super::merge::whole(&case.split, case.part(3..6), [&bytes[..]].into_iter());
    }
}

/// Images of several shapes, each with a box; `broken` cannot be decoded.
fn loader(broken: Option<usize>, workers: usize) -> (Arc<Split>, Loader) {
    const SIZES: [(u32, u32); 3] = [(64, 48), (40, 64), (64, 64)];
    let images = (0..11).map(|i| {
        let (width, height) = SIZES[i % 3];
        let truth = Truth {
            id: i as u64 + 1,
            class: i % 2,
            bbox: [4.0, 4.0, 30.0, 24.0],
            area: 720.0,
            crowd: i == 4,
        };
        let mut entry = image(i as u64, vec![truth]);
        (entry.width, entry.height) = (width, height);
        entry.labels = vec![LabelBox {
            class: i % 2,
            xyxy: [4.0, 4.0, 34.0, 28.0],
        }];
        entry
    });
    let split = Arc::new(split(&[3, 8], images.collect()));
    let decode = move |path: &Path| {
        let i: usize = path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
        if broken == Some(i) {
            return Err(DecodeError::Empty { path: path.into() });
        }
        let (width, height) = SIZES[i % 3];
        let (width, height) = (width as usize, height as usize);
        let pixels = (0..width * height * 3)
            .map(|k| (k * (i + 3) % 251) as u8)
            .collect();
        Ok(Rgb {
            width,
            height,
            pixels,
        })
    };
    let config = LoaderConfig {
        imgsz: 64,
        workers,
        ..LoaderConfig::default()
    };
    let loader = Loader::with_decode(split.clone(), config, Box::new(decode)).unwrap();
    (split, loader)
}

#[test]
fn a_network_is_validated_by_ranks_as_by_one_and_errors_and_interruptions_end_all() {
    let network = Network::new(ModelSpec::resolve("yolo26n").unwrap(), 2);
    let state = init::init(&network, 1);
    let gains = Gains {
        boxes: 7.5,
        classes: 0.5,
        distances: 1.5,
    };
    let run = |group: &dyn ProcessGroup, broken, interrupted: bool| {
        let inference = Inference::new(&network, &state, gains, &Device::flex());
        let (split, loader) = loader(broken, group.rank());
        let batches = loader.val_batches_of(2, group.rank(), group.size());
        let images = batches.images();
        let choice = Choice {
            suppress: SuppressConfig {
                conf: 1e-6,
                max_det: 20,
                ..SuppressConfig::default()
            },
            end_to_end: true,
        };
        let mut seen = 0;
        let interrupted = AtomicBool::new(interrupted);
        let end = validate(
            group,
            &inference,
            &split,
            batches,
            &choice,
            &interrupted,
            |done| seen = done,
        );
        end.map(|v| {
            assert_eq!(seen, images);
            Whole::read(v)
        })
    };
    let alone = run(&Single::new(), None, false).unwrap().1.unwrap();
    assert_eq!(alone.metrics.images, 11);
    assert!(alone.predictions.len() > 1000 && alone.loss[0] != 0);
    // Six batches.
    for ranks in [2, 4] {
        let all = threads(ranks, Transport::Auto, |group| {
            run(group, None, false).unwrap()
        });
        for (figures, _) in &all {
            same_figures(figures, &alone);
        }
        assert_eq!(all[0].1.as_ref(), Some(&alone));
    }

    let all = threads(2, Transport::Auto, |group| {
        run(group, Some(0), false).err().unwrap().to_string()
    });
    let (failed, told): (Vec<&String>, Vec<&String>) =
        all.iter().partition(|e| e.starts_with("0.jpg"));
    assert_eq!((failed.len(), told.len()), (1, 1), "{all:?}");
    assert!(told[0].contains("0.jpg") && told[0].contains("the file is empty"));

    for error in threads(2, Transport::Auto, |group| {
        run(group, None, group.rank() == 1).err().unwrap()
    }) {
        assert!(matches!(error, ValidateError::Interrupted), "{error}");
    }
}
