//! Starting values from a weights file of another run, or of another program that uses the published names: every tensor
//! that fits is taken, and classes are matched by their names.

use super::init::State;
use super::layout::{ClassPart, NormInfo, ParamInfo};
use super::network::Network;
use super::weights::{WeightsError, WeightsFile, file_shape, from_file};
use crate::config::model::ModelSpec;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

/// Names that the line of a transfer lists before it only counts.
const LISTED: usize = 12;

/// Why a tensor was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The file has none of this name.
    Missing,
    Shape {
        found: Vec<usize>,
        expected: Vec<usize>,
    },
    /// Numbers of a kind that is not read.
    Type(String),
    /// Not a number, or infinite.
    NotFinite,
    /// The scores of classes of which none is in the file.
    Classes,
}

/// A tensor that keeps its starting values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    pub name: String,
    pub reason: Reason,
}

/// How the classes of the file and of the network go together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClassMatch {
    /// For each class of the network the file's of the same name.
    Names(Vec<Option<usize>>),
    /// The file names no classes, but has as many.
    UnnamedButAsMany,
    /// The file names no classes and has another number of them.
    Unnamed,
}

/// What was taken from a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// Tensors taken (parameters and running statistics), also where only some of their classes were.
    pub taken: usize,
    /// Tensors that the network has.
    pub all: usize,
    pub left: Vec<Left>,
    pub classes: ClassMatch,
    /// Licence of the file's weights, for what is trained from them.
    pub licence: String,
}

/// A weights file whose tensors are asked for by the names of a network.
struct Source<'a> {
    tensors: SafeTensors<'a>,
    /// What the file writes before each name, as in `module.`.
    prefix: String,
}

impl<'a> Source<'a> {
    fn new(file: &'a WeightsFile) -> Result<Self, WeightsError> {
        const FIRST: &str = "model.0.conv.weight";
        let tensors = file.tensors()?;
        let names = tensors.names();
        let prefixes = names.iter().filter_map(|n| n.strip_suffix(FIRST));
        let prefix = prefixes.min_by_key(|p| p.len()).unwrap_or("").to_string();
        Ok(Self { tensors, prefix })
    }

    fn view(&self, name: &str) -> Option<TensorView<'_>> {
        self.tensors.tensor(&format!("{}{name}", self.prefix)).ok()
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.view(name).map(|v| v.shape().to_vec())
    }

    fn fits(&self, p: &ParamInfo) -> bool {
        self.shape(&p.name).is_some_and(|s| s == file_shape(p))
    }

    /// Values of a tensor whose shape `accepts` takes.
    fn read(
        &self,
        name: &str,
        expected: &[usize],
        accepts: impl Fn(&[usize]) -> bool,
    ) -> Result<(Vec<usize>, Vec<f32>), Reason> {
        let view = self.view(name).ok_or(Reason::Missing)?;
        let found = view.shape().to_vec();
        if !accepts(&found) {
            return Err(Reason::Shape {
                found,
                expected: expected.into(),
            });
        }
        let values = floats(&view).ok_or_else(|| Reason::Type(format!("{:?}", view.dtype())))?;
        if !values.iter().all(|v| v.is_finite()) {
            return Err(Reason::NotFinite);
        }
        Ok((found, values))
    }
}

/// The numbers of a tensor of floats as float32.
fn floats(view: &TensorView) -> Option<Vec<f32>> {
    let data = view.data();
    Some(match view.dtype() {
        Dtype::F64 => {
            let (numbers, _) = data.as_chunks::<8>();
            numbers
                .iter()
                .map(|b| f64::from_le_bytes(*b) as f32)
                .collect()
        }
        Dtype::F32 => {
            let (numbers, _) = data.as_chunks::<4>();
            numbers.iter().map(|b| f32::from_le_bytes(*b)).collect()
        }
        Dtype::F16 => {
            let (numbers, _) = data.as_chunks::<2>();
            let number = |b: &[u8; 2]| half::f16::from_le_bytes(*b).to_f32();
            numbers.iter().map(number).collect()
        }
        Dtype::BF16 => {
            let (numbers, _) = data.as_chunks::<2>();
            let number = |b: &[u8; 2]| half::bf16::from_le_bytes(*b).to_f32();
            numbers.iter().map(number).collect()
        }
        _ => return None,
    })
}

