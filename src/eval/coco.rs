//! Detections against ground truth: the twelve COCO figures, precision and recall, and the table per class.

use std::collections::{BTreeMap, HashMap};

use hotcoco::params::IouType;
use hotcoco::{
    AccumulatedEval, Annotation, Category, Dataset, EvalMode, Image, Params, StreamingEval,
};

use super::best_f1::{Outcome, best_f1, confidence_curves, match_image};
use super::curves::{ClassCurves, Curves};
use super::results::{CocoDetection, image_at};
use super::{Detection, EvalError, zero_id};
use crate::data::{ImageEntry, Split};
use crate::report::tables::ClassRow;

/// What an evaluation found. A figure of -1 does not exist (no ground truth of that kind), as in the COCO API.
#[derive(Debug, Clone, PartialEq)]
pub struct Metrics {
    /// AP, AP50, AP75, APs, APm, APl, AR1, AR10, AR100, ARs, ARm, ARl: the COCO API's to the last bit, with its
    /// limit of 100 detections per image and class.
    pub coco: [f64; 12],
    /// Mean over the classes that have ground truth, at [`confidence`](Self::confidence) and IoU 0.5.
    pub precision: f64,
    /// As [`precision`](Self::precision).
    pub recall: f64,
    /// The confidence with the best smoothed mean F1 at IoU 0.5 (formula in `eval/best_f1.rs`).
    pub confidence: f64,
    /// Images evaluated.
    pub images: usize,
    /// Ground truths in them that are not crowd regions.
    pub instances: usize,
    /// One entry for each class, in order.
    pub per_class: Vec<ClassMetrics>,
}

/// One class's line. A figure of -1 does not exist: no evaluated image has ground truth of this class.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassMetrics {
    pub class: usize,
    pub name: String,
    /// Evaluated images that show it.
    pub images: usize,
    /// Ground truths of it that are not crowd regions.
    pub instances: usize,
    /// At [`Metrics::confidence`] and IoU 0.5.
    pub precision: f64,
    pub recall: f64,
    /// Average precision at IoU 0.5.
    pub ap50: f64,
    /// Average precision over IoU 0.5, 0.55, …, 0.95.
    pub ap: f64,
}

impl Metrics {
    /// The lines of the table of classes: that of all, then one for each class.
    pub fn rows(&self) -> (ClassRow<'_>, Vec<ClassRow<'_>>) {
        let all = ClassRow {
            name: "all",
            images: self.images,
            instances: self.instances,
            precision: self.precision,
            recall: self.recall,
            ap50: self.coco[1],
            ap: self.coco[0],
        };
        (all, self.per_class.iter().map(ClassMetrics::row).collect())
    }
}

impl ClassMetrics {
    fn row(&self) -> ClassRow<'_> {
        ClassRow {
            name: &self.name,
            images: self.images,
            instances: self.instances,
            precision: self.precision,
            recall: self.recall,
            ap50: self.ap50,
            ap: self.ap,
        }
    }
}

/// Collects the detections of images of one split, in any order, and scores them.
///
/// Evaluators over disjoint images (one per process) [`merge`](Self::merge) into exactly the one that saw them all.
/// Ground truth goes in as the user's file has it (boxes, areas, crowd flags, ids of images and categories); within an
/// image `truths` must be in the order of the file, which decides between equal overlaps.
#[derive(Clone)]
pub struct Evaluator<'a> {
    pub(super) split: &'a Split,
    pub(super) coco: StreamingEval,
    /// By image index, so that nothing depends on the order in which images came.
    pub(super) outcomes: BTreeMap<usize, Vec<Outcome>>,
}

impl<'a> Evaluator<'a> {
    /// # Errors
    /// A split that cannot be scored: repeated image or category ids, a ground truth of a class that does not exist.
    pub fn new(split: &'a Split) -> Result<Self, EvalError> {
        check(split)?;
        let coco = start(split).map_err(|source| EvalError::Matching {
            place: "cannot start".into(),
            source,
        })?;
        Ok(Self {
            split,
            coco,
            outcomes: BTreeMap::new(),
        })
    }

    /// Matches the detections of `split.images[image_index]` against its ground truth. Boxes are in pixels of the
    /// original image. Every image is added once, with no detections where there are none. Detections with equal scores
    /// rank in the order given.
    ///
    /// # Errors
    /// An index or class outside the split, a number that is not finite, an image added before. The evaluator is then
    /// as it was.
    pub fn add(&mut self, image_index: usize, detections: &[Detection]) -> Result<(), EvalError> {
        let image = image_at(self.split, image_index)?;
        let detections = detections
            .iter()
            .map(|d| Ok((d.class, CocoDetection::new(self.split, image, d)?)))
            .collect::<Result<Vec<_>, EvalError>>()?;
        self.add_converted(image_index, &detections)
    }

