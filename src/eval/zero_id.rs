//! The COCO API's rule for annotation id 0.
//!
//! pycocotools stores the id of the ground truth that a detection found, with 0 for none. The annotation whose id is 0
//! (files numbered from 0 have one) therefore counts as missed, and the detection that finds it as wrong, although no
//! other detection can find it any more; a detection whose area lies outside the range is then ignored, as if it had
//! found nothing. hotcoco numbers ground truth itself and has no such rule. Figures that must equal the COCO API's to
//! the last digit need it, so here it is applied to the one image concerned.
//!
//! A crowd region with id 0 needs nothing: what it absorbs is ignored either way.

use hotcoco::params::IouType;
use hotcoco::{Annotation, COCO, COCOeval, Dataset, StreamingEval};

/// One image's state after the rule.
///
/// `state` has seen only the image of `dataset`, with `detections`; the annotation at `zero` has id 0.
///
/// # Errors
/// What hotcoco reports, and a state in another layout than hotcoco 1.3's.
pub(super) fn apply(
    state: &StreamingEval,
    mut dataset: Dataset,
    detections: Vec<Annotation>,
    zero: usize,
) -> Result<StreamingEval, hotcoco::Error> {
    for (at, annotation) in dataset.annotations.iter_mut().enumerate() {
        annotation.id = at as u64 + 1;
    }
    let category = dataset.annotations[zero].category_id;
    let truth = COCO::from_dataset(dataset);
    let found = truth.load_res_anns(detections)?;
    let mut matching = COCOeval::new(truth, found, IouType::Bbox);
    matching.evaluate()?;

    let mut bytes = state.to_bytes();
    let layout = Layout::read(&bytes, category).ok_or_else(|| {
        hotcoco::Error::InvalidState("the layout of hotcoco's state is not that of 1.3".into())
    })?;
    let ranges = &matching.params.area_ranges;
    for cell in matching.eval_imgs().iter().flatten() {
        let area = ranges.iter().position(|r| r.range == cell.area_rng);
        let (Some(area), true) = (area, cell.category_id == category) else {
            continue;
        };
        for threshold in 0..cell.dt_matched.num_rows() {
            for (rank, &id) in cell.dt_ids.iter().enumerate() {
                let at = (threshold, rank);
                if cell.dt_matched[at] && cell.dt_matches[at] == zero as u64 + 1 {
                    let size = matching.coco_dt().get_ann(id).and_then(|d| d.area);
                    let [low, high] = cell.area_rng;
                    let outside = size.is_some_and(|a| a < low || a > high);
                    layout.unmatch(&mut bytes, area, rank, threshold, outside);
                }
            }
        }
    }
    StreamingEval::from_bytes(&bytes)
}

/// Where hotcoco 1.3's `StreamingEval::to_bytes` keeps the flags of one (image, category) pair: magic, version and
/// header length (16 bytes), a JSON header, 24 bytes for each pair and one more, 8 for each score, 4 for each pair and
/// area range, then bits: per pair from a 64-bit word on, per area range, per detection, a matched flag for each
/// threshold and an ignore flag for each.
struct Layout {
    /// Byte at which the bits start.
    bits: usize,
    /// The pair's first bit.
    first: usize,
    detections: usize,
    thresholds: usize,
}

impl Layout {
    /// `None` where the bytes are not as described.
    fn read(bytes: &[u8], category: u64) -> Option<Self> {
        let number = |at: usize, n: usize| {
            let mut le = [0; 8];
            le[..n].copy_from_slice(bytes.get(at..at + n)?);
            Some(u64::from_le_bytes(le))
        };
        if bytes.get(..4)? != b"HCSE" || number(4, 4)? != 2 {
            return None;
        }
        let pairs_at = 16 + usize::try_from(number(8, 8)?).ok()?;
        let header: serde_json::Value = serde_json::from_slice(bytes.get(16..pairs_at)?).ok()?;
        let count = |name: &str| usize::try_from(header[name].as_u64()?).ok();
        let length = |name: &str| Some(header["params"][name].as_array()?.len());
        let (pairs, scores, words) = (count("n_pairs")?, count("n_scores")?, count("n_words")?);
        let (thresholds, areas) = (length("iou_thrs")?, length("area_ranges")?);
        let bits = pairs_at + (pairs + 1) * 24 + scores * 8 + pairs * areas * 4;
        if bits + words * 8 != bytes.len() {
            return None;
        }
        let pair = (0..pairs).find(|p| number(pairs_at + p * 24 + 8, 8) == Some(category))?;
        let field = |pair: usize, at: usize| number(pairs_at + pair * 24 + at, 4);
        Some(Self {
            bits,
            first: usize::try_from(field(pair, 20)?).ok()? * 64,
            detections: usize::try_from(field(pair + 1, 16)?.checked_sub(field(pair, 16)?)?)
                .ok()?,
            thresholds,
        })
    }

    fn unmatch(&self, bytes: &mut [u8], area: usize, rank: usize, threshold: usize, ignore: bool) {
        let per_detection = 2 * self.thresholds;
        let matched = self.first + (area * self.detections + rank) * per_detection + threshold;
        let ignored = matched + self.thresholds;
        bytes[self.bits + matched / 8] &= !(1 << (matched % 8));
        if ignore {
            bytes[self.bits + ignored / 8] |= 1 << (ignored % 8);
        }
    }
}
