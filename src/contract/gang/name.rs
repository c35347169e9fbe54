//! Names of gangs, and the list of gangs that start together.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::value::BadValue;
use crate::key::MAX_ANNOTATION;
use crate::name::{BadName, bad, check_label_name, check_subdomain};

/// Namespace and name of a gang, printed `namespace/name`. Cheap to clone; ordered as printed names are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GangId {
    namespace: Arc<str>,
    name: Arc<str>,
}

impl GangId {
    /// Checks both parts.
    pub fn new(namespace: &str, name: &str) -> Result<Self, BadName> {
        check_label_name("namespace", namespace)?;
        check_subdomain("gang name", name)?;
        Ok(Self { namespace: namespace.into(), name: name.into() })
    }

    /// Reads `namespace/name`.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        match text.split_once('/') {
            Some((namespace, name)) => Self::new(namespace, name),
            None => Err(bad("gang", text, "is not of the form namespace/name")),
        }
    }

    /// Namespace: that of the members.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Name within the namespace; that of the PodGroup, where there is one.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for GangId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl Serialize for GangId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Most gangs in one group. A longer list is a bug: each of its gangs would have to name all the others, and a change of one would be
/// a change of all.
pub const MAX_GROUP: usize = 128;

/// Reads a JSON array of `"namespace/gang"`, the gangs that start together. An empty text and an empty array are no group; a gang
/// that is listed twice counts once.
pub fn parse_groups(key: &'static str, text: &str) -> Result<BTreeSet<GangId>, BadValue> {
    let bad = |rule: String| BadValue::new(key, text, rule);
    if text.trim().is_empty() {
        return Ok(BTreeSet::new());
    }
    if text.len() > MAX_ANNOTATION {
        return Err(bad(format!("has {} bytes, the limit is {MAX_ANNOTATION}", text.len())));
    }
    // Go writes an empty list as null.
    let listed: Option<Vec<String>> = serde_json::from_str(text)
        .map_err(|error| bad(format!("is no JSON array of \"namespace/gang\" strings: {error}")))?;
    let listed = listed.unwrap_or_default();
    let gangs: Result<BTreeSet<GangId>, _> = listed.iter().map(|entry| GangId::parse(entry)).collect();
    let gangs = gangs.map_err(|error| bad(format!("lists what cannot be a gang: {error}")))?;
    if gangs.len() > MAX_GROUP {
        return Err(bad(format!("lists {} gangs, the limit is {MAX_GROUP}", gangs.len())));
    }
    Ok(gangs)
}

#[cfg(test)]
mod tests {
    use super::super::key;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_follow_rfc_1123() {
        let long = "a".repeat(253);
        for name in ["a", "gang-a", "gang.a", "0", "a.b-c.d", &long] {
            assert!(GangId::new("ml", name).is_ok(), "{name}");
        }
        let longer = "a".repeat(254);
        for name in ["", "Gang_A", "gang_a", "-a", "a-", "a..b", ".a", "a.", "a/b", "ä", "a b", &longer] {
            let error = GangId::new("ml", name).unwrap_err().to_string();
            assert!(error.contains("gang name"), "{error}");
        }
        for namespace in ["", "Ml", "a.b", &"n".repeat(64)] {
            assert!(GangId::new(namespace, "a").unwrap_err().to_string().contains("namespace"), "{namespace}");
        }
    }

    #[test]
    fn an_id_is_read_from_namespace_slash_name() {
        let id = GangId::parse("ml/train").unwrap();
        assert_eq!((id.namespace(), id.name(), id.to_string().as_str()), ("ml", "train", "ml/train"));
        assert!(GangId::parse("train").unwrap_err().to_string().contains("namespace/name"));
        assert!(GangId::parse("a/b/c").is_err());
        assert_eq!(serde_json::to_value(&id).unwrap(), "ml/train");
    }

    proptest! {
        #[test]
        fn what_is_read_prints_as_it_was(text in "\\PC{0,30}|[a-z0-9.-]{0,12}/[a-z0-9.-]{0,12}") {
            if let Ok(id) = GangId::parse(&text) {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }

    #[test]
    fn a_list_is_a_set_of_gangs() {
        let read =
            |text| parse_groups(key::GROUPS, text).map(|set| set.iter().map(GangId::to_string).collect::<Vec<_>>());
        assert_eq!(read(""), Ok(vec![]));
        assert_eq!(read("[]"), Ok(vec![]));
        assert_eq!(read(r#"["b/y", "a/x", "b/y"]"#), Ok(vec!["a/x".to_owned(), "b/y".to_owned()]));
    }

    #[test]
    fn a_list_that_cannot_be_read_is_refused_whole_and_says_where() {
        assert!(parse_groups(key::GROUPS, "null").unwrap().is_empty(), "as Go writes an empty list");
        for (text, rule) in [
            ("a/x", "JSON array"),
            ("[1]", "JSON array"),
            (r#"{"a":"b"}"#, "JSON array"),
            (r#"["a/x","y"]"#, "\"y\""),
            (r#"["a/X"]"#, "RFC 1123"),
            (r#"["a/x""#, "JSON array"),
        ] {
            let error = parse_groups(key::GROUPS, text).unwrap_err().to_string();
            assert!(error.contains(rule) && error.starts_with(key::GROUPS), "{text}: {error}");
        }
        let many: Vec<String> = (0..=MAX_GROUP).map(|n| format!("a/g{n}")).collect();
        let error = parse_groups(key::GROUPS, &serde_json::to_string(&many).unwrap()).unwrap_err().to_string();
        assert!(error.contains("129"), "{error}");
        let long = format!("[{}]", " ".repeat(MAX_ANNOTATION));
        assert!(parse_groups(key::GROUPS, &long).unwrap_err().to_string().contains("bytes"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = parse_groups(key::GROUPS, &text);
        }

        #[test]
        fn what_is_printed_is_read_back(names in proptest::collection::btree_set("[a-z]{1,5}/[a-z]{1,5}(\\.[0-9a-z]{1,3})?", 0..6)) {
            let text = serde_json::to_string(&names).unwrap();
            let read = parse_groups(key::GROUPS, &text).unwrap();
            prop_assert_eq!(read.iter().map(GangId::to_string).collect::<BTreeSet<_>>(), names);
        }
    }
}