    /// [`add`](Self::add) behind the conversion: (class, detection) as the COCO API would read it.
    pub(super) fn add_converted(
        &mut self,
        image_index: usize,
        detections: &[(usize, CocoDetection)],
    ) -> Result<(), EvalError> {
        let image = image_at(self.split, image_index)?;
        if self.outcomes.contains_key(&image_index) {
            return Err(EvalError::ImageTwice {
                file: image.file_name.clone(),
            });
        }
        self.match_for_figures(image, detections)
            .map_err(|source| EvalError::Matching {
                place: format!("of {}", image.file_name),
                source,
            })?;
        let mut outcomes = Vec::with_capacity(detections.len());
        match_image(&image.truths, detections, &mut outcomes);
        self.outcomes.insert(image_index, outcomes);
        Ok(())
    }

    /// Takes over the images of `other`.
    ///
    /// # Errors
    /// Another split, or an image that both hold; `self` is then as it was.
    pub fn merge(&mut self, other: Evaluator<'_>) -> Result<(), EvalError> {
        let (a, b) = (self.split, other.split);
        let ids = |s: &Split| -> Vec<u64> { s.images.iter().map(|i| i.id).collect() };
        let same = std::ptr::eq(a, b)
            || (a.names == b.names && a.category_ids == b.category_ids && ids(a) == ids(b));
        if !same {
            return Err(EvalError::OtherSplit);
        }
        let twice = |index: &&usize| self.outcomes.contains_key(index);
        if let Some(&index) = other.outcomes.keys().find(twice) {
            return Err(EvalError::ImageTwice {
                file: a.images[index].file_name.clone(),
            });
        }
        self.coco
            .merge(other.coco)
            .map_err(|source| EvalError::Matching {
                place: "cannot be merged".into(),
                source,
            })?;
        self.outcomes.extend(other.outcomes);
        Ok(())
    }

    /// The figures over the images added so far.
    pub fn finish(self) -> Metrics {
        self.finish_with_curves().0
    }

    /// As [`finish`](Self::finish), with the curves that the figures were read from.
    pub fn finish_with_curves(self) -> (Metrics, Curves) {
        let split = self.split;
        let classes = split.names.len();
        let mut images = vec![0; classes];
        let mut instances = vec![0; classes];
        for &index in self.outcomes.keys() {
            let mut shown = vec![false; classes];
            for truth in split.images[index].truths.iter().filter(|t| !t.crowd) {
                instances[truth.class] += 1;
                shown[truth.class] = true;
            }
            for (class, shown) in shown.into_iter().enumerate() {
                images[class] += usize::from(shown);
            }
        }
        let outcomes: Vec<Outcome> = self.outcomes.values().flatten().copied().collect();
        let by_confidence = confidence_curves(&outcomes, &instances);
        let point = best_f1(&by_confidence);

        let mut coco = self.coco.finalize();
        coco.accumulate();
        coco.summarize_lines();
        let figures: [f64; 12] = coco
            .stats()
            .and_then(|stats| stats.try_into().ok())
            .expect("accumulate and summarize ran, and box evaluation has twelve figures");
        let accumulated = coco.accumulated().expect("accumulate ran");
        let ap_of: HashMap<u64, (f64, f64)> = accumulated
            .cat_ids
            .iter()
            .enumerate()
            .map(|(k, &id)| {
                (
                    id,
                    (
                        mean_precision(accumulated, 0..1, k),
                        mean_precision(accumulated, 0..accumulated.shape.t, k),
                    ),
                )
            })
            .collect();

        let per_class: Vec<ClassMetrics> = (0..classes)
            .map(|class| {
                let (precision, recall) = point.classes[class].unwrap_or((-1.0, -1.0));
                let (ap50, ap) = ap_of[&split.category_ids[class]];
                ClassMetrics {
                    class,
                    name: split.names[class].clone(),
                    images: images[class],
                    instances: instances[class],
                    precision,
                    recall,
                    ap50,
                    ap,
                }
            })
            .collect();
        let slot_of: HashMap<u64, usize> = (0..)
            .zip(&accumulated.cat_ids)
            .map(|(k, &id)| (id, k))
            .collect();
        let of_classes = by_confidence.into_iter().enumerate();
        let curves = Curves {
            best: point.confidence,
            classes: of_classes
                .filter_map(|(class, by_confidence)| {
                    Some(ClassCurves {
                        class,
                        by_confidence: by_confidence?,
                        by_recall: precisions(accumulated, 0, slot_of[&split.category_ids[class]])
                            .collect(),
                    })
                })
                .collect(),
        };
        let metrics = Metrics {
            coco: figures,
            precision: mean_of_existing(per_class.iter().map(|c| c.precision)),
            recall: mean_of_existing(per_class.iter().map(|c| c.recall)),
            confidence: point.confidence,
            images: self.outcomes.len(),
            instances: instances.iter().sum(),
            per_class,
        };
        (metrics, curves)
    }

