//! Syntax of names, label keys and label values. Each check answers `None` for good text, else the text of the error.

const LABEL_FORM: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
    and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
    validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const QUALIFIED_FORM: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end \
    with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const SUBDOMAIN_FORM: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
    '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const DNS_LABEL_FORM: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and \
    must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

fn word(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    let bytes = text.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().copied().all(inner)
}

fn lower_word(text: &str) -> bool {
    let outer = |c: &u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(outer) && bytes.last().is_some_and(outer) && bytes.iter().all(|c| outer(c) || *c == b'-')
}

/// A label value.
pub fn label_value(text: &str) -> Option<String> {
    if text.len() > 63 {
        return Some("must be no more than 63 bytes".to_owned());
    }
    if text.is_empty() || word(text) { None } else { Some(LABEL_FORM.to_owned()) }
}

/// A label or annotation key: `[prefix/]name`.
pub fn label_key(text: &str) -> Option<String> {
    let name = match text.split_once('/') {
        None => text,
        Some((_, rest)) if rest.contains('/') => {
            return Some(format!(
                "a valid label key must consist of {} and an optional DNS subdomain prefix and '/' (e.g. \
                 'example.com/MyName')",
                QUALIFIED_FORM.trim_start_matches("name part must consist of ")
            ));
        }
        Some((prefix, name)) => {
            if prefix.is_empty() {
                return Some("prefix part must be non-empty".to_owned());
            }
            if let Some(why) = dns_subdomain(prefix) {
                return Some(format!("prefix part {why}"));
            }
            name
        }
    };
    if name.is_empty() {
        return Some("name part must be non-empty".to_owned());
    }
    if name.len() > 63 {
        return Some("name part must be no more than 63 bytes".to_owned());
    }
    if word(name) { None } else { Some(QUALIFIED_FORM.to_owned()) }
}

/// An object name: dots allowed.
pub fn dns_subdomain(text: &str) -> Option<String> {
    if text.len() > 253 {
        return Some("must be no more than 253 bytes".to_owned());
    }
    if text.split('.').all(lower_word) { None } else { Some(SUBDOMAIN_FORM.to_owned()) }
}

/// A container, volume or namespace name.
pub fn dns_label(text: &str) -> Option<String> {
    if text.len() > 63 {
        return Some("must be no more than 63 bytes".to_owned());
    }
    if lower_word(text) { None } else { Some(DNS_LABEL_FORM.to_owned()) }
}
