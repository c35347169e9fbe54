//! A key of the file whose value has a form of its own: more than a flag can say.

use super::tree::{Misplaced, YamlNode};

/// One such key.
pub struct Section<O: 'static> {
    /// As written in the file.
    pub name: &'static str,
    /// Keys that must stand in the same file.
    pub needs: &'static [&'static str],
    /// What to do when one of them does not.
    pub advice: &'static str,
    /// Reads the value into the options. Returns the settings that it said the values of.
    pub read: fn(&mut O, &YamlNode) -> Result<Vec<&'static str>, Misplaced>,
}
