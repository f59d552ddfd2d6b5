//! `--cfg` files: a YAML mapping from option names to values, each with its place in the file.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::error::{ConfigError, Place};
use super::kind::Kind;
use super::options::{OptionSpec, find};

/// The list in `args.yaml` of the options that the user gave.
const GIVEN: &str = "given";

/// One option of a file.
pub(super) struct Entry {
    pub spec: &'static OptionSpec,
    /// As it would be written on the command line; `None` for `null`.
    pub value: Option<String>,
    /// Of the value.
    pub place: Place,
}

pub(super) struct OptionsFile {
    pub entries: Vec<Entry>,
    /// Names of options (kebab case), where the file has the list.
    pub given: Option<Vec<&'static str>>,
}

/// Reads the text of a `--cfg` file; `path` names it in messages.
pub(super) fn read(text: &str, path: &str) -> Result<OptionsFile, ConfigError> {
    let place_of = |location: Location| Place::File {
        path: path.to_owned(),
        line: location.line(),
        column: location.column(),
    };
    let options = serde_saphyr::options! {
        // Keys that are there twice are reported below, with both lines.
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::PassThrough,
        with_snippet: false,
        // Refused by the options themselves, which say what they allow.
        non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::PassThrough,
    };
    let mapping: Option<Mapping> =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            ConfigError::Malformed {
                place: place_of(error.location().unwrap_or(Location::UNKNOWN)),
                message: message_of(&error),
            }
        })?;

    let mut file = OptionsFile {
        entries: Vec::new(),
        given: None,
    };
    let mut seen: Vec<(&str, u64)> = Vec::new();
    let pairs = mapping.map(|mapping| mapping.0).unwrap_or_default();
    for (key, node) in &pairs {
        let key_place = place_of(key.referenced);
        let name = if key.value == GIVEN {
            GIVEN
        } else {
            let spec = find(&key.value)
                .ok_or_else(|| ConfigError::unknown(&key.value, None, key_place.clone()))?;
            spec.name
        };
        if let Some((_, first_line)) = seen.iter().find(|(earlier, _)| *earlier == name) {
            return Err(ConfigError::Twice {
                option: key.value.clone(),
                place: key_place,
                first_line: *first_line,
            });
        }
        seen.push((name, key.referenced.line()));

        let malformed = |message: &str| ConfigError::Malformed {
            place: place_of(node.referenced),
            message: message.to_owned(),
        };
        let value = node
            .value
            .as_text(text, node.defined)
            .map_err(|NotAValue| malformed("a value is a single one or a list of single ones"))?;
        if name == GIVEN {
            file.given = Some(given_names(value.as_deref(), &place_of(node.referenced))?);
        } else if name == "cfg" && value.is_some() {
            return Err(malformed("such a file cannot name another one with cfg"));
        } else if let Some(spec) = find(name) {
            // there, a list of one number is not the number
            let is_list = matches!(node.value, Node::List(_)) && spec.kind == Kind::Layers;
            let value = value.map(|text| if is_list { format!("[{text}]") } else { text });
            file.entries.push(Entry {
                spec,
                value,
                place: place_of(node.referenced),
            });
        }
    }
    Ok(file)
}

/// The reader's message in one line, without the place, which is said elsewhere.
fn message_of(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error;
    match error.without_snippet() {
        Error::MultipleDocuments { .. } => "the file holds more than one YAML document".to_owned(),
        Error::Unexpected { .. } => "lines of `option: value` are expected".to_owned(),
        other => {
            let text = other.to_string();
            let line = text.lines().next().unwrap_or_default();
            line.split(" at line ").next().unwrap_or(line).to_owned()
        }
    }
}

fn given_names(list: Option<&str>, place: &Place) -> Result<Vec<&'static str>, ConfigError> {
    list.unwrap_or_default()
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| {
            find(name)
                .map(|spec| spec.name)
                .ok_or_else(|| ConfigError::unknown(name, None, place.clone()))
        })
        .collect()
}

/// The pairs of a mapping, in the order of the file.
struct Mapping(Vec<(Spanned<String>, Spanned<Node>)>);

impl<'de> Deserialize<'de> for Mapping {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Mapping;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("lines of `option: value`")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Mapping, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Mapping(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// A value as it stands in the file.
enum Node {
    Null,
    /// A string, quoted or not.
    Text(String),
    /// Unquoted, and read as a number or a truth value: the text in the file counts (`name: 007` is no seven); the string here
    /// is for where the file's text cannot be had.
    Plain(String),
    List(Vec<Spanned<Node>>),
    Mapping,
}

struct NotAValue;

impl Node {
    /// The value as on the command line, items of a list with commas between them. `source` is the file's text.
    fn as_text(&self, source: &str, location: Location) -> Result<Option<String>, NotAValue> {
        match self {
            Node::Null => Ok(None),
            Node::Text(text) => Ok(Some(text.clone())),
            Node::Plain(fallback) => {
                let in_source = source_text(source, location).unwrap_or(fallback);
                Ok(Some(in_source.trim().to_owned()))
            }
            Node::List(items) => {
                let mut texts = Vec::with_capacity(items.len());
                for item in items {
                    match &item.value {
                        Node::Text(_) | Node::Plain(_) => {
                            texts.extend(item.value.as_text(source, item.defined)?);
                        }
                        Node::Null | Node::List(_) | Node::Mapping => return Err(NotAValue),
                    }
                }
                Ok(Some(texts.join(",")))
            }
            Node::Mapping => Err(NotAValue),
        }
    }
}

fn source_text(source: &str, location: Location) -> Option<&str> {
    let span = location.span();
    let start = usize::try_from(span.byte_offset()?).ok()?;
    let length = usize::try_from(span.byte_len()?).ok()?;
    source.get(start..start.checked_add(length)?)
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        macro_rules! plain {
            ($($visit:ident: $type:ty),*) => {
                $(fn $visit<E>(self, value: $type) -> Result<Node, E> {
                    Ok(Node::Plain(value.to_string()))
                })*
            };
        }

        impl<'de> Visitor<'de> for Any {
            type Value = Node;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a value or a list")
            }

            plain!(
                visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_i128: i128, visit_u128: u128, visit_f64: f64
            );

            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::Null)
            }

            fn visit_none<E>(self) -> Result<Node, E> {
                Ok(Node::Null)
            }

            fn visit_str<E>(self, value: &str) -> Result<Node, E> {
                Ok(Node::Text(value.to_owned()))
            }

            fn visit_bytes<E: serde::de::Error>(self, _: &[u8]) -> Result<Node, E> {
                Err(E::custom("binary data is no value of an option"))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    if items.len() == 1_000_000 {
                        return Err(A::Error::custom("a list of more than a million items"));
                    }
                    items.push(item);
                }
                Ok(Node::List(items))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
                use serde::de::IgnoredAny;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Node::Mapping)
            }
        }
        deserializer.deserialize_any(Any)
    }
}
