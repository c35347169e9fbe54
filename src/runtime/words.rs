//! Errors of libraries in words for people: whole causes, and no debug output.

use std::error::Error;

/// The causes of an error in one line: the first says what, the last says why. A message that already holds its cause does not
/// repeat it.
pub fn words(error: &(dyn Error + 'static)) -> String {
    let mut text = without_status(&error.to_string());
    let mut next = error.source();
    while let Some(cause) = next {
        let why = without_status(&cause.to_string());
        if !text.contains(&why) {
            text = format!("{text}: {why}");
        }
        next = cause.source();
    }
    text
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
    fn a_refusal_of_the_api_server_is_told_in_its_own_words_once() {
        let message = "devices is forbidden: User \"a (b)\" cannot list resource \"devices\"";
        let status = Status::failure(message, "Forbidden").with_code(403);
        let text = words(&Cannot(kube::Error::Api(status.boxed())));
        assert_eq!(text, format!("cannot list devices: {message}: Forbidden"));
    }

    #[test]
    fn what_stands_around_a_status_stays() {
        let text =
            without_status(r#"first: ApiError: no: Why (Status { message: "a \") b", details: Some(X(1)) }): last"#);
        assert_eq!(text, "first: no: Why: last");
    }
}
