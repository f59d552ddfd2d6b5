//! A data set that no file describes: its folder alone was given.

use std::path::Path;

use super::DatasetYaml;

impl DatasetYaml {
    /// A data set below `root` of which nothing is known yet but how messages call it.
    pub fn of_folder(label: &str, root: &Path) -> Self {
        Self {
            label: label.to_owned(),
            file: None,
            root: root.to_path_buf(),
            root_tried: Vec::new(),
            train: None,
            val: None,
            test: None,
            names: None,
            nc: None,
            class_order: None,
            download: None,
            generate: None,
            warnings: Vec::new(),
            notes: Vec::new(),
            holdout: None,
        }
    }
}
