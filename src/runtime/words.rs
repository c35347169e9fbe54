//! Errors of libraries as texts for people: all causes, and no debug output.

use std::error::Error;

/// The causes of an error in one line: the first says what, the last says why. A message that already holds its cause does not
/// repeat it.
pub fn words(error: &(dyn Error + 'static)) -> String {
    let mut text = plain(&error.to_string());
    let mut next = error.source();
    while let Some(cause) = next {
        let why = plain(&cause.to_string());
        if !text.contains(&why) {
            text = format!("{text}: {why}");
        }
        next = cause.source();
    }
    text
}

fn plain(text: &str) -> String {
    kubeconfig_words(&without_status(text))
}

/// A message of the YAML library in plain words.
pub fn yaml_words(problem: &str) -> String {
    if problem.starts_with("multiple YAML documents") {
        return "several documents (---) where one is expected".to_owned();
    }
    match problem.strip_prefix("duplicate mapping key: ") {
        Some(rest) => format!("the key {:?} is there twice", rest.split(", set ").next().unwrap_or(rest)),
        None => problem.to_owned(),
    }
}

/// A message of the client library about a kubeconfig, likewise.
fn kubeconfig_words(text: &str) -> String {
    let text = text.replace("'\"", "\"").replace("\"'", "\"");
    text.replace(
        "cannot deserialize null into string; use Option<String>",
        "a value is missing where a text is expected",
    )
}

/// The client library prints a refusal of the API server as its message, its reason, and then the whole Status once more as debug
/// output: only the message is for people.
fn without_status(text: &str) -> String {
    const OPENS: &str = " (Status {";
    let Some(start) = text.find(OPENS) else { return text.replace("ApiError: ", "") };
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    let inside = &text[start + 1..];
    let end = inside.char_indices().find_map(|(at, letter)| {
        match letter {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if quoted => {}
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        (depth == 0 && !quoted).then_some(at + letter.len_utf8())
    });
    let rest = end.map_or("", |end| &inside[end..]);
    format!("{}{rest}", &text[..start]).replace("ApiError: ", "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot list devices")]
    struct Cannot(#[source] kube::Error);

    #[test]
    fn the_message_of_the_api_server_is_shown_once() {
        let message = "devices is forbidden: User \"a (b)\" cannot list resource \"devices\"";
        let status = Status::failure(message, "Forbidden").with_code(403);
        let text = words(&Cannot(kube::Error::Api(status.boxed())));
        assert_eq!(text, format!("cannot list devices: {message}: Forbidden"));
    }

    #[test]
    fn messages_of_the_yaml_library_are_made_plain() {
        let several = "multiple YAML documents detected; use from_str_multiple or from_str_multiple_with_options";
        assert_eq!(yaml_words(several), "several documents (---) where one is expected");
        let twice = "duplicate mapping key: node-name, set DuplicateKeyPolicy in Options if acceptable";
        assert_eq!(yaml_words(twice), "the key \"node-name\" is there twice");
        assert_eq!(yaml_words("unexpected end"), "unexpected end");
        assert_eq!(plain("failed to read kubeconfig from '\"/a\"'"), "failed to read kubeconfig from \"/a\"");
    }

    #[test]
    fn what_stands_around_a_status_stays() {
        let text =
            without_status(r#"first: ApiError: no: Why (Status { message: "a \") b", details: Some(X(1)) }): last"#);
        assert_eq!(text, "first: no: Why: last");
    }
}
