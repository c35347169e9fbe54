//! Names that an API server accepts: labels, subdomains, keys of annotations. It answers any other name with 422.

/// A name that no API server accepts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{what} {value:?} {rule}")]
pub struct BadName {
    what: &'static str,
    value: Box<str>,
    rule: &'static str,
}

impl BadName {
    /// As given, at most 80 characters.
    pub fn value(&self) -> &str {
        &self.value
    }
}

/// A refusal with the message `what "value" rule`; `value` is cut to 80 characters.
pub fn bad(what: &'static str, value: &str, rule: &'static str) -> BadName {
    BadName { what, value: value.chars().take(80).collect::<String>().into(), rule }
}

fn is_label(text: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = text.as_bytes();
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
}

/// An RFC 1123 label: 1 to 63 of a-z, 0-9 and `-`, alphanumeric at both ends.
pub fn check_label_name(what: &'static str, text: &str) -> Result<(), BadName> {
    if text.len() > 63 {
        Err(bad(what, text, "is longer than 63 characters"))
    } else if !is_label(text) {
        Err(bad(what, text, "is no RFC 1123 label: lower case letters, digits and -, alphanumeric at both ends"))
    } else {
        Ok(())
    }
}

/// The daemons' namespace: a label that leaves room for [`LEASES_SUFFIX`](super::LEASES_SUFFIX), 57 characters.
pub fn check_daemon_namespace(text: &str) -> Result<(), BadName> {
    check_label_name("namespace", text)?;
    if text.len() + super::LEASES_SUFFIX.len() > 63 {
        return Err(bad(
            "namespace",
            text,
            "is longer than 57 characters: the node daemons' Leases are in <namespace>-nodes",
        ));
    }
    Ok(())
}

/// A node's name that leaves room for [`LEASE_PREFIX`](super::LEASE_PREFIX), 241 characters.
pub fn check_node_name(text: &str) -> Result<(), BadName> {
    check_subdomain("node name", text)?;
    if text.len() + super::LEASE_PREFIX.len() > 253 {
        return Err(bad("node name", text, "is longer than 241 characters: its daemon's Lease is baton-agent-<node>"));
    }
    Ok(())
}

/// An RFC 1123 subdomain: at most 253 characters, labels joined by dots.
pub fn check_subdomain(what: &'static str, text: &str) -> Result<(), BadName> {
    if text.len() > 253 {
        Err(bad(what, text, "is longer than 253 characters"))
    } else if !text.split('.').all(is_label) {
        Err(bad(
            what,
            text,
            "is no RFC 1123 subdomain: lower case letters, digits, - and ., alphanumeric at both ends of each part",
        ))
    } else {
        Ok(())
    }
}

/// A key of annotations and labels: a name of at most 63 characters, with a subdomain and `/` before it or without.
pub fn check_annotation_key(what: &'static str, text: &str) -> Result<(), BadName> {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let edge = |byte: Option<u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric());
    let edges = edge(name.bytes().next()) && edge(name.bytes().last());
    let fits = edges && name.len() <= 63 && name.bytes().all(inner);
    if fits && prefix.is_none_or(|prefix| check_subdomain(what, prefix).is_ok()) {
        return Ok(());
    }
    Err(bad(what, text, "is no annotation key: expected prefix/name, say scheduling.koordinator.sh/node-lock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_name_with_or_without_a_prefix() {
        let long = "n".repeat(63);
        for key in ["a", "A_b.c-d", "scheduling.koordinator.sh/node-lock", "hami.io/mutex.lock", &long] {
            assert_eq!(check_annotation_key("key", key), Ok(()), "{key}");
        }
        let longer = "n".repeat(64);
        for key in ["", "a/b/c", "x y", "/a", "a/", "A.b/c", "a..b/c", "-a", "a-", "ä", &longer] {
            let said = check_annotation_key("node-lock-key", key).unwrap_err().to_string();
            assert!(said.contains("node-lock-key") && said.contains("prefix/name"), "{said}");
        }
    }
}
