//! Which files `--source` means.

use super::PredictError;
use crate::data::decode::READABLE_EXTENSIONS;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Extensions of videos: they are told from "not an image" for the sake of the message.
const VIDEO_EXTENSIONS: [&str; 14] = [
    "asf", "avi", "flv", "m2ts", "m4v", "mkv", "mov", "mp4", "mpeg", "mpg", "mts", "ogv", "webm",
    "wmv",
];

/// The images of `--source`, in order, each once.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sources {
    pub files: Vec<PathBuf>,
    /// What was found and what was left out, a line each.
    pub notes: Vec<String>,
}

/// Finds the images that `source` names: a file, a folder (not what lies in folders below it), a pattern, a `.txt` list, or
/// several of these with commas between them. Folders and patterns give their files in the order of their names.
///
/// # Errors
/// [`PredictError`]: nothing of that name, nothing in it, videos and addresses.
pub fn find(source: &str) -> Result<Sources, PredictError> {
    let mut found = Sources::default();
    let items = split(source);
    // dozens of files that a shell found need no line each
    let quiet = items.len() > 1;
    for item in &items {
        expand(item, quiet, &mut found)?;
    }
    let before = found.files.len();
    let mut seen = HashSet::new();
    found.files.retain(|f| seen.insert(f.clone()));
    if found.files.len() < before {
        let times = before - found.files.len();
        found
            .notes
            .push(format!("{times} files are named twice and taken once"));
    }
    if quiet {
        found.notes.insert(
            0,
            format!("{} images by {} names", found.files.len(), items.len()),
        );
    }
    Ok(found)
}

/// The names in a text with commas between them; a comma that belongs to a file's name does not part it.
fn split(source: &str) -> Vec<String> {
    // commas within one name
    const MOST: usize = 8;
    let parts: Vec<&str> = source.split(',').collect();
    let mut items = vec![];
    let mut at = 0;
    while at < parts.len() {
        let ends = at + 1..=(at + 1 + MOST).min(parts.len());
        let name = |end: usize| parts[at..end].join(",");
        let end = ends
            .clone()
            .find(|&end| Path::new(&name(end)).exists())
            .or_else(|| {
                // not there as it stands: perhaps with the space before it taken for a part of the list
                ends.clone()
                    .find(|&end| Path::new(name(end).trim()).exists())
            })
            .unwrap_or(at + 1);
        let item = name(end);
        let item = if Path::new(&item).exists() {
            item
        } else {
            item.trim().to_owned()
        };
        if !item.is_empty() {
            items.push(item);
        }
        at = end;
    }
    items
}

fn expand(item: &str, quiet: bool, found: &mut Sources) -> Result<(), PredictError> {
    let path = Path::new(item);
    if path.is_dir() {
        return folder(item, path, found);
    }
    if path.exists() {
        return match extension(path).as_str() {
            "txt" => list(item, path, found),
            e if VIDEO_EXTENSIONS.contains(&e) => Err(video(item)),
            _ => {
                found.files.push(path.to_owned());
                Ok(())
            }
        };
    }
    if item.contains("://") {
        return Err(PredictError::Kind {
            given: item.into(),
            kind: "addresses",
            advice: "download the images and give their folder",
        });
    }
    if item.parse::<u32>().is_ok() || item.eq_ignore_ascii_case("screen") {
        return Err(PredictError::Kind {
            given: item.into(),
            kind: "cameras and screens",
            advice: "save images and give their folder",
        });
    }
    if item.contains(['*', '?', '[']) {
        return pattern(item, quiet, found);
    }
    if VIDEO_EXTENSIONS.contains(&extension(path).as_str()) {
        return Err(video(item));
    }
    Err(PredictError::Missing {
        given: item.into(),
        path: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
    })
}

fn video(item: &str) -> PredictError {
    PredictError::Kind {
        given: item.into(),
        kind: "videos",
        advice: "make images of it (ffmpeg -i VIDEO folder/%06d.jpg) and give their folder",
    }
}

fn extension(path: &Path) -> String {
    path.extension()
        .map(|e| e.to_string_lossy().to_lowercase())
        .unwrap_or_default()
}

/// Files of a folder or a pattern, the images among them, and what else there was.
#[derive(Default)]
struct Sorting {
    images: Vec<PathBuf>,
    /// Number by extension.
    others: BTreeMap<String, usize>,
    hidden: usize,
    folders: usize,
}

