//! What a Binding says about its pod.

use std::borrow::Cow;

use serde::{Serialize, Serializer};

/// A Binding's annotations. There are a handful of them, and most keys are constants: they are kept as they are said.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Annotations(Vec<(Cow<'static, str>, String)>);

impl Annotations {
    /// These keys, and nothing said under any of them.
    pub fn empty(keys: &[&'static str]) -> Self {
        Self(keys.iter().map(|key| (Cow::Borrowed(*key), String::new())).collect())
    }

    /// What is said under a key, in place of what was said before.
    pub fn set(&mut self, key: impl Into<Cow<'static, str>>, text: String) {
        let key = key.into();
        match self.0.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) => *known = text,
            None => self.0.push((key, text)),
        }
    }

    /// What is said under a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == key).map(|(_, text)| text.as_str())
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// `true` without keys.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// As an object's metadata has them.
impl Serialize for Annotations {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(key, text)| (key, text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_last_stands_and_every_key_is_written() {
        let mut said = Annotations::empty(&["a", "b"]);
        said.set("b", "1".to_owned());
        said.set("b", "2".to_owned());
        said.set("c".to_owned(), "3".to_owned());
        assert_eq!((said.get("a"), said.get("b"), said.get("d"), said.len()), (Some(""), Some("2"), None, 3));
        assert_eq!(serde_json::to_value(&said).unwrap(), serde_json::json!({"a": "", "b": "2", "c": "3"}));
    }
}
