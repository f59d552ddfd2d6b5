//! Fields of a COCO file, each taking whatever stands there.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::rle;

/// A scalar of any JSON type.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum Scalar {
    /// Absent or null.
    #[default]
    Missing,
    Int(i128),
    Float(f64),
    Text(String),
    Bool(bool),
    /// A list or an object.
    Other,
}

impl Scalar {
    /// A whole number from 0 to 2^64 - 1; floats and texts count where they are one exactly.
    pub fn as_id(&self) -> Option<u64> {
        match self {
            Self::Int(value) => u64::try_from(*value).ok(),
            // Beyond 2^53 a float no longer tells which integer was meant.
            Self::Float(v) if v.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(v) => {
                Some(*v as u64)
            }
            Self::Text(text) => text.trim().parse().ok(),
            _ => None,
        }
    }

    /// A finite number; texts count where they are one.
    pub fn as_number(&self) -> Option<f64> {
        let value = match self {
            Self::Int(value) => *value as f64,
            Self::Float(value) => *value,
            Self::Text(text) => text.trim().parse().ok()?,
            _ => return None,
        };
        value.is_finite().then_some(value)
    }

    /// `iscrowd`: absent is no; any whole number but 0 is yes.
    pub fn as_flag(&self) -> Option<bool> {
        match self {
            Self::Missing => Some(false),
            Self::Bool(value) => Some(*value),
            other => other
                .as_number()
                .filter(|value| value.fract() == 0.0)
                .map(|value| value != 0.0),
        }
    }

    /// A text; numbers count as their digits.
    pub fn as_text(&self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text.clone()),
            Self::Int(value) => Some(value.to_string()),
            Self::Float(value) => Some(value.to_string()),
            _ => None,
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("nothing"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value}"),
            Self::Text(text) => write!(f, "\"{text}\""),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Other => f.write_str("a list or an object"),
        }
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_unit<E>(self) -> Result<Scalar, E> {
        Ok(Scalar::Missing)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
        Ok(Scalar::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
        Ok(Scalar::Int(value.into()))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
        Ok(Scalar::Int(value.into()))
    }
    fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
        Ok(Scalar::Float(value))
    }
    fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(value.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Scalar, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar::Other)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar::Other)
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

/// `bbox` as found.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum BoxField {
    /// Absent, null or an empty list.
    #[default]
    Missing,
    Box([f64; 4]),
    /// As text, for the message.
    Bad(String),
}

impl<'de> Deserialize<'de> for BoxField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BoxVisitor;
        impl<'de> Visitor<'de> for BoxVisitor {
            type Value = BoxField;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a box")
            }
            fn visit_unit<E>(self) -> Result<BoxField, E> {
                Ok(BoxField::Missing)
            }
            fn visit_bool<E>(self, value: bool) -> Result<BoxField, E> {
                Ok(BoxField::Bad(value.to_string()))
            }
            fn visit_i64<E>(self, value: i64) -> Result<BoxField, E> {
                Ok(BoxField::Bad(value.to_string()))
            }
            fn visit_u64<E>(self, value: u64) -> Result<BoxField, E> {
                Ok(BoxField::Bad(value.to_string()))
            }
            fn visit_f64<E>(self, value: f64) -> Result<BoxField, E> {
                Ok(BoxField::Bad(value.to_string()))
            }
            fn visit_str<E>(self, value: &str) -> Result<BoxField, E> {
                Ok(BoxField::Bad(format!("\"{value}\"")))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<BoxField, A::Error> {
                ScalarVisitor.visit_map(map)?;
                Ok(BoxField::Bad("an object".to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<BoxField, A::Error> {
                let mut values: Vec<Scalar> = Vec::with_capacity(4);
                while let Some(value) = seq.next_element()? {
                    values.push(value);
                }
                if values.is_empty() {
                    return Ok(BoxField::Missing);
                }
                let numbers: Option<Vec<f64>> = values.iter().map(Scalar::as_number).collect();
                match numbers.as_deref() {
                    Some(&[x, y, w, h]) => Ok(BoxField::Box([x, y, w, h])),
                    _ => {
                        let shown: Vec<String> =
                            values.iter().take(6).map(Scalar::to_string).collect();
                        let more = if values.len() > 6 { ", …" } else { "" };
                        Ok(BoxField::Bad(format!("[{}{more}]", shown.join(", "))))
                    }
                }
            }
        }
        deserializer.deserialize_any(BoxVisitor)
    }
}

/// The extent of `segmentation`, the mask itself is not kept.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum Extent {
    /// Absent, null, empty, or a mask without ones.
    #[default]
    None,
    /// `[x, y, width, height]`.
    Box([f64; 4]),
    /// What is wrong; it matters only where there is no bbox.
    Bad(String),
}

/// Smallest and largest coordinates so far.
#[derive(Debug, Clone, Copy)]
struct Range {
    low: [f64; 2],
    high: [f64; 2],
    values: usize,
    bad: bool,
}