    fn match_for_figures(
        &mut self,
        image: &ImageEntry,
        detections: &[(usize, CocoDetection)],
    ) -> Result<(), hotcoco::Error> {
        let images = vec![Image {
            id: image.id,
            width: image.width,
            height: image.height,
            ..Default::default()
        }];
        let annotations = self.truths(image);
        let found: Vec<Annotation> = detections
            .iter()
            .map(|(_, d)| Annotation {
                image_id: image.id,
                category_id: d.category_id,
                bbox: Some(d.bbox),
                score: Some(d.score),
                ..Default::default()
            })
            .collect();
        let Some(zero) = zero_id(self.split, image).filter(|_| !found.is_empty()) else {
            return self.coco.update(images, annotations, found);
        };
        let mut alone = start(self.split)?;
        alone.update(images.clone(), annotations.clone(), found.clone())?;
        let dataset = Dataset {
            images,
            annotations,
            categories: categories(self.split),
            ..Default::default()
        };
        self.coco
            .merge(zero_id::apply(&alone, dataset, found, zero)?)
    }

    fn truths(&self, image: &ImageEntry) -> Vec<Annotation> {
        image
            .truths
            .iter()
            .map(|t| Annotation {
                id: t.id,
                image_id: image.id,
                category_id: self.split.category_ids[t.class],
                bbox: Some(t.bbox),
                area: Some(t.area),
                iscrowd: t.crowd,
                ..Default::default()
            })
            .collect()
    }
}

/// The position of the truth to which the COCO API's rule for id 0 applies: see `zero_id.rs`.
fn zero_id(split: &Split, image: &ImageEntry) -> Option<usize> {
    let truth = |t: &crate::data::Truth| t.id == 0 && !t.crowd;
    image
        .truths
        .iter()
        .position(truth)
        .filter(|_| split.image_id_in_file)
}

fn categories(split: &Split) -> Vec<Category> {
    let named = split.category_ids.iter().zip(&split.names);
    named
        .map(|(&id, name)| Category {
            id,
            name: name.clone(),
            ..Default::default()
        })
        .collect()
}

fn start(split: &Split) -> Result<StreamingEval, hotcoco::Error> {
    StreamingEval::new(
        Params::new(IouType::Bbox),
        EvalMode::Coco,
        categories(split),
    )
}

/// Mean of the interpolated precision of category slot `k` over IoU thresholds and the 101 recalls, for all areas and
/// the greatest detection limit; -1 where the category has no ground truth.
fn mean_precision(curves: &AccumulatedEval, thresholds: std::ops::Range<usize>, k: usize) -> f64 {
    mean_of_existing(thresholds.flat_map(|t| precisions(curves, t, k)))
}

/// The interpolated precisions of category slot `k` at the 101 recalls, for all areas and the greatest detection limit.
fn precisions(curves: &AccumulatedEval, t: usize, k: usize) -> impl Iterator<Item = f64> {
    let (all_areas, hundred) = (0, curves.shape.m - 1);
    (0..curves.shape.r)
        .map(move |r| curves.precision[curves.precision_idx(t, r, k, all_areas, hundred)])
}

fn mean_of_existing(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut n) = (0.0, 0_usize);
    for value in values.filter(|&v| v >= 0.0) {
        sum += value;
        n += 1;
    }
    if n == 0 { -1.0 } else { sum / n as f64 }
}

/// What the COCO API makes of this ground truth that its author may not expect, one line each; empty for most sets.
pub fn coco_api_remarks(split: &Split) -> Vec<String> {
    let mut remarks = Vec::new();
    if !split.image_id_in_file {
        return remarks;
    }
    if let Some(image) = split.images.iter().find(|i| zero_id(split, i).is_some()) {
        remarks.push(format!(
            "{}: an annotation has id 0, which the COCO API always counts as missed; so do the COCO figures here \
             (precision and recall do not). Number annotations from 1",
            image.file_name
        ));
    }
    let mut ids: Vec<u64> = split
        .images
        .iter()
        .flat_map(|i| &i.truths)
        .map(|t| t.id)
        .collect();
    ids.sort_unstable();
    let repeated = ids.windows(2).filter(|w| w[0] == w[1]).count();
    if repeated > 0 {
        remarks.push(format!(
            "{repeated} annotations repeat another's id: the COCO API reads only the last of each, so its figures \
             will differ from the ones here, which count all. Give each annotation its own id"
        ));
    }
    remarks
}

fn check(split: &Split) -> Result<(), EvalError> {
    if split.names.len() != split.category_ids.len() {
        return Err(EvalError::Categories {
            names: split.names.len(),
            ids: split.category_ids.len(),
        });
    }
    let mut of_id = HashMap::new();
    for (&id, name) in split.category_ids.iter().zip(&split.names) {
        if let Some(first) = of_id.insert(id, name) {
            return Err(EvalError::RepeatedCategoryId {
                id,
                first: first.clone(),
                second: name.clone(),
            });
        }
    }
    let mut of_id = HashMap::new();
    for image in &split.images {
        if let Some(first) = of_id.insert(image.id, image) {
            return Err(EvalError::RepeatedImageId {
                id: image.id,
                first: first.file_name.clone(),
                second: image.file_name.clone(),
            });
        }
        if let Some(truth) = image.truths.iter().find(|t| t.class >= split.names.len()) {
            return Err(EvalError::TruthClass {
                file: image.file_name.clone(),
                id: truth.id,
                class: truth.class,
                classes: split.names.len(),
            });
        }
    }
    Ok(())
}
