//! The known word that is nearest to a wrong one.

use strsim::osa_distance;

/// The nearest of `known`, unless none is near: more than a third of the letters would have to change. Case and separators
/// do not count, so `migStrategy` is near `mig-strategy`.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let bare = letters(word);
    let (distance, found) = known.into_iter().map(|other| (osa_distance(&bare, &letters(other)), other)).min()?;
    (distance <= bare.chars().count().max(3) / 3).then_some(found)
}

/// Says which of `known` was meant; nothing where none is near.
pub fn meant<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map(|word| format!("; did you mean {word:?}?")).unwrap_or_default()
}

fn letters(word: &str) -> String {
    // A long wrong word cannot be near any key; its tail only costs time.
    word.chars().filter(|c| c.is_alphanumeric()).take(64).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 4] = ["mig-strategy", "node-name", "kubelet-dir", "verify-period"];

    #[test]
    fn a_slip_of_the_pen_finds_the_key_that_was_meant() {
        for (wrong, meant) in
            [("migStrategy", 0), ("mig-stratgey", 0), ("nodename", 1), ("kublet-dir", 2), ("verify", 3)]
        {
            let found = nearest(wrong, KEYS);
            // "verify" is a word of its own, not a slip.
            let expected = (wrong != "verify").then_some(KEYS[meant]);
            assert_eq!(found, expected, "{wrong}");
        }
        assert_eq!(nearest("completely-different", KEYS), None);
        assert_eq!(nearest("", KEYS), None);
    }
}
