//! YAML, in one place: configuration files with the place of each key, and the printing of objects.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// A file that is no YAML mapping of keys to simple values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {problem}")]
pub struct YamlError {
    /// From 1.
    pub line: u64,
    /// From 1.
    pub column: u64,
    /// What is wrong.
    pub problem: String,
}

/// One `key: value` of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct YamlEntry {
    /// As written.
    pub key: String,
    /// Where the key stands: line and column, from 1.
    pub at: (u64, u64),
    /// The value as a flag would say it: lists joined by commas, mappings as `key=value`.
    pub value: String,
    /// Where the value stands.
    pub value_at: (u64, u64),
}

/// Reads a mapping of keys to scalars, lists of scalars or mappings of scalars. An empty document is an empty mapping.
pub fn read(text: &str) -> Result<Vec<YamlEntry>, YamlError> {
    let document: Document = serde_saphyr::from_str(text).map_err(|error| {
        let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
        let full = error.without_snippet().to_string();
        // The library repeats the place inside its message; once is enough.
        let problem = full.lines().next().unwrap_or_default();
        let problem = problem.split(" at line ").next().unwrap_or(problem);
        YamlError { line, column, problem: problem.trim_start_matches("error: ").to_owned() }
    })?;
    let mut entries: Vec<YamlEntry> = Vec::new();
    for (key, value) in document.0 {
        let at = (key.referenced.line(), key.referenced.column());
        let value_at = (value.referenced.line(), value.referenced.column());
        let Some(text) = value.value.0 else {
            let problem =
                format!("{}: expected a value, a list of values or a mapping of values, not more levels", key.value);
            return Err(YamlError { line: value_at.0, column: value_at.1, problem });
        };
        entries.push(YamlEntry { key: key.value, at, value: text, value_at });
    }
    Ok(entries)
}

/// Prints any object as a YAML document without the leading `---`.
pub fn print(value: &impl serde::Serialize) -> Result<String, serde_saphyr::ser::Error> {
    let options =
        serde_saphyr::ser_options! { compact_list_indent: true, prefer_block_scalars: false, no_lang_directive: true };
    let mut text = serde_saphyr::to_string_with_options(value, options)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

struct Document(Vec<(Spanned<String>, Spanned<Flat>)>);

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Document;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`key: value` lines")
            }
            fn visit_unit<E>(self) -> Result<Document, E> {
                Ok(Document(Vec::new()))
            }
            fn visit_none<E>(self) -> Result<Document, E> {
                Ok(Document(Vec::new()))
            }
            fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Document, D::Error> {
                deserializer.deserialize_map(self)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Document, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Document(entries))
            }
        }
        deserializer.deserialize_option(Entries)
    }
}

/// A value as a flag would say it; `None` when it has too many levels.
struct Flat(Option<String>);

impl<'de> Deserialize<'de> for Flat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Flat;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_unit<E>(self) -> Result<Flat, E> {
                Ok(Flat(Some(String::new())))
            }
            fn visit_none<E>(self) -> Result<Flat, E> {
                Ok(Flat(Some(String::new())))
            }
            fn visit_bool<E>(self, value: bool) -> Result<Flat, E> {
                Ok(Flat(Some(value.to_string())))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Flat, E> {
                Ok(Flat(Some(value.to_string())))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Flat, E> {
                Ok(Flat(Some(value.to_string())))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Flat, E> {
                Ok(Flat(Some(value.to_string())))
            }
            fn visit_str<E>(self, value: &str) -> Result<Flat, E> {
                Ok(Flat(Some(value.to_owned())))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Flat, A::Error> {
                let mut parts = Some(Vec::new());
                while let Some(Flat(part)) = seq.next_element()? {
                    // A part that would be read as two is no part of a flat list.
                    match part.filter(|part| !part.contains([',', '='])) {
                        Some(part) => parts.iter_mut().for_each(|parts| parts.push(part.clone())),
                        None => parts = None,
                    }
                }
                Ok(Flat(parts.map(|parts| parts.join(","))))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Flat, A::Error> {
                let mut parts = Some(Vec::new());
                while let Some((Flat(key), Flat(value))) = map.next_entry()? {
                    let plain = |text: Option<String>| text.filter(|text| !text.contains([',', '=']));
                    match plain(key).zip(plain(value)) {
                        Some((key, value)) => parts.iter_mut().for_each(|parts| parts.push(format!("{key}={value}"))),
                        None => parts = None,
                    }
                }
                Ok(Flat(parts.map(|parts| parts.join(","))))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_come_with_their_place() {
        let entries =
            read("# head\nnode-name: node-a\nrdma: true\nperiods: [1s, 2s]\nxid-actions:\n  48: ignore\n  94: warn\n")
                .unwrap();
        let flat: Vec<_> = entries.iter().map(|e| (e.key.as_str(), e.at, e.value.as_str(), e.value_at.0)).collect();
        assert_eq!(
            flat,
            [
                ("node-name", (2, 1), "node-a", 2),
                ("rdma", (3, 1), "true", 3),
                ("periods", (4, 1), "1s,2s", 4),
                ("xid-actions", (5, 1), "48=ignore,94=warn", 6),
            ]
        );
        assert_eq!(entries[0].value_at, (2, 12));
        assert_eq!(read("").unwrap(), []);
        assert_eq!(read("# nothing\n").unwrap(), []);
    }

    #[test]
    fn what_is_no_flat_mapping_is_refused_with_its_place() {
        for (text, line) in [
            ("a: 1\nb: [1\n", 2..=3),
            ("- a\n- b\n", 1..=1),
            ("just text\n", 1..=1),
            ("a: 1\na: 2\n", 2..=2),
            ("a: 1\nb: {c: {d: 1}}\n", 2..=2),
            ("a: 1\nb: [\"x,y\"]\n", 2..=2),
        ] {
            let error = read(text).unwrap_err();
            assert!(line.contains(&error.line), "{text:?}: {error}");
            assert!(!error.problem.is_empty() && !error.problem.contains('\n'), "{text:?}: {error}");
            println!("{text:?}: {error}");
        }
    }

    #[test]
    fn printed_objects_read_back() {
        let value = serde_json::json!({"a": [1, "2", "true", {"b": null}], "c": "x: y # z\nsecond line", "d": "", "e": [], "f": {}});
        let text = print(&value).unwrap();
        let back: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(back, value, "{text}");
    }
}
