//! Values of the command line that name an object of the cluster: a typing error is reported before any request.

use std::time::Duration;

use super::config::Value;
use baton_contract::hint::{LabelSelector, Operator, Requirement};
use baton_contract::name::{check_annotation_key, check_daemon_namespace, check_label_name};

pub fn annotation_key(text: &str) -> Result<String, String> {
    check_annotation_key("annotation key", text).map(|()| text.to_owned()).map_err(|bad| bad.to_string())
}

pub fn duration(text: &str) -> Result<Duration, String> {
    Value::read(text)
}

/// A label selector as kubectl reads it.
pub fn selector(text: &str) -> Result<LabelSelector, String> {
    let mut selector = LabelSelector::default();
    let (mut depth, mut begin) = (0, 0);
    let ends = text.char_indices().chain([(text.len(), ',')]).filter(|(_, letter)| {
        depth += i32::from(*letter == '(') - i32::from(*letter == ')');
        *letter == ',' && depth == 0
    });
    for (end, _) in ends {
        selector.match_expressions.push(requirement(text[begin..end].trim())?);
        begin = end + 1;
    }
    if depth == 0 { Ok(selector) } else { Err(format!("{text:?}: a bracket has no partner")) }
}

fn requirement(text: &str) -> Result<Requirement, String> {
    let list = |values: &str| values.split(',').map(|value| value.trim().to_owned()).collect::<Vec<_>>();
    let set = |word: &str| {
        let (key, values) = text.split_once(word)?;
        Some((key, list(values.trim().strip_prefix('(')?.strip_suffix(')')?)))
    };
    let (key, operator, values) = if let Some((key, values)) = set(" notin ") {
        (key, Operator::NotIn, values)
    } else if let Some((key, values)) = set(" in ") {
        (key, Operator::In, values)
    } else if let Some((key, value)) = text.split_once("!=") {
        (key, Operator::NotIn, vec![value.trim().to_owned()])
    } else if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        (key, Operator::In, vec![value.trim().to_owned()])
    } else if let Some(key) = text.strip_prefix('!') {
        (key, Operator::DoesNotExist, Vec::new())
    } else {
        (text, Operator::Exists, Vec::new())
    };
    let key = key.trim().to_owned();
    let bad = |letter: char| letter.is_whitespace() || "=!(),".contains(letter);
    if key.is_empty() || key.contains(bad) || values.iter().any(|value| value.contains(bad)) {
        return Err(format!("{text:?} is no part of a selector; expected a=b, a!=b, a in (b,c), a notin (b), a or !a"));
    }
    Ok(Requirement { key, operator, values })
}

pub fn namespace(text: &str) -> Result<String, String> {
    check_label_name("namespace", text).map(|()| text.to_owned()).map_err(|bad| bad.to_string())
}

pub fn daemon_namespace(text: &str) -> Result<String, String> {
    check_daemon_namespace(text).map(|()| text.to_owned()).map_err(|bad| bad.to_string())
}

/// A namespace that the manifests bring, and that goes with them.
pub fn own_namespace(text: &str) -> Result<String, String> {
    if text.starts_with("kube-") {
        return Err(
            "it belongs to the cluster, and removing the manifests removes their namespace: give Baton a separate one"
                .to_owned(),
        );
    }
    daemon_namespace(text)
}

/// An image's reference; checks only what a shell may have lost.
pub fn image(text: &str) -> Result<String, String> {
    let bad = text.is_empty()
        || text.contains(|letter: char| letter.is_whitespace() || letter.is_control() || "\"\\".contains(letter));
    if bad { Err("expected an image such as registry.example/baton:v1".to_owned()) } else { Ok(text.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_is_read_as_kubectl_reads_it() {
        let labels = [("a", "b"), ("model", "H100")].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        for (text, matches) in [
            ("a=b", true),
            ("a==b,model in (H100, H200)", true),
            ("a != b", false),
            ("!c,a", true),
            ("model notin (H100)", false),
            ("c!=d", true),
            ("a=", false),
        ] {
            assert_eq!(selector(text).unwrap().matches(&labels), matches, "{text}");
        }
        for bad in ["", ",", "a=b,", "a in b", "a in (b", "a b", "=b", "a=(b"] {
            assert!(selector(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_cannot_be_a_name_is_refused() {
        assert!(annotation_key("scheduling.koordinator.sh/node-lock").is_ok() && annotation_key("bad key").is_err());
        assert!(daemon_namespace(&"a".repeat(57)).is_ok() && daemon_namespace(&"a".repeat(58)).is_err());
        assert!(own_namespace("gpu-system").is_ok() && own_namespace("kube-system").is_err());
        assert!(namespace("ml").is_ok() && namespace("Bad NS").is_err() && namespace("").is_err());
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert!(duration("abc").unwrap_err().contains("\"abc\" is no duration"));
        assert!(image("a.b:5000/c@sha256:00").is_ok() && image("").is_err());
        assert!(image("a b").is_err() && image("a\"b").is_err());
    }
}
