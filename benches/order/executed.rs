//! The functions that callgrind has seen running.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Symbols of `binary` in the file that callgrind wrote: `ob=(1) file` or `ob=(1)` says whose functions follow, `fn=(7) name`
/// or, once named, `fn=(7)` is a function that ran.
pub fn functions(out: &Path, binary: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(out).unwrap();
    let (mut names, mut objects) = (BTreeMap::new(), BTreeMap::new());
    let (mut found, mut ours) = (BTreeSet::new(), false);
    let binary = binary.canonicalize().unwrap().display().to_string();
    for line in text.lines() {
        let Some((kind, value)) = line.split_once('=') else { continue };
        let (id, name) = value.split_once(' ').unwrap_or((value, ""));
        let table = match kind {
            "fn" | "cfn" => &mut names,
            "ob" | "cob" => &mut objects,
            _ => continue,
        };
        if !name.is_empty() {
            table.insert(id, name);
        }
        match kind {
            "ob" => ours = objects.get(id).is_some_and(|path| *path == binary),
            "fn" if ours => {
                // `name'2`: the same function, called by itself.
                let name = names.get(id).copied().unwrap_or_default();
                found.insert(name.split('\'').next().unwrap_or(name).to_owned());
            }
            _ => {}
        }
    }
    found
}
