//! YAML, in one place: configuration files with the place of each key, and the printing of objects.

use super::tree::{Misplaced, Spot, YamlEntry, YamlNode, YamlValue};
use baton_runtime::yaml_words;

/// Reads a mapping. An empty document is an empty mapping.
pub fn read(text: &str) -> Result<Vec<YamlEntry>, Misplaced> {
    let wrong = |at: Spot, problem: String| Misplaced { at, path: String::new(), problem };
    let document: Option<YamlNode> = serde_saphyr::from_str(text).map_err(|error| {
        let at = error.location().map_or((1, 1), |at| (at.line(), at.column()));
        let full = error.without_snippet().to_string();
        // The library repeats the place inside its message; once is enough.
        let problem = full.lines().next().unwrap_or_default();
        let problem = problem.split(" at line ").next().unwrap_or(problem);
        wrong(at, yaml_words(problem.trim_start_matches("error: ")))
    })?;
    let Some(document) = document else { return Ok(Vec::new()) };
    match document.value {
        YamlValue::Scalar(text) if text.is_empty() => Ok(Vec::new()),
        YamlValue::Map(entries) => Ok(entries),
        YamlValue::Scalar(_) | YamlValue::List(_) => Err(wrong(document.at, "expected `key: value` lines".to_owned())),
    }
}

/// Reads any YAML (or JSON) document; the error is one line.
pub fn value(text: &str) -> Result<serde_json::Value, String> {
    let read = serde_saphyr::from_str(text);
    read.map_err(|error| {
        yaml_words(error.without_snippet().to_string().lines().next().unwrap_or_default().trim_start_matches("error: "))
    })
}

/// Reads the documents that kubectl printed, JSON or YAML, one after the other: of any size, and also where nothing separates them.
#[cfg(feature = "simulate")]
pub fn documents(text: &str) -> Result<Vec<serde_json::Value>, String> {
    if text.trim_start().starts_with('{') {
        let read = serde_json::Deserializer::from_str(text).into_iter::<serde_json::Value>();
        return read.collect::<Result<_, _>>().map_err(|error| error.to_string());
    }
    let mut parts: Vec<String> = Vec::new();
    let is_head = |line: &str| line.starts_with("apiVersion:");
    for line in text.lines() {
        let separates = line.starts_with("---");
        match parts.last_mut() {
            Some(part) if !(separates || is_head(line) && part.lines().any(is_head)) => part.extend([line, "\n"]),
            _ => parts.push(if separates { String::new() } else { format!("{line}\n") }),
        }
    }
    parts.retain(|part| !part.trim().is_empty());
    // A dump of a cluster is the operator's own, and larger than what the reader takes from a stranger.
    let options = serde_saphyr::options! { budget: None };
    let read = |part: &String| serde_saphyr::from_str_with_options(part, options.clone());
    parts.iter().map(read).collect::<Result<_, _>>().map_err(|error| error.without_snippet().to_string())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_come_with_their_place() {
        let entries =
            read("# head\nnode-name: node-a\nrdma: true\nperiods: [1s, 2s]\nxid-actions:\n  48: ignore\n  94: warn\n")
                .unwrap();
        let flat: Vec<_> = entries.iter().map(|e| (&*e.key, e.at, e.value.flat().unwrap(), e.value.at.0)).collect();
        assert_eq!(
            flat,
            [
                ("node-name", (2, 1), "node-a".to_owned(), 2),
                ("rdma", (3, 1), "true".to_owned(), 3),
                ("periods", (4, 1), "1s,2s".to_owned(), 4),
                ("xid-actions", (5, 1), "48=ignore,94=warn".to_owned(), 6),
            ]
        );
        assert_eq!(entries[0].value.at, (2, 12));
        assert_eq!(read("").unwrap(), []);
        assert_eq!(read("# nothing\n").unwrap(), []);
    }

    #[test]
    fn what_is_no_mapping_is_refused_with_its_place() {
        for (text, line) in
            [("a: 1\nb: [1\n", 2..=3), ("- a\n- b\n", 1..=1), ("just text\n", 1..=1), ("a: 1\na: 2\n", 2..=2)]
        {
            let error = read(text).unwrap_err();
            assert!(line.contains(&error.at.0), "{text:?}: {error:?}");
            assert!(!error.problem.is_empty() && !error.problem.contains('\n'), "{text:?}: {error:?}");
        }
    }

    #[test]
    fn documents_and_keys_that_are_there_twice_are_named_without_the_librarys_words() {
        let problem = |text: &str| read(text).unwrap_err().problem;
        assert_eq!(problem("a: 1\n---\nb: 2\n"), "several documents (---) where one is expected");
        assert_eq!(problem("node-name: 1\nnode-name: 2\n"), "the key \"node-name\" is there twice");
    }

    #[test]
    fn a_value_of_several_levels_is_not_flat() {
        for text in ["b: {c: {d: 1}}\n", "b: [\"x,y\"]\n", "b: [[x]]\n"] {
            assert_eq!(read(text).unwrap()[0].value.flat(), None, "{text}");
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
