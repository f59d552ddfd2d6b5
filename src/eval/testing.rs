//! Small splits and a reader of COCO files for the tests of this folder.

use std::path::Path;

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
    let ids: Vec<u64> = categories.iter().map(|c| c["id"].as_u64().unwrap()).collect();
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
