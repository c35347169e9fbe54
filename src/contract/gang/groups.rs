//! Gangs that start together: a JSON array of `"namespace/gang"`.

use std::collections::BTreeSet;

use super::name::GangId;
use super::value::BadValue;
use crate::contract::key::MAX_ANNOTATION;

/// Most gangs in one group. A longer list is a bug: each of its gangs would have to name all others.
pub const MAX_GROUP: usize = 1024;

/// Reads the list. An empty text and an empty array are no group; a gang that is listed twice counts once.
pub fn parse_groups(key: &'static str, text: &str) -> Result<BTreeSet<GangId>, BadValue> {
    let bad = |rule: String| BadValue::new(key, text, rule);
    if text.trim().is_empty() {
        return Ok(BTreeSet::new());
    }
    if text.len() > MAX_ANNOTATION {
        return Err(bad(format!("has {} bytes, the limit is {MAX_ANNOTATION}", text.len())));
    }
    let listed: Vec<String> = serde_json::from_str(text)
        .map_err(|error| bad(format!("is no JSON array of \"namespace/gang\" strings: {error}")))?;
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
    fn a_list_is_a_set_of_gangs() {
        let read =
            |text| parse_groups(key::GROUPS, text).map(|set| set.iter().map(GangId::to_string).collect::<Vec<_>>());
        assert_eq!(read(""), Ok(vec![]));
        assert_eq!(read("[]"), Ok(vec![]));
        assert_eq!(read(r#"["b/y", "a/x", "b/y"]"#), Ok(vec!["a/x".to_owned(), "b/y".to_owned()]));
    }

    #[test]
    fn a_list_that_cannot_be_read_is_refused_whole_and_says_where() {
        for (text, rule) in [
            ("a/x", "JSON array"),
            ("[1]", "JSON array"),
            ("null", "JSON array"),
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
        assert!(error.contains("1025"), "{error}");
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