/// For each of `new` the index of the same name in `old`: exactly the same, or else apart from case and spaces around.
fn match_names(new: &[String], old: &[String]) -> Vec<Option<usize>> {
    let plain = |s: &String| s.trim().to_lowercase();
    new.iter()
        .map(|n| {
            let exact = old.iter().position(|o| o == n);
            exact.or_else(|| old.iter().position(|o| plain(o) == plain(n)))
        })
        .collect()
}

/// Copies the rows of classes from a file's `[old classes, ...]` into a parameter `[..., classes]`.
fn copy_rows(rows: &[Option<usize>], file: &[f32], per_row: usize, into: &mut [f32]) {
    let classes = rows.len();
    for (new, old) in rows.iter().enumerate() {
        let Some(old) = old else { continue };
        let row = &file[old * per_row..(old + 1) * per_row];
        for (i, v) in row.iter().enumerate() {
            into[i * classes + new] = *v;
        }
    }
}

impl WeightsFile {
    /// The network of `spec` that takes the most from this file. Class branches are as wide as the number of classes asks
    /// for; where the file is of the same model with another width, its width is used, so that their hidden layers fit.
    ///
    /// # Errors
    /// [`WeightsError::Format`].
    pub fn network_for(&self, spec: &ModelSpec, classes: usize) -> Result<Network, WeightsError> {
        let source = Source::new(self)?;
        let network = Network::new(spec.clone(), classes);
        let is_output = |p: &&ParamInfo| p.class == ClassPart::Output && p.shape.len() == 4;
        let output = network.layout.params.iter().find(is_output);
        let width = output.and_then(|p| source.shape(&p.name)?.get(1).copied());
        let same = |n: &Network, part: ClassPart| {
            let of_part = n.layout.params.iter().filter(|p| p.class == part);
            of_part.into_iter().all(|p| source.fits(p))
        };
        let Some(width) = width else {
            return Ok(network);
        };
        if same(&network, ClassPart::Hidden) || !same(&network, ClassPart::None) {
            return Ok(network);
        }
        // such a tensor is in the file, so its size is no surprise
        let wide = Network::new(
            ModelSpec {
                class_width: Some(width),
                ..spec.clone()
            },
            classes,
        );
        Ok(if same(&wide, ClassPart::Hidden) {
            wide
        } else {
            network
        })
    }

    /// Takes into `state` every tensor that fits `network` by name and shape, and of class scores the rows of classes that
    /// both have (`names` are the network's); everything else keeps its starting values.
    ///
    /// # Errors
    /// [`WeightsError::Format`]; [`WeightsError::NothingFits`] where not one tensor fits.
    pub fn transfer(
        &self,
        network: &Network,
        names: &[String],
        state: &mut State,
    ) -> Result<Transfer, WeightsError> {
        let source = Source::new(self)?;
        let metadata = match self.metadata() {
            Ok(m) => Some(m),
            Err(WeightsError::NoMetadata { .. }) => None,
            Err(e) => return Err(e),
        };
        let layout = &network.layout;
        let output = layout.params.iter().find(|p| p.class == ClassPart::Output);
        let in_file = output.and_then(|p| source.shape(&p.name)?.first().copied());
        let classes = match &metadata {
            Some(m) if in_file.is_none_or(|n| n == m.names.len()) => {
                ClassMatch::Names(match_names(names, &m.names))
            }
            _ if in_file == Some(names.len()) => ClassMatch::UnnamedButAsMany,
            _ => ClassMatch::Unnamed,
        };
        let mut transfer = Transfer {
            taken: 0,
            all: layout.params.len() + 2 * layout.norms.len(),
            left: vec![],
            classes,
            licence: self.licence(metadata.map(|m| m.licence))?,
        };
        for p in &layout.params {
            let into = &mut state.params[p.range()];
            let done = match (&transfer.classes, p.class) {
                (ClassMatch::Names(rows), ClassPart::Output) => output_rows(&source, p, rows, into),
                (ClassMatch::Unnamed, ClassPart::Output) => Err(Reason::Classes),
                _ => whole(&source, p, into),
            };
            transfer.note(&p.name, done);
        }
        for n in &layout.norms {
            for (what, at) in [("running_mean", n.mean()), ("running_var", n.var())] {
                let name = format!("{}.{what}", n.name);
                let done = statistics(&source, n, &name, &mut state.buffers[at]);
                transfer.note(&name, done);
            }
        }
        if transfer.taken == 0 {
            let mut found: Vec<_> = source.tensors.names().into_iter().collect();
            found.sort_unstable();
            return Err(WeightsError::NothingFits {
                path: self.path.clone(),
                model: network.spec.name.clone(),
                found: found.len(),
                example: found.first().map_or("-".into(), ToString::to_string),
                expected: layout
                    .params
                    .first()
                    .map_or(String::new(), |p| p.name.clone()),
            });
        }
        Ok(transfer)
    }