impl Range {
    fn new() -> Self {
        Self {
            low: [f64::INFINITY; 2],
            high: [f64::NEG_INFINITY; 2],
            values: 0,
            bad: false,
        }
    }

    fn add(&mut self, value: Option<f64>) {
        let axis = self.values % 2;
        self.values += 1;
        match value {
            Some(value) => {
                self.low[axis] = self.low[axis].min(value);
                self.high[axis] = self.high[axis].max(value);
            }
            None => self.bad = true,
        }
    }

    fn merge(&mut self, other: Self) {
        for axis in 0..2 {
            self.low[axis] = self.low[axis].min(other.low[axis]);
            self.high[axis] = self.high[axis].max(other.high[axis]);
        }
        // A polygon of an odd number of coordinates is bad by itself, so parity does not carry over.
        self.values += other.values;
        self.bad |= other.bad || other.values % 2 == 1;
    }

    fn extent(self) -> Extent {
        if self.values == 0 {
            Extent::None
        } else if self.bad || self.values % 2 == 1 {
            Extent::Bad("its polygon is not a list of x, y pairs".to_owned())
        } else {
            Extent::Box([
                self.low[0],
                self.low[1],
                self.high[0] - self.low[0],
                self.high[1] - self.low[1],
            ])
        }
    }
}

/// An element of a polygon list: a number of a flat polygon, or a polygon.
enum PolygonPart {
    Number(Option<f64>),
    Polygon(Range),
}

impl<'de> Deserialize<'de> for PolygonPart {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PartVisitor;
        impl<'de> Visitor<'de> for PartVisitor {
            type Value = PolygonPart;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a polygon")
            }
            fn visit_unit<E>(self) -> Result<PolygonPart, E> {
                Ok(PolygonPart::Number(None))
            }
            fn visit_bool<E>(self, _: bool) -> Result<PolygonPart, E> {
                Ok(PolygonPart::Number(None))
            }
            fn visit_i64<E>(self, value: i64) -> Result<PolygonPart, E> {
                Ok(PolygonPart::Number(Some(value as f64)))
            }
            fn visit_u64<E>(self, value: u64) -> Result<PolygonPart, E> {
                Ok(PolygonPart::Number(Some(value as f64)))
            }
            fn visit_f64<E>(self, value: f64) -> Result<PolygonPart, E> {
                Ok(PolygonPart::Number(Some(value)))
            }
            fn visit_str<E>(self, value: &str) -> Result<PolygonPart, E> {
                Ok(PolygonPart::Number(
                    Scalar::Text(value.to_owned()).as_number(),
                ))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PolygonPart, A::Error> {
                ScalarVisitor.visit_map(map)?;
                Ok(PolygonPart::Number(None))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<PolygonPart, A::Error> {
                let mut range = Range::new();
                while let Some(value) = seq.next_element::<Scalar>()? {
                    range.add(value.as_number());
                }
                Ok(PolygonPart::Polygon(range))
            }
        }
        deserializer.deserialize_any(PartVisitor)
    }
}

/// `counts` of a run-length mask.
enum Counts {
    Plain(Vec<Scalar>),
    Packed(String),
    Bad,
}

