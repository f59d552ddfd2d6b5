//! The `download` key: addresses of archives, `coco_url`, annotations inside the program. Code is never executed.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::{DatasetError, SplitName};

/// Annotation files inside the binary, by the name after `embedded:`, with their attribution.
static EMBEDDED_FILES: [(&str, &[EmbeddedFile]); 2] = [
    (
        "coco8",
        &[
            (
                "ATTRIBUTION.md",
                include_str!("../../../datasets/coco8/ATTRIBUTION.md"),
            ),
            (
                "annotations/train.json",
                include_str!("../../../datasets/coco8/annotations/train.json"),
            ),
            (
                "annotations/val.json",
                include_str!("../../../datasets/coco8/annotations/val.json"),
            ),
        ],
    ),
    (
        "coco128",
        &[
            (
                "ATTRIBUTION.md",
                include_str!("../../../datasets/coco128/ATTRIBUTION.md"),
            ),
            (
                "annotations/train.json",
                include_str!("../../../datasets/coco128/annotations/train.json"),
            ),
        ],
    ),
];

/// Path below the data set's root, with `/`, and contents.
pub type EmbeddedFile = (&'static str, &'static str);

/// What the `download` key holds. Code is kept only to be refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Download {
    /// In the file's order.
    Sources(Vec<Wanted>),
    /// Shell or Python code: never executed.
    Code { first_line: String },
}

/// One thing to get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The split that needs it; `None`: each of them.
    pub split: Option<SplitName>,
    pub source: Source,
}

/// Where files of a data set come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A zip, tar or tar.gz archive, to be unpacked below the root.
    Archive {
        url: String,
        /// The archive is left out where one of these paths below the root exists. Empty: where the splits that
        /// need it exist.
        gives: Vec<String>,
    },
    /// Each image of a COCO JSON from its `coco_url`.
    ImageUrls,
    /// Files inside the program.
    Embedded(&'static [EmbeddedFile]),
}

impl Download {
    /// What these splits need, each source once, with those of the splits that need it.
    pub fn sources(&self, splits: &[SplitName]) -> Vec<(&Source, Vec<SplitName>)> {
        let Self::Sources(all) = self else {
            return Vec::new();
        };
        let mut sources: Vec<(&Source, Vec<SplitName>)> = Vec::new();
        for wanted in all {
            for &split in splits {
                if wanted.split.is_some_and(|only| only != split) {
                    continue;
                }
                let known = sources.iter_mut().find(|(s, _)| **s == wanted.source);
                match known {
                    Some((_, needed_by)) if needed_by.contains(&split) => {}
                    Some((_, needed_by)) => needed_by.push(split),
                    None => sources.push((&wanted.source, vec![split])),
                }
            }
        }
        sources
    }

    /// How the files get to where they are looked for, in words.
    pub(super) fn hint(&self, root: &std::path::Path) -> String {
        let root = root.display();
        match self {
            Self::Code { first_line } => format!(
                "`download` holds code (`{first_line}`), which is never executed: get the files yourself and put them into {root}"
            ),
            Self::Sources(all) => {
                let mut urls: Vec<&str> = Vec::new();
                for wanted in all {
                    if let Source::Archive { url, .. } = &wanted.source
                        && !urls.contains(&url.as_str())
                    {
                        urls.push(url);
                    }
                }
                match urls.as_slice() {
                    [] => format!("put the files into {root}"),
                    [url] => format!("get {url} and unpack it into {root}"),
                    urls => format!("get {} and unpack them into {root}", urls.join(", ")),
                }
            }
        }
    }
}

/// The value as written.
#[derive(Debug)]
pub(super) enum RawDownload {
    One(RawSource),
    List(Vec<RawSource>),
    /// By key, which is to be a split.
    BySplit(Vec<(String, Vec<RawSource>)>),
}

#[derive(Debug)]
pub(super) enum RawSource {
    Text(String),
    Archive { url: String, gives: Vec<String> },
}

impl RawDownload {
    /// `None`: nothing is given.
    pub(super) fn read(self, label: &str) -> Result<Option<Download>, DatasetError> {
        let mut raw: Vec<(Option<SplitName>, RawSource)> = Vec::new();
        match self {
            Self::One(source) => raw.push((None, source)),
            Self::List(sources) => raw.extend(sources.into_iter().map(|source| (None, source))),
            Self::BySplit(splits) => {
                for (key, sources) in splits {
                    let split = SplitName::ALL.into_iter().find(|split| split.key() == key);
                    let Some(split) = split else {
                        return Err(bad(
                            label,
                            &key,
                            "a map holds url and gives, or what each of train, val and test needs",
                        ));
                    };
                    raw.extend(sources.into_iter().map(|source| (Some(split), source)));
                }
            }
        }
        let mut wanted = Vec::with_capacity(raw.len());
        for (split, source) in raw {
            let source = match source {
                RawSource::Text(text) if text.trim().is_empty() => continue,
                RawSource::Text(text) => match read_text(text.trim(), label)? {
                    Ok(source) => source,
                    Err(first_line) => return Ok(Some(Download::Code { first_line })),
                },
                RawSource::Archive { url, gives } => {
                    let url = url.trim();
                    if !is_address(url) {
                        return Err(bad(
                            label,
                            url,
                            "an address begins with http:// or https://",
                        ));
                    }
                    Source::Archive {
                        url: url.to_owned(),
                        gives,
                    }
                }
            };
            wanted.push(Wanted { split, source });
        }
        Ok((!wanted.is_empty()).then_some(Download::Sources(wanted)))
    }
}

