//! Which categories of a COCO file are classes, and which class.

use std::collections::HashMap;
use std::path::Path;

use super::super::DataError;
use super::super::index::Context;
use super::super::locate::{Located, locate};
use super::super::report::{Action, Finding, FindingKind, SplitReport};
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
    /// Classes are the dataset file's `names` in their order; else those of [`Order`]; else the file's own
    /// categories, by id.
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
        for (_, name) in repeated_names(&own) {
            report.findings.push(
                Finding::new(
                    FindingKind::SameName,
                    report.source.clone(),
                    "two categories have this name; they are two classes",
                )
                .value(name)
                .done(Action::Kept),
            );
        }
        let Some(order) = Order::find(context, path)? else {
            own.into_iter()
                .for_each(|(id, name)| classes.push(name, id));
            return Ok(classes);
        };
        for (their_id, name) in order.classes {
            let is_free = |id: &u64| !classes.class_of.contains_key(id);
            let mut same_name = own
                .iter()
                .filter(|(id, own)| *own == name && is_free(id))
                .map(|(id, _)| *id);
            let first = same_name.next();
            let same_id = same_name.find(|id| Some(*id) == their_id);
            let id = match same_id.or(first) {
                Some(id) => id,
                None => {
                    report.findings.push(
                        Finding::new(
                            FindingKind::MissingCategory,
                            report.source.clone(),
                            format!("this class of {} is no category here", order.of),
                        )
                        .value(name.clone()),
                    );
                    classes.free_id(their_id.unwrap_or(1))
                }
            };
            classes.push(name, id);
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

/// Names that more than one category has, once for each further category.
fn repeated_names(categories: &[(u64, String)]) -> impl Iterator<Item = (u64, String)> + '_ {
    let earlier = |index: usize, name: &String| categories[..index].iter().any(|(_, n)| n == name);
    categories
        .iter()
        .enumerate()
        .filter(move |(index, (_, name))| earlier(*index, name))
        .map(|(_, category)| category.clone())
}

/// Classes that are given from elsewhere: so that the same number means the same class.
struct Order {
    /// Where they come from, for messages.
    of: String,
    /// Category id there, if it has one, and name, by class.
    classes: Vec<(Option<u64>, String)>,
}

impl Order {
    /// The classes of a trained network, else those of the training split's COCO file, where that is another
    /// one. A training split that is not there leaves the file's own categories.
    fn find(context: &Context, path: &Path) -> Result<Option<Self>, DataError> {
        if let Some(names) = context.class_order {
            return Ok(Some(Self {
                of: "the network".to_owned(),
                classes: names.iter().map(|name| (None, name.clone())).collect(),
            }));
        }
        if context.which == SplitName::Train || context.yaml.train.is_none() {
            return Ok(None);
        }
        match locate(context.yaml, SplitName::Train) {
            Ok(Located::Coco { annotations, .. }) if annotations != path => {
                let categories = check_categories(&annotations, &read_categories(&annotations)?)?;
                Ok(Some(Self {
                    of: annotations.display().to_string(),
                    classes: categories
                        .into_iter()
                        .map(|(id, name)| (Some(id), name))
                        .collect(),
                }))
            }
            _ => Ok(None),
        }
    }
}