impl<'de> Deserialize<'de> for Counts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CountsVisitor;
        impl<'de> Visitor<'de> for CountsVisitor {
            type Value = Counts;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("run lengths")
            }
            fn visit_unit<E>(self) -> Result<Counts, E> {
                Ok(Counts::Bad)
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Counts, E> {
                Ok(Counts::Packed(text.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Counts, A::Error> {
                let mut counts = Vec::new();
                while let Some(count) = seq.next_element()? {
                    counts.push(count);
                }
                Ok(Counts::Plain(counts))
            }
        }
        deserializer.deserialize_any(CountsVisitor)
    }
}

fn mask_extent(counts: Counts, size: &[Scalar]) -> Result<Option<[f64; 4]>, String> {
    let counts = match counts {
        Counts::Plain(counts) => counts
            .iter()
            .map(Scalar::as_id)
            .collect::<Option<Vec<u64>>>()
            .ok_or("its mask's counts are not whole numbers")?,
        Counts::Packed(text) => rle::unpack(&text)?,
        Counts::Bad => return Err("its mask has no counts".to_owned()),
    };
    let size: Option<Vec<u64>> = size.iter().map(Scalar::as_id).collect();
    match size.as_deref() {
        Some(&[height, width]) => rle::extent(&counts, height, width),
        _ => Err("its mask has no size [height, width]".to_owned()),
    }
}

impl<'de> Deserialize<'de> for Extent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ExtentVisitor;
        impl<'de> Visitor<'de> for ExtentVisitor {
            type Value = Extent;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("polygons or a run-length mask")
            }
            fn visit_unit<E>(self) -> Result<Extent, E> {
                Ok(Extent::None)
            }
            fn visit_bool<E: Error>(self, _: bool) -> Result<Extent, E> {
                Ok(Extent::Bad("its segmentation is not a polygon".to_owned()))
            }
            fn visit_i64<E: Error>(self, _: i64) -> Result<Extent, E> {
                self.visit_bool(false)
            }
            fn visit_u64<E: Error>(self, _: u64) -> Result<Extent, E> {
                self.visit_bool(false)
            }
            fn visit_f64<E: Error>(self, _: f64) -> Result<Extent, E> {
                self.visit_bool(false)
            }
            fn visit_str<E>(self, text: &str) -> Result<Extent, E> {
                if text.is_empty() {
                    return Ok(Extent::None);
                }
                Ok(Extent::Bad("its segmentation is not a polygon".to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Extent, A::Error> {
                let mut all = Range::new();
                while let Some(part) = seq.next_element()? {
                    match part {
                        PolygonPart::Number(value) => all.add(value),
                        PolygonPart::Polygon(range) => all.merge(range),
                    }
                }
                Ok(all.extent())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Extent, A::Error> {
                let mut counts = Counts::Bad;
                let mut size: Vec<Scalar> = Vec::new();
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "counts" => counts = map.next_value()?,
                        "size" => size = map.next_value::<Option<_>>()?.unwrap_or_default(),
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(match mask_extent(counts, &size) {
                    Ok(Some(bbox)) => Extent::Box(bbox),
                    Ok(None) => Extent::None,
                    Err(reason) => Extent::Bad(reason),
                })
            }
        }
        deserializer.deserialize_any(ExtentVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::super::CocoAnnotation;
    use super::*;

    fn annotation(json: &str) -> CocoAnnotation {
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{json}: {error}"))
    }

    #[test]
    fn ids_are_whole_numbers_however_they_are_written() {
        let id = |json: &str| annotation(&format!("{{\"id\": {json}}}")).id.as_id();
        assert_eq!(id("7"), Some(7));
        assert_eq!(id("0"), Some(0));
        assert_eq!(id("7.0"), Some(7));
        assert_eq!(id("\"000000000139\""), Some(139));
        assert_eq!(id("18446744073709551615"), Some(u64::MAX));
        assert_eq!(id("908800474295"), Some(908_800_474_295));
        for bad in [
            "7.5", "-1", "\"abc\"", "\"7.5\"", "null", "[7]", "{}", "true", "1e300",
        ] {
            assert_eq!(id(bad), None, "{bad}");
        }
    }

    #[test]
    fn odd_fields_do_not_fail_the_file() {
        let a = annotation(
            r#"{"id": 1, "image_id": {"a": [1]}, "bbox": "none", "area": null, "iscrowd": true,
                "segmentation": 5, "attributes": {"x": [1, {"y": 2}]}}"#,
        );
        assert_eq!(a.image_id, Scalar::Other);
        assert_eq!(a.bbox, BoxField::Bad("\"none\"".to_owned()));
        assert_eq!(a.iscrowd.as_flag(), Some(true));
        assert!(matches!(a.segmentation, Extent::Bad(_)));
        let bbox = |json: &str| annotation(&format!("{{\"bbox\": {json}}}")).bbox;
        assert_eq!(bbox("[]"), BoxField::Missing);
        assert_eq!(bbox("null"), BoxField::Missing);
        assert_eq!(
            bbox("[1, 2.5, 3, \"4\"]"),
            BoxField::Box([1.0, 2.5, 3.0, 4.0])
        );
        assert_eq!(bbox("[1, 2, 3]"), BoxField::Bad("[1, 2, 3]".to_owned()));
        assert_eq!(
            bbox("[1, null, 3, 4]"),
            BoxField::Bad("[1, nothing, 3, 4]".to_owned())
        );
    }

    #[test]
    fn the_extent_of_every_kind_of_segmentation_is_found() {
        let extent = |json: &str| annotation(&format!("{{\"segmentation\": {json}}}")).segmentation;
        assert_eq!(extent("[]"), Extent::None);
        assert_eq!(extent("[[]]"), Extent::None);
        assert_eq!(extent("null"), Extent::None);
        assert_eq!(
            extent("[[1, 2, 5, 2, 5, 9.5], [0, 3, 2, 3, 2, 4]]"),
            Extent::Box([0.0, 2.0, 5.0, 7.5])
        );
        assert_eq!(
            extent("[1, 2, 5, 2, 5, 9]"),
            Extent::Box([1.0, 2.0, 4.0, 7.0])
        );
        assert!(matches!(extent("[[1, 2, 3]]"), Extent::Bad(_)));
        assert!(matches!(extent("[[1, 2], [3]]"), Extent::Bad(_)));
        assert_eq!(
            extent(r#"{"counts": [0, 20, 30], "size": [10, 5]}"#),
            Extent::Box([0.0, 0.0, 2.0, 10.0])
        );
        assert_eq!(extent(r#"{"size": [10, 5], "counts": [50]}"#), Extent::None);
        assert!(matches!(
            extent(r#"{"counts": [0, 99], "size": [10, 5]}"#),
            Extent::Bad(_)
        ));
        assert!(matches!(extent(r#"{"counts": [0, 9]}"#), Extent::Bad(_)));
        assert!(matches!(
            extent(r#"{"counts": [0, 9], "size": null}"#),
            Extent::Bad(_)
        ));
    }
}
