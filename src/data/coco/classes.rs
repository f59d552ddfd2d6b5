//! Which categories of a COCO file are classes, and which class.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::super::DataError;
use super::super::index::{Context, Located, locate};
use super::super::report::{Finding, FindingKind, SplitReport};
use super::{CocoCategory, read_categories};
use crate::config::dataset::SplitName;
use crate::config::nearest;

/// The classes of a split.
pub(super) struct Classes {
    pub names: Vec<String>,
    /// Category ids by class.
    pub ids: Vec<u64>,
    pub class_of: HashMap<u64, usize>,
    /// Of every category of the file.
    pub category_names: HashMap<u64, String>,
}

impl Classes {
    /// Classes are the dataset file's `names` in their order; else, outside training, the categories of the
    /// training split's COCO file, so that the same number means the same class; else the file's own, by id.
    pub fn select(
        context: &Context,
        path: &Path,
        categories: Vec<CocoCategory>,
        report: &mut SplitReport,
    ) -> Result<Self, DataError> {
        let yaml = context.yaml;
        let own = check_categories(path, &categories)?;
        let mut classes = Self {
            names: Vec::new(),
            ids: Vec::new(),
            class_of: HashMap::new(),
            category_names: own.iter().cloned().collect(),
        };
        let available = || own.iter().map(|(_, name)| name.clone()).collect::<Vec<_>>();
        if let Some(names) = &yaml.names {
            for name in names {
                let mut found = own.iter().filter(|(_, own)| own == name);
                let Some((id, _)) = found.next() else {
                    let available = available();
                    return Err(DataError::NameNotInFile {
                        yaml: yaml.label.clone(),
                        name: name.clone(),
                        path: path.to_path_buf(),
                        suggestion: nearest(name, available.iter().map(String::as_str))
                            .map(str::to_owned),
                        available,
                    });
                };
                if let Some((other, _)) = found.next() {
                    return Err(DataError::Category {
                        path: path.to_path_buf(),
                        value: name.clone(),
                        reason: format!(
                            "`names` selects it, but ids {id} and {other} both have this name"
                        ),
                    });
                }
                classes.push(name.clone(), *id);
            }
            return Ok(classes);
        }
        if let Some(nc) = yaml.nc
            && nc != own.len()
        {
            return Err(DataError::CategoryCount {
                yaml: yaml.label.clone(),
                nc,
                found: own.len(),
                path: path.to_path_buf(),
                available: available(),
            });
        }
        match training_categories(context, path)? {
            None => own
                .into_iter()
                .for_each(|(id, name)| classes.push(name, id)),
            Some((file, of_training)) => {
                for (their_id, name) in of_training {
                    let id = match own.iter().find(|(_, own)| *own == name) {
                        Some((id, _)) => *id,
                        None => {
                            report.findings.push(
                                Finding::new(
                                    FindingKind::MissingCategory,
                                    report.source.clone(),
                                    format!("this category of {} is missing here", file.display()),
                                )
                                .value(name.clone()),
                            );
                            classes.free_id(their_id)
                        }
                    };
                    classes.push(name, id);
                }
            }
        }
        Ok(classes)
    }

    fn push(&mut self, name: String, id: u64) {
        self.class_of.insert(id, self.names.len());
        self.names.push(name);
        self.ids.push(id);
    }

    /// `wanted`, or the first id from there on that no category and no class has.
    fn free_id(&self, wanted: u64) -> u64 {
        (wanted..=u64::MAX)
            .chain(0..wanted)
            .find(|id| !self.category_names.contains_key(id) && !self.ids.contains(id))
            .unwrap_or(wanted)
    }
}

/// Ids and names by id; ids are unique, names present.
pub(super) fn check_categories(
    path: &Path,
    categories: &[CocoCategory],
) -> Result<Vec<(u64, String)>, DataError> {
    let bad = |value: String, reason: &str| DataError::Category {
        path: path.to_path_buf(),
        value,
        reason: reason.to_owned(),
    };
    if categories.is_empty() {
        return Err(DataError::NotCoco {
            path: path.to_path_buf(),
            reason: "it has no `categories`".to_owned(),
        });
    }
    let mut checked: Vec<(u64, String)> = Vec::with_capacity(categories.len());
    for category in categories {
        let shown = format!("{} (id {})", category.name, category.id);
        let Some(id) = category.id.as_id() else {
            return Err(bad(shown, "its id is not a whole number from 0"));
        };
        let Some(name) = category.name.as_text().filter(|name| !name.is_empty()) else {
            return Err(bad(shown, "it has no name"));
        };
        if let Some((_, other)) = checked.iter().find(|(other, _)| *other == id) {
            let reason = format!("the category `{other}` has the same id");
            return Err(bad(shown, &reason));
        }
        checked.push((id, name));
    }
    checked.sort_by_key(|(id, _)| *id);
    Ok(checked)
}

/// The categories of the training split, where they are not those of `path` anyway.
#[allow(clippy::type_complexity)]
fn training_categories(
    context: &Context,
    path: &Path,
) -> Result<Option<(PathBuf, Vec<(u64, String)>)>, DataError> {
    if context.which == SplitName::Train || context.yaml.train.is_none() {
        return Ok(None);
    }
    // A training split that is not there (a run that only validates) leaves the file's own categories.
    match locate(context.yaml, SplitName::Train) {
        Ok(Located::Coco { annotations, .. }) if annotations != path => {
            let categories = read_categories(&annotations)?;
            let checked = check_categories(&annotations, &categories)?;
            Ok(Some((annotations, checked)))
        }
        _ => Ok(None),
    }
}
