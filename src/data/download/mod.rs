//! Gets what a dataset file's `download` key names: annotations inside the program, archives, images of COCO JSONs.
//!
//! Everything goes below the data set's root. A file gets its name when it is complete and checked; until then it is `NAME.part`, which a
//! later run goes on with. An archive stays a part until it is unpacked, so what is unfinished is seen from the names alone, and
//! where nothing is missing nothing is asked of the network. Code in a dataset file is never executed.

mod archive;
mod client;
mod error;
mod images;
mod lock;
mod part;
mod pool;
#[cfg(test)]
mod tests;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use archive::Archive;
pub(crate) use client::Client;
use client::{Accept, Job};
pub use error::DownloadError;
use lock::Lock;
use part::{Part, with_suffix};
use pool::{Errand, fetch_all};

use super::prepare::{Step, Unit};
use crate::config::dataset::{DatasetYaml, EmbeddedFile, Source, SplitName, SplitSource};

type Tell<'a> = &'a mut dyn FnMut(Step<'_>) -> ControlFlow<()>;

/// Gets what these splits need and is not there. Where nothing is missing, nothing is written and nobody is asked.
///
/// # Errors
/// [`DownloadError`]; what was received stays, and the next call goes on with it.
pub(super) fn fetch(
    yaml: &DatasetYaml,
    splits: &[SplitName],
    client: &Client,
    tell: Tell<'_>,
) -> Result<(), DownloadError> {
    let Some(plan) = Plan::of(yaml, splits) else {
        return Ok(());
    };
    if !plan.is_anything_missing()? {
        return Ok(());
    }
    let root = &yaml.root;
    fs::create_dir_all(root).map_err(|source| io(root, source))?;
    let _lock = Lock::take(root, tell)?;
    plan.write_embedded()?;
    plan.get_archives(client, tell)?;
    plan.get_images(client, tell)
}

/// What splits need, in the order in which it is got.
struct Plan<'a> {
    yaml: &'a DatasetYaml,
    splits: &'a [SplitName],
    embedded: Vec<&'static EmbeddedFile>,
    archives: Vec<Parcel<'a>>,
    /// The splits whose images come by their addresses.
    by_address: Vec<SplitName>,
}

/// An archive, wherever it is on its way.
struct Parcel<'a> {
    url: &'a str,
    /// What it gives, where the file says so, with the splits that need it for that.
    wanted: Vec<(&'a [String], Vec<SplitName>)>,
    /// `ROOT/NAME`; a file there is the user's, and is used and left.
    path: PathBuf,
    part: Part,
    /// There while the user's archive is being unpacked.
    unpacking: PathBuf,
}

impl<'a> Plan<'a> {
    fn of(yaml: &'a DatasetYaml, splits: &'a [SplitName]) -> Option<Self> {
        let sources = yaml.download.as_ref()?.sources(&SplitName::ALL);
        let mut plan = Self {
            yaml,
            splits,
            embedded: Vec::new(),
            archives: Vec::new(),
            by_address: Vec::new(),
        };
        for (source, mut needed_by) in sources {
            needed_by.retain(|split| splits.contains(split));
            match source {
                // An archive that is not needed now keeps its name from the others.
                Source::Archive { url, gives } => {
                    let parcel = plan.parcel(url);
                    if !needed_by.is_empty() {
                        parcel.wanted.push((gives, needed_by));
                    }
                }
                _ if needed_by.is_empty() => {}
                Source::Embedded(files) => plan.embedded.extend(files.iter()),
                Source::ImageUrls => plan.by_address.extend(needed_by),
            }
        }
        plan.archives.retain(|parcel| !parcel.wanted.is_empty());
        Some(plan)
    }

