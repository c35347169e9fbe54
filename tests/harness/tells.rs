//! What a text says.

/// The text has each of these parts.
#[track_caller]
pub fn tells(text: impl AsRef<str>, parts: impl IntoIterator<Item = impl AsRef<str>>) {
    let text = text.as_ref();
    for part in parts {
        assert!(text.contains(part.as_ref()), "no {:?} in: {text}", part.as_ref());
    }
}
