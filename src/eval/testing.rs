//! Small splits and a reader of COCO files for the tests of this folder.

use std::path::Path;

use super::Detection;
use crate::data::{ImageEntry, Split, Truth};

/// A split whose class k has category id `category_ids[k]` and the name `c<id>`.
pub fn split(category_ids: &[u64], images: Vec<ImageEntry>) -> Split {
    Split {
        names: category_ids.iter().map(|id| format!("c{id}")).collect(),
        category_ids: category_ids.to_vec(),
        images,
        image_id_in_file: true,
    }
}

pub fn image(id: u64, truths: Vec<Truth>) -> ImageEntry {
    ImageEntry {
        id,
        file_name: format!("{id}.jpg"),
        path: format!("{id}.jpg").into(),
        width: 640,
        height: 480,
        labels: Vec::new(),
        truths,
    }
}

/// The ground truth of a COCO file.
pub fn read_coco(path: &Path) -> Split {
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let categories = json["categories"].as_array().unwrap();
    let ids: Vec<u64> = categories
        .iter()
        .map(|c| c["id"].as_u64().unwrap())
        .collect();
    let truth = |a: &serde_json::Value| {
        let id = a["category_id"].as_u64().unwrap();
        Truth {
            id: a["id"].as_u64().unwrap(),
            class: ids.iter().position(|&c| c == id).unwrap(),
            bbox: serde_json::from_value(a["bbox"].clone()).unwrap(),
            area: a["area"].as_f64().unwrap(),
            crowd: a["iscrowd"].as_u64() == Some(1),
        }
    };
    let images = json["images"].as_array().unwrap().iter().map(|i| {
        let id = i["id"].as_u64().unwrap();
        let own = |a: &&serde_json::Value| a["image_id"] == i["id"];
        let annotations = json["annotations"].as_array().unwrap();
        image(id, annotations.iter().filter(own).map(truth).collect())
    });
    split(&ids, images.collect())
}

/// Numbers drawn from a seed.
pub struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// In [0, 1), of 31 bits.
    pub fn unit(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as f64 / f64::from(1_u32 << 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f64) as usize
    }
}

/// A data set with everything that the COCO API treats specially: gaps in the ids, images out of order, crowd regions,
/// areas smaller than the box, boxes without area, equal scores within and across images, more than 100 detections of a
/// class in one image, a class without ground truth and one without detections.
pub fn drawn_set(seed: u64) -> (Split, Vec<Vec<Detection>>) {
    let mut draw = Draw::new(seed);
    let mut id = 1;
    let ids = [3, 1, 7, 18, 44, 90];
    let mut images = Vec::new();
    let mut detections = Vec::new();
    for n in 0..60_u64 {
        let (mut truths, mut found) = (Vec::new(), Vec::new());
        for _ in 0..draw.below(12) {
            let side = 4.0 + 300.0 * draw.unit().powi(3);
            let bbox = [
                (draw.unit() * 300.0 * 100.0).round() / 100.0,
                (draw.unit() * 200.0 * 100.0).round() / 100.0,
                (side * (0.5 + draw.unit()) * 100.0).round() / 100.0,
                if draw.below(40) == 0 {
                    0.0
                } else {
                    (side * 100.0).round() / 100.0
                },
            ];
            let class = draw.below(5);
            truths.push(Truth {
                id,
                class,
                bbox,
                area: bbox[2] * bbox[3] * (0.4 + 0.6 * draw.unit()),
                crowd: draw.below(8) == 0,
            });
            id += 1;
            for _ in 0..draw.below(4) {
                let [x, y, w, h] = bbox.map(|v| v as f32);
                let mut jitter = |scale: f32| (draw.unit() as f32 - 0.5) * scale * side as f32;
                let xyxy = [
                    x + jitter(0.3),
                    y + jitter(0.3),
                    x + w + jitter(0.3),
                    y + h + jitter(0.3),
                ];
                found.push(Detection {
                    xyxy,
                    score: (1 + draw.below(50)) as f32 / 50.0,
                    class: if draw.below(6) == 0 {
                        draw.below(6)
                    } else {
                        class
                    },
                });
            }
        }
        if n == 5 {
            for _ in 0..150 {
                let (x, y) = (draw.unit() as f32 * 500.0, draw.unit() as f32 * 400.0);
                found.push(Detection {
                    xyxy: [x, y, x + 40.0, y + 40.0],
                    score: draw.unit() as f32,
                    class: 1,
                });
            }
        }
        found.retain(|d| d.class != 3);
        images.push(image(1000 - 7 * n, truths));
        detections.push(found);
    }
    (split(&ids, images), detections)
}