    /// What the file says of its licence.
    fn licence(&self, own: Option<String>) -> Result<String, WeightsError> {
        if let Some(own) = own {
            return Ok(own);
        }
        for key in ["licence", "license"] {
            if let Some(text) = self.entry(key)? {
                return Ok(text);
            }
        }
        Ok(format!("unknown licence of {}", self.file_name()))
    }

    /// Without folders, which say nothing about the weights.
    fn file_name(&self) -> &str {
        let parts = self.path.rsplit(['/', '\\']);
        parts.into_iter().next().unwrap_or(&self.path)
    }
}

fn whole(source: &Source, p: &ParamInfo, into: &mut [f32]) -> Result<(), Reason> {
    let expected = file_shape(p);
    let (_, values) = source.read(&p.name, &expected, |s| s == expected)?;
    from_file(p, &values, into);
    Ok(())
}

fn output_rows(
    source: &Source,
    p: &ParamInfo,
    rows: &[Option<usize>],
    into: &mut [f32],
) -> Result<(), Reason> {
    let expected = file_shape(p);
    let rest = |s: &[usize]| s.get(1..).map(<[usize]>::to_vec);
    let accepts = |s: &[usize]| rest(s) == rest(&expected) && !s.is_empty();
    let (found, values) = source.read(&p.name, &expected, accepts)?;
    if rows.iter().all(Option::is_none) {
        return Err(Reason::Classes);
    }
    if rows.iter().flatten().any(|&r| r >= found[0]) {
        return Err(Reason::Shape { found, expected });
    }
    copy_rows(rows, &values, values.len() / found[0], into);
    Ok(())
}

fn statistics(source: &Source, n: &NormInfo, name: &str, into: &mut [f32]) -> Result<(), Reason> {
    let (_, values) = source.read(name, &[n.channels], |s| s == [n.channels])?;
    into.copy_from_slice(&values);
    Ok(())
}

impl Transfer {
    fn note(&mut self, name: &str, done: Result<(), Reason>) {
        match done {
            Ok(()) => self.taken += 1,
            Err(reason) => self.left.push(Left {
                name: name.into(),
                reason,
            }),
        }
    }

    /// One line: how much was taken, which classes were matched, what was not taken. `names` are the network's classes.
    #[must_use]
    pub fn line(&self, path: &str, names: &[String]) -> String {
        let mut line = format!("{path}: {} of {} tensors taken", self.taken, self.all);
        match &self.classes {
            ClassMatch::Names(rows) => {
                let of = |taken: bool| {
                    let some = names.iter().zip(rows).filter(|(_, r)| r.is_some() == taken);
                    some.map(|(n, _)| n.clone()).collect::<Vec<_>>()
                };
                let (known, new) = (of(true), of(false));
                line += &format!("; classes by name: {} of {}", known.len(), names.len());
                if !known.is_empty() && !new.is_empty() {
                    line += &format!(" ({}), new are {}", listed(&known), listed(&new));
                }
            }
            ClassMatch::UnnamedButAsMany => {
                line += &format!(
                    "; it names no classes, so its {} are taken in their order, unmatched",
                    names.len()
                );
            }
            ClassMatch::Unnamed => line += "; it names no classes, so none is matched",
        }
        if !self.left.is_empty() {
            let left: Vec<String> = self.left.iter().map(ToString::to_string).collect();
            line += &format!("; not taken ({}): {}", left.len(), listed(&left));
        }
        line
    }
}

impl std::fmt::Display for Left {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        match &self.reason {
            Reason::Missing => f.write_str(" (not there)"),
            Reason::Shape { found, expected } => write!(f, " ({found:?} for {expected:?})"),
            Reason::Type(kind) => write!(f, " (numbers of kind {kind})"),
            Reason::NotFinite => f.write_str(" (not finite)"),
            Reason::Classes => f.write_str(" (other classes)"),
        }
    }
}

/// All where they are few, otherwise the first ones and how many more.
fn listed(items: &[String]) -> String {
    if items.len() <= LISTED + 1 {
        return items.join(", ");
    }
    format!(
        "{} and {} more",
        items[..LISTED].join(", "),
        items.len() - LISTED
    )
}

#[cfg(test)]
#[path = "transfer_tests.rs"]
mod tests;
