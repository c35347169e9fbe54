//! Sets of field paths, in the form of `fieldsV1`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value};

/// A set of paths. A node is a member itself, has members below it, or both.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSet {
    member: bool,
    below: BTreeMap<String, FieldSet>,
}

impl FieldSet {
    /// Reads `fieldsV1`.
    pub fn from_json(value: &Value) -> Self {
        let mut set = Self::default();
        let Some(map) = value.as_object() else { return set };
        for (key, inner) in map {
            if key == "." {
                set.member = true;
                continue;
            }
            let mut below = Self::from_json(inner);
            if inner.as_object().is_none_or(Map::is_empty) {
                below.member = true;
            }
            set.below.insert(key.clone(), below);
        }
        set
    }

    /// Writes `fieldsV1`.
    pub fn to_json(&self) -> Value {
        let mut map = Map::new();
        if self.member && !self.below.is_empty() {
            map.insert(".".into(), Value::Object(Map::new()));
        }
        for (key, inner) in &self.below {
            map.insert(key.clone(), inner.to_json());
        }
        Value::Object(map)
    }

    /// Adds a path.
    pub fn insert(&mut self, path: &[String]) {
        let mut at = self;
        for key in path {
            at = at.below.entry(key.clone()).or_default();
        }
        at.member = true;
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        !self.member && self.below.values().all(Self::is_empty)
    }

    /// The part below one path element.
    pub fn child(&self, key: &str) -> Option<&Self> {
        self.below.get(key)
    }

    /// Keeps only the elements below this node that `keep` wants.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.below.retain(|key, _| keep(key));
    }

    /// The part below one path element, to change.
    pub fn child_mut(&mut self, key: &str) -> Option<&mut Self> {
        self.below.get_mut(key)
    }

    /// Adds all of `other`.
    pub fn union(&mut self, other: &Self) {
        self.member |= other.member;
        for (key, inner) in &other.below {
            self.below.entry(key.clone()).or_default().union(inner);
        }
    }

    /// Takes all members of `other` out.
    pub fn subtract(&mut self, other: &Self) {
        if other.member {
            self.member = false;
        }
        for (key, inner) in &other.below {
            if let Some(mine) = self.below.get_mut(key) {
                mine.subtract(inner);
            }
        }
        self.below.retain(|_, inner| !inner.is_empty());
    }

    /// Members that both have.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let mut set = Self { member: self.member && other.member, below: BTreeMap::new() };
        for (key, inner) in &self.below {
            if let Some(theirs) = other.below.get(key) {
                let both = inner.intersection(theirs);
                if !both.is_empty() {
                    set.below.insert(key.clone(), both);
                }
            }
        }
        set
    }

    /// All member paths, outermost first.
    pub fn paths(&self) -> Vec<Vec<String>> {
        let mut all = Vec::new();
        self.collect(&mut Vec::new(), &mut all);
        all
    }

    fn collect(&self, at: &mut Vec<String>, all: &mut Vec<Vec<String>>) {
        if self.member {
            all.push(at.clone());
        }
        for (key, inner) in &self.below {
            at.push(key.clone());
            inner.collect(at, all);
            at.pop();
        }
    }
}

/// A path as messages show it: `.spec.containers[name="main"].image`.
pub(super) fn shown(path: &[String]) -> String {
    let mut text = String::new();
    for key in path {
        if let Some(name) = key.strip_prefix("f:") {
            text.push('.');
            text.push_str(name);
        } else if let Some(keys) = key.strip_prefix("k:") {
            let map: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
            let parts: Vec<String> = map.iter().map(|(k, v)| format!("{k}={v}")).collect();
            let _ = write!(text, "[{}]", parts.join(","));
        } else if let Some(value) = key.strip_prefix("v:") {
            let _ = write!(text, "[={value}]");
        }
    }
    text
}