impl Sorting {
    fn take(&mut self, path: PathBuf) {
        let hidden = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with('.'));
        let extension = extension(&path);
        if path.is_dir() {
            self.folders += usize::from(!hidden);
        } else if hidden {
            self.hidden += 1;
        } else if READABLE_EXTENSIONS.contains(&extension.as_str()) {
            self.images.push(path);
        } else {
            let named = match extension.as_str() {
                "" => "without extension".to_owned(),
                e => format!(".{e}"),
            };
            *self.others.entry(named).or_default() += 1;
        }
    }

    /// `3 .txt, 2 folders`; empty where nothing was left out.
    fn left_out(&self) -> String {
        let mut parts: Vec<String> = self
            .others
            .iter()
            .map(|(extension, n)| format!("{n} {extension}"))
            .collect();
        if self.hidden > 0 {
            parts.push(format!("{} hidden", self.hidden));
        }
        if self.folders > 0 {
            let s = if self.folders == 1 { "" } else { "s" };
            parts.push(format!("{} folder{s}", self.folders));
        }
        parts.join(", ")
    }
}

fn folder(item: &str, path: &Path, found: &mut Sources) -> Result<(), PredictError> {
    let io = |source| PredictError::Io {
        path: path.to_owned(),
        source,
    };
    let mut sorting = Sorting::default();
    for entry in fs::read_dir(path).map_err(io)? {
        sorting.take(entry.map_err(io)?.path());
    }
    let below = if sorting.folders > 0 {
        let pattern = path.join("**").join("*");
        format!(
            " (images in folders below: --source '{}')",
            pattern.display()
        )
    } else {
        String::new()
    };
    finish(item, "the folder", sorting, &below, false, found)
}

fn pattern(item: &str, quiet: bool, found: &mut Sources) -> Result<(), PredictError> {
    let options = glob::MatchOptions {
        case_sensitive: true,
        require_literal_separator: true,
        require_literal_leading_dot: true,
    };
    let paths = glob::glob_with(item, options).map_err(|e| PredictError::Pattern {
        given: item.into(),
        reason: e.msg,
        position: e.pos + 1,
    })?;
    let mut sorting = Sorting::default();
    for path in paths {
        sorting.take(path.map_err(|e| PredictError::Io {
            path: e.path().to_owned(),
            source: e.into(),
        })?);
    }
    // a pattern such as **/* finds the folders on its way
    sorting.folders = 0;
    finish(item, "the pattern", sorting, "", quiet, found)
}

fn finish(
    item: &str,
    what: &str,
    mut sorting: Sorting,
    below: &str,
    quiet: bool,
    found: &mut Sources,
) -> Result<(), PredictError> {
    let left_out = sorting.left_out();
    if sorting.images.is_empty() {
        let has = match left_out.as_str() {
            "" => "nothing".to_owned(),
            others => format!("{others}{below}"),
        };
        return Err(PredictError::Empty {
            given: item.into(),
            found: format!(
                "looked for files that end in {}; {what} has {has}",
                READABLE_EXTENSIONS.map(|e| format!(".{e}")).join(" ")
            ),
        });
    }
    if !quiet {
        let n = sorting.images.len();
        let rest = match left_out.as_str() {
            "" => String::new(),
            others => format!("; left out: {others}{below}"),
        };
        found.notes.push(format!("{item}: {n} images{rest}"));
    }
    sorting.images.sort();
    found.files.append(&mut sorting.images);
    Ok(())
}