    /// The archive of an address, under a name that no other one has.
    fn parcel(&mut self, url: &'a str) -> &mut Parcel<'a> {
        let known = self.archives.iter().position(|parcel| parcel.url == url);
        let index = known.unwrap_or_else(|| {
            let name = file_name(url);
            let is_taken = |name: &str| self.archives.iter().any(|a| a.path.ends_with(name));
            let mut free = name.clone();
            let mut count = 2;
            while is_taken(&free) {
                free = format!("{count}-{name}");
                count += 1;
            }
            let path = self.yaml.root.join(free);
            self.archives.push(Parcel {
                url,
                wanted: Vec::new(),
                part: Part::of(&path),
                unpacking: with_suffix(&path, ".unpacking"),
                path,
            });
            self.archives.len() - 1
        });
        &mut self.archives[index]
    }

    fn is_anything_missing(&self) -> Result<bool, DownloadError> {
        Ok(self.missing_embedded().next().is_some()
            || self.archives.iter().any(|parcel| self.is_open(parcel))
            || !self.missing_images()?.is_empty())
    }

    fn missing_embedded(&self) -> impl Iterator<Item = &EmbeddedFile> {
        let there = |path: &str| self.yaml.root.join(path).exists();
        self.embedded
            .iter()
            .copied()
            .filter(move |(path, _)| !there(path))
    }

    fn write_embedded(&self) -> Result<(), DownloadError> {
        for (path, text) in self.missing_embedded() {
            let path = self.yaml.root.join(path);
            let part = with_suffix(&path, ".part");
            let folder = path.parent().unwrap_or(&self.yaml.root);
            fs::create_dir_all(folder)
                .and_then(|()| fs::write(&part, text))
                .and_then(|()| fs::File::open(&part)?.sync_all())
                .and_then(|()| fs::rename(&part, &path))
                .map_err(|source| io(&path, source))?;
        }
        Ok(())
    }

    /// Whether an archive is still to be downloaded or unpacked.
    fn is_open(&self, parcel: &Parcel<'_>) -> bool {
        if parcel.part.exists() || parcel.unpacking.exists() {
            return true;
        }
        let entries = self.entries();
        parcel.wanted.iter().any(|(gives, splits)| {
            if gives.is_empty() {
                let mut needed = entries.iter().filter(|(split, _)| splits.contains(split));
                needed.any(|(_, entry)| self.yaml.resolve(entry).is_err())
            } else {
                !gives.iter().any(|path| self.yaml.root.join(path).exists())
            }
        })
    }

    /// The paths of the splits as the dataset file has them.
    fn entries(&self) -> Vec<(SplitName, String)> {
        let mut entries = Vec::new();
        for &split in self.splits {
            match self.yaml.split(split) {
                None => {}
                Some(SplitSource::Paths(paths)) => {
                    entries.extend(paths.iter().map(|path| (split, path.clone())));
                }
                Some(SplitSource::Pair {
                    images,
                    annotations,
                }) => {
                    // Images that come by their addresses are in no archive.
                    if !self.by_address.contains(&split) {
                        entries.push((split, images.clone()));
                    }
                    entries.push((split, annotations.clone()));
                }
            }
        }
        entries
    }

    fn get_archives(&self, client: &Client, tell: Tell<'_>) -> Result<(), DownloadError> {
        let open: Vec<&Parcel<'_>> = self.archives.iter().filter(|p| self.is_open(p)).collect();
        if open.is_empty() {
            return Ok(());
        }
        let root = &self.yaml.root;
        let jobs: Vec<Job> = open
            .iter()
            .filter(|parcel| !parcel.path.is_file())
            .map(|parcel| Job {
                url: parcel.url.to_owned(),
                part: parcel.part.clone(),
                accept: Accept::Keep,
            })
            .collect();
        let names = list(open.iter().map(|parcel| file_name_of(&parcel.path)));
        let errand = Errand {
            what: &format!("downloading {names}"),
            unit: Unit::Bytes,
            folder: root,
            advice: &format!(
                "without a network, put {names} into {} and start again",
                root.display()
            ),
        };
        fetch_all(client, &jobs, &errand, tell)?;

        let entries = self.entries();
        let mut paths: Vec<String> = entries.iter().map(|(_, entry)| entry.clone()).collect();
        let given = open.iter().flat_map(|parcel| &parcel.wanted);
        paths.extend(given.flat_map(|(gives, _)| gives.iter().cloned()));
        let mut archives = Vec::with_capacity(open.len());
        for parcel in &open {
            archives.push(parcel.look_through(client, &paths, tell)?);
        }
        self.check_contents(&open, &archives, &entries)?;
        for (parcel, archive) in open.iter().zip(&archives) {
            parcel.unpack(archive, root, tell)?;
        }
        Ok(())
    }

    /// Before anything is unpacked: whether the archives bring what the splits name, so that a wrong `path` or archive is said and not
    /// downloaded again and again.
    fn check_contents(
        &self,
        open: &[&Parcel<'_>],
        archives: &[Archive],
        entries: &[(SplitName, String)],
    ) -> Result<(), DownloadError> {
        let missing = |key: &str, entry: &str, archive: &Archive| DownloadError::NotInArchive {
            wanted: format!("{}: `{key}` names `{entry}`", self.yaml.label),
            from: archive.from().to_owned(),
            archive: archive.path().to_path_buf(),
            holds: archive.tops(),
        };
        for (parcel, archive) in open.iter().zip(archives) {
            for (gives, _) in &parcel.wanted {
                if let Some(first) = gives.first()
                    && !gives.iter().any(|path| archive.holds(path))
                {
                    return Err(missing("gives", first, archive));
                }
            }
        }
        for (split, entry) in entries {
            let is_there = self.yaml.resolve(entry).is_ok();
            if !is_there && !archives.iter().any(|archive| archive.holds(entry)) {
                return Err(missing(split.key(), entry, &archives[archives.len() - 1]));
            }
        }
        Ok(())
    }

    fn missing_images(&self) -> Result<Vec<Job>, DownloadError> {
        let mut jobs: Vec<Job> = Vec::new();
        for (annotations, folder) in self.image_folders()? {
            // Annotations that are still to come have no images yet.
            if annotations.is_file() {
                let missing = images::missing(&annotations, &folder)?;
                let is_new = |job: &Job| !jobs.iter().any(|known| known.part == job.part);
                let new: Vec<Job> = missing.into_iter().filter(is_new).collect();
                jobs.extend(new);
            }
        }
        Ok(jobs)
    }

    /// Annotations and images of each split; splits may share them.
    fn image_folders(&self) -> Result<Vec<(PathBuf, PathBuf)>, DownloadError> {
        let mut folders: Vec<(PathBuf, PathBuf)> = Vec::new();
        for &split in &self.by_address {
            let pair = match self.yaml.split(split) {
                None => continue,
                Some(SplitSource::Paths(_)) => {
                    return Err(DownloadError::NoFolder {
                        yaml: self.yaml.label.clone(),
                        split: split.key(),
                    });
                }
                Some(SplitSource::Pair {
                    images,
                    annotations,
                }) => (
                    self.yaml.root.join(annotations),
                    self.yaml.root.join(images),
                ),
            };
            if !folders.contains(&pair) {
                folders.push(pair);
            }
        }
        Ok(folders)
    }

    fn get_images(&self, client: &Client, tell: Tell<'_>) -> Result<(), DownloadError> {
        let jobs = self.missing_images()?;
        let mut folders = Vec::new();
        for job in &jobs {
            if let Some(folder) = job.part.path.parent() {
                fs::create_dir_all(folder).map_err(|source| io(folder, source))?;
                if !folders.contains(&folder) {
                    folders.push(folder);
                }
            }
        }
        let places = list(folders.iter().map(|folder| folder.display().to_string()));
        let errand = Errand {
            what: &format!("downloading images to {}", self.yaml.root.display()),
            unit: Unit::Images,
            folder: &self.yaml.root,
            advice: &format!(
                "without a network, put the images, under the names in their addresses, into {places} and start again"
            ),
        };
        fetch_all(client, &jobs, &errand, tell)
    }
}

impl Parcel<'_> {
    /// The archive to unpack: the user's, else the complete part. A damaged part is removed, since going on with it leads nowhere.
    fn look_through(
        &self,
        client: &Client,
        entries: &[String],
        tell: Tell<'_>,
    ) -> Result<Archive, DownloadError> {
        if self.path.is_file() {
            return Archive::open(&self.path, &file_name_of(&self.path), entries, tell);
        }
        let from = client.address(self.url);
        let opened = Archive::open(&self.part.path, &from, entries, tell);
        self.remove_if_damaged(opened)
    }

    fn unpack(&self, archive: &Archive, root: &Path, tell: Tell<'_>) -> Result<(), DownloadError> {
        let is_part = archive.path() == self.part.path;
        if !is_part {
            fs::write(&self.unpacking, "").map_err(|source| io(&self.unpacking, source))?;
        }
        let unpacked = archive.unpack(root, tell);
        let unpacked = if is_part {
            self.remove_if_damaged(unpacked)?
        } else {
            unpacked?
        };
        if let Some(first) = unpacked.kept.first() {
            let line = format!(
                "{} of the files of {} were there already with other contents and are kept, the first is {}",
                unpacked.kept.len(),
                archive.from(),
                first.display()
            );
            // A break is seen at the next step.
            let _ = tell(Step::Warning(&line));
        }
        if self.unpacking.exists() {
            fs::remove_file(&self.unpacking).map_err(|source| io(&self.unpacking, source))?;
        }
        let removed = self.part.remove();
        removed.map_err(|source| io(&self.part.path, source))
    }

    fn remove_if_damaged<T>(&self, result: Result<T, DownloadError>) -> Result<T, DownloadError> {
        if let Err(DownloadError::Archive { .. }) = &result {
            // The reason that it is removed is what is told.
            let _ = self.part.remove();
        }
        result
    }
}

/// The last part of an address's path, as a name that is safe on any disk.
fn file_name(url: &str) -> String {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    let path = path.split_once("://").map_or(path, |(_, rest)| rest);
    let last = match path.trim_end_matches('/').rsplit_once('/') {
        Some((_, last)) => last,
        None => "",
    };
    let name: String = last
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') {
                c
            } else {
                '_'
            }
        })
        .collect();
    let name = name.trim_start_matches('.');
    if name.is_empty() {
        "archive".to_owned()
    } else {
        name.chars().take(100).collect()
    }
}

fn file_name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn list(words: impl Iterator<Item = String>) -> String {
    words.collect::<Vec<_>>().join(" and ")
}

fn io(path: &Path, source: std::io::Error) -> DownloadError {
    DownloadError::io(path, source, || {
        "files of the data set are to be written".to_owned()
    })
}