/// The source, or the first line of what is code.
fn read_text(text: &str, label: &str) -> Result<Result<Source, String>, DatasetError> {
    if is_address(text) {
        return Ok(Ok(Source::Archive {
            url: text.to_owned(),
            gives: Vec::new(),
        }));
    }
    if text == "coco_url" {
        return Ok(Ok(Source::ImageUrls));
    }
    if let Some(name) = text.strip_prefix("embedded:") {
        let found = EMBEDDED_FILES.iter().find(|(known, _)| *known == name);
        let names: Vec<&str> = EMBEDDED_FILES.iter().map(|(known, _)| *known).collect();
        return match found {
            Some((_, files)) => Ok(Ok(Source::Embedded(files))),
            None => Err(bad(
                label,
                text,
                &format!("the program holds annotations of {}", names.join(" and ")),
            )),
        };
    }
    let first = text.lines().next().unwrap_or_default();
    let mut first_line: String = first.chars().take(40).collect();
    if first_line.len() < text.len() {
        first_line.push('…');
    }
    Ok(Err(first_line))
}

fn is_address(text: &str) -> bool {
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"));
    rest.is_some_and(|rest| !rest.is_empty()) && !text.contains(char::is_whitespace)
}

fn bad(label: &str, value: &str, expected: &str) -> DatasetError {
    DatasetError::Value {
        label: label.to_owned(),
        key: "download".to_owned(),
        value: value.to_owned(),
        expected: expected.to_owned(),
    }
}

/// One text, or a list of them.
#[derive(Debug, Default)]
struct Texts(Vec<String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextsVisitor;
        impl<'de> Visitor<'de> for TextsVisitor {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a path or a list of paths")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Texts, E> {
                Ok(Texts(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Texts, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = seq.next_element()? {
                    texts.push(text);
                }
                Ok(Texts(texts))
            }
        }
        deserializer.deserialize_any(TextsVisitor)
    }
}

impl<'de> Deserialize<'de> for RawSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match RawDownload::deserialize(deserializer)? {
            RawDownload::One(source) => Ok(source),
            _ => Err(D::Error::custom(
                "an entry of download is an address, coco_url, or {url: ADDRESS, gives: PATHS}",
            )),
        }
    }
}

impl<'de> Deserialize<'de> for RawDownload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DownloadVisitor;
        impl<'de> Visitor<'de> for DownloadVisitor {
            type Value = RawDownload;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str(
                    "an address, coco_url, a list of those, or what train, val and test need",
                )
            }

            fn visit_unit<E: Error>(self) -> Result<RawDownload, E> {
                Ok(RawDownload::List(Vec::new()))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<RawDownload, E> {
                Ok(RawDownload::One(RawSource::Text(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<RawDownload, A::Error> {
                let mut sources = Vec::new();
                while let Some(source) = seq.next_element()? {
                    sources.push(source);
                }
                Ok(RawDownload::List(sources))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawDownload, A::Error> {
                let mut url = None;
                let mut gives = Texts::default();
                let mut splits = Vec::new();
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "url" => url = Some(map.next_value::<String>()?),
                        "gives" => gives = map.next_value()?,
                        _ => {
                            let sources = match map.next_value()? {
                                RawDownload::One(source) => vec![source],
                                RawDownload::List(sources) => sources,
                                RawDownload::BySplit(_) => {
                                    return Err(A::Error::custom(format!(
                                        "`{key}` of download is not a list of addresses"
                                    )));
                                }
                            };
                            splits.push((key, sources));
                        }
                    }
                }
                match (url, splits.is_empty()) {
                    (Some(url), true) => Ok(RawDownload::One(RawSource::Archive {
                        url,
                        gives: gives.0,
                    })),
                    (None, false) if gives.0.is_empty() => Ok(RawDownload::BySplit(splits)),
                    _ => Err(A::Error::custom(
                        "a map of download holds url and gives, or what each of train, val and test needs",
                    )),
                }
            }
        }
        deserializer.deserialize_any(DownloadVisitor)
    }
}