/// A line a file. Relative paths are relative to the list's folder or, where there is no such file, to the current one. What
/// is missing is met, and reported, when it is read.
fn list(item: &str, path: &Path, found: &mut Sources) -> Result<(), PredictError> {
    let bytes = fs::read(path).map_err(|source| PredictError::Io {
        path: path.to_owned(),
        source,
    })?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let folder = path.parent().unwrap_or(Path::new(""));
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let before = found.files.len();
    found.files.extend(lines.map(|line| {
        let beside = folder.join(line.strip_prefix("./").unwrap_or(line));
        let here = PathBuf::from(line);
        if !beside.exists() && here.exists() {
            here
        } else {
            beside
        }
    }));
    let n = found.files.len() - before;
    if n == 0 {
        return Err(PredictError::Empty {
            given: item.into(),
            found: "the list has no lines; it should have the path of an image in each".into(),
        });
    }
    found.notes.push(format!("{item}: {n} images"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Place(tempfile::TempDir);

    impl Place {
        fn new(files: &[&str]) -> Self {
            let place = Self(tempfile::tempdir().unwrap());
            for file in files {
                let path = place.0.path().join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "x").unwrap();
            }
            place
        }

        fn path(&self, name: &str) -> String {
            self.0.path().join(name).display().to_string()
        }

        fn found(&self, source: &str) -> (Vec<String>, Vec<String>) {
            let root = format!("{}/", self.0.path().display());
            let found = find(source).unwrap_or_else(|e| panic!("{e}"));
            let short = |text: String| text.replace(&root, "");
            (
                found
                    .files
                    .iter()
                    .map(|f| short(f.display().to_string()))
                    .collect(),
                found.notes.into_iter().map(short).collect(),
            )
        }
    }

    fn message(source: &str) -> String {
        let text = find(source).unwrap_err().to_string();
        assert!(!text.contains('\n'), "{text}");
        text
    }

    #[test]
    fn a_folder_gives_its_own_images_by_name_and_says_what_it_left_out() {
        let p = Place::new(&[
            "b.jpg",
            "a b.PNG",
            "ü.jpeg",
            ".c.jpg",
            "n.txt",
            "deep/d.jpg",
        ]);
        let (files, notes) = p.found(&p.path(""));
        assert_eq!(files, ["a b.PNG", "b.jpg", "ü.jpeg"]);
        assert_eq!(notes.len(), 1);
        assert!(
            notes[0].contains("3 images; left out: 1 .txt, 1 hidden, 1 folder (images in folders below: --source '"),
            "{notes:?}"
        );
        let (files, _) = p.found(&p.path("**/*.jpg"));
        assert_eq!(files, ["b.jpg", "deep/d.jpg"], "hidden files stay hidden");
    }

    #[test]
    fn patterns_take_images_only_and_a_file_of_that_very_name_goes_first() {
        let p = Place::new(&["a1.jpg", "a2.jpg", "b1.jpg", "a1.txt", "a[1].jpg"]);
        assert_eq!(p.found(&p.path("a?.*")).0, ["a1.jpg", "a2.jpg"]);
        assert_eq!(p.found(&p.path("a[12].jpg")).0, ["a1.jpg", "a2.jpg"]);
        assert_eq!(p.found(&p.path("a[1].jpg")).0, ["a[1].jpg"]);
    }

    #[test]
    fn several_names_and_names_with_commas_are_told_apart() {
        let p = Place::new(&["a.jpg", "b, c.jpg", "d/e.jpg"]);
        let source = format!("{},{},{}", p.path("b, c.jpg"), p.path("a.jpg"), p.path("d"));
        assert_eq!(p.found(&source).0, ["b, c.jpg", "a.jpg", "d/e.jpg"]);
        let spaced = format!("{}, {}", p.path("a.jpg"), p.path("a.jpg"));
        let (files, notes) = p.found(&spaced);
        assert_eq!(files, ["a.jpg"]);
        assert!(notes.iter().any(|n| n.contains("named twice")), "{notes:?}");
    }

    #[test]
    fn a_list_names_files_beside_it_even_missing_ones() {
        let p = Place::new(&["l/a.jpg"]);
        fs::write(p.path("l/list.txt"), "\u{feff}./a.jpg\r\n\r\nmissing.jpg\n").unwrap();
        assert_eq!(
            p.found(&p.path("l/list.txt")).0,
            ["l/a.jpg", "l/missing.jpg"]
        );
        fs::write(p.path("l/none.txt"), "\n \n").unwrap();
        assert!(message(&p.path("l/none.txt")).contains("the list has no lines"));
    }

    #[test]
    fn what_is_not_there_says_what_was_looked_for() {
        let p = Place::new(&["t/n.txt", "t/x/a.jpg", "e/.hidden"]);
        let m = message(&p.path("t"));
        assert!(
            m.contains("no images; looked for files that end in .jpg"),
            "{m}"
        );
        assert!(
            m.contains("the folder has 1 .txt, 1 folder (images in folders below"),
            "{m}"
        );
        assert!(message(&p.path("*.jpg")).ends_with("the pattern has nothing"));
        assert!(message(&p.path("none.jpg")).contains("there is no such file or folder"));
        assert!(
            message(&p.path("a[")).contains("not a pattern"),
            "{}",
            message(&p.path("a["))
        );
    }

    #[test]
    fn videos_cameras_and_addresses_are_refused_by_what_they_are() {
        let p = Place::new(&["film.mp4"]);
        for (source, kind) in [
            (
                p.path("film.mp4").as_str(),
                "videos cannot be read; make images of it",
            ),
            ("other.MOV", "videos cannot"),
            (
                "https://example.com/a.jpg",
                "addresses cannot be read; download",
            ),
            ("rtsp://10.0.0.1/stream", "addresses cannot"),
            ("0", "cameras and screens cannot"),
            ("screen", "cameras and screens cannot"),
        ] {
            assert!(
                message(source).contains(kind),
                "{source}: {}",
                message(source)
            );
        }
    }
}
