//! A YAML document as a tree whose parts know their place, and the reading of typed parts from it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::nearest::meant;

/// Line and column, from 1.
pub type Spot = (u64, u64);

/// A value and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct YamlNode {
    /// Where it begins.
    pub at: Spot,
    pub value: YamlValue,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum YamlValue {
    /// Text, a number, `true`, or nothing (an empty text), as it would be written plainly.
    Scalar(String),
    List(Vec<YamlNode>),
    Map(Vec<YamlEntry>),
}

/// One `key: value` of a mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct YamlEntry {
    /// As written.
    pub key: String,
    pub at: Spot,
    pub value: YamlNode,
}

/// A part of a file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misplaced {
    pub at: Spot,
    /// The part, as a path: `plugins.score.enabled[0].weight`.
    pub path: String,
    /// What is wrong, and what was expected.
    pub problem: String,
}

/// The fields of a mapping by name: where the key stands, and the value.
pub type Fields<'a> = BTreeMap<&'static str, (Spot, &'a YamlNode)>;

impl YamlNode {
    /// The value in the form of a flag: lists joined by commas, mappings as `key=value`; `None` when it has too many levels.
    pub fn flat(&self) -> Option<String> {
        let plain = |text: &str| (!text.contains([',', '='])).then(|| text.to_owned());
        let part = |node: &Self| match &node.value {
            YamlValue::Scalar(text) => plain(text),
            _ => None,
        };
        match &self.value {
            YamlValue::Scalar(text) => Some(text.clone()),
            YamlValue::List(items) => Some(items.iter().map(part).collect::<Option<Vec<_>>>()?.join(",")),
            YamlValue::Map(entries) => {
                let pair = |of: &YamlEntry| Some(format!("{}={}", plain(&of.key)?, part(&of.value)?));
                Some(entries.iter().map(pair).collect::<Option<Vec<_>>>()?.join(","))
            }
        }
    }

    /// An error about this node.
    pub fn wrong(&self, path: &str, problem: impl Into<String>) -> Misplaced {
        Misplaced { at: self.at, path: path.to_owned(), problem: problem.into() }
    }

    fn is_nothing(&self) -> bool {
        self.value == YamlValue::Scalar(String::new())
    }

    /// A mapping with no other keys than `known`. Nothing is an empty mapping.
    pub fn fields(&self, path: &str, known: &[&'static str]) -> Result<Fields<'_>, Misplaced> {
        let entries = match &self.value {
            YamlValue::Map(entries) => entries.as_slice(),
            _ if self.is_nothing() => &[],
            _ => return Err(self.wrong(path, format!("expected a mapping with {}", known.join(", ")))),
        };
        let mut fields = Fields::new();
        for YamlEntry { key, at, value } in entries {
            let Some(name) = known.iter().find(|name| **name == *key) else {
                let hint = meant(key, known.iter().copied());
                let problem = format!("unknown key {key:?}{hint}; expected {}", known.join(", "));
                return Err(Misplaced { at: *at, path: path.to_owned(), problem });
            };
            fields.insert(name, (*at, value));
        }
        Ok(fields)
    }

    /// A list. Nothing is an empty list.
    pub fn items(&self, path: &str) -> Result<&[Self], Misplaced> {
        match &self.value {
            YamlValue::List(items) => Ok(items),
            _ if self.is_nothing() => Ok(&[]),
            _ => Err(self.wrong(path, "expected a list")),
        }
    }

    /// A text that is not empty.
    pub fn text(&self, path: &str) -> Result<&str, Misplaced> {
        match &self.value {
            YamlValue::Scalar(text) if !text.is_empty() => Ok(text),
            _ => Err(self.wrong(path, "expected a text")),
        }
    }

    /// A whole number within `range`.
    pub fn number(&self, path: &str, range: RangeInclusive<i64>) -> Result<i64, Misplaced> {
        let text = self.text(path)?;
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            self.wrong(path, format!("{text:?} is no whole number from {least} to {most}"))
        })
    }

    /// One of `known`, as found there.
    pub fn word<'a>(&self, path: &str, what: &str, known: &[&'a str]) -> Result<&'a str, Misplaced> {
        let text = self.text(path)?;
        known.iter().copied().find(|word| *word == text).ok_or_else(|| {
            let hint = meant(text, known.iter().copied());
            self.wrong(path, format!("{text:?} is no {what}{hint}; expected {}", known.join(", ")))
        })
    }
}

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<YamlValue>::deserialize(deserializer)?;
        let at = (spanned.referenced.line(), spanned.referenced.column());
        Ok(Self { at, value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for YamlValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = YamlValue;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_unit<E>(self) -> Result<YamlValue, E> {
                Ok(YamlValue::Scalar(String::new()))
            }
            fn visit_none<E>(self) -> Result<YamlValue, E> {
                Ok(YamlValue::Scalar(String::new()))
            }
            fn visit_bool<E>(self, value: bool) -> Result<YamlValue, E> {
                Ok(YamlValue::Scalar(value.to_string()))
            }
            fn visit_i64<E>(self, value: i64) -> Result<YamlValue, E> {
                Ok(YamlValue::Scalar(value.to_string()))
            }
            fn visit_u64<E>(self, value: u64) -> Result<YamlValue, E> {
                Ok(YamlValue::Scalar(value.to_string()))
            }
            fn visit_f64<E>(self, value: f64) -> Result<YamlValue, E> {
                Ok(YamlValue::Scalar(value.to_string()))
            }
            fn visit_str<E>(self, value: &str) -> Result<YamlValue, E> {
                Ok(YamlValue::Scalar(value.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<YamlValue, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(YamlValue::List(items))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<YamlValue, A::Error> {
                let mut entries = Vec::new();
                while let Some((key, value)) = map.next_entry::<YamlNode, YamlNode>()? {
                    // A key that is no scalar is written as such, for the message that says it is unknown.
                    let text = key.flat().unwrap_or_else(|| "(a list or mapping)".to_owned());
                    entries.push(YamlEntry { key: text, at: key.at, value });
                }
                Ok(YamlValue::Map(entries))
            }
        }
        deserializer.deserialize_any(Any)
    }
}
