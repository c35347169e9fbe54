//! What an operator names: an object as `namespace/name`, or by its name in a namespace given beside it.

use crate::contract::name::{check_label_name, check_subdomain};
use crate::ops::say::Usage;

/// Namespace and name. `kind` says in messages what it was taken for: `pod`.
pub(super) fn named<'a>(kind: &str, given: &'a str, namespace: &'a str) -> Result<(&'a str, &'a str), Usage> {
    let (namespace, name) = given.split_once('/').unwrap_or((namespace, given));
    let checked = check_label_name("namespace", namespace).and_then(|()| check_subdomain("name", name));
    checked.map(|()| (namespace, name)).map_err(|bad| {
        Usage(format!("{given:?} is no {kind}: {bad}; expected namespace/name, or a name with --namespace"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_alone_or_behind_its_namespace() {
        assert_eq!(named("pod", "ml/a.b", "default").unwrap(), ("ml", "a.b"));
        assert_eq!(named("pod", "a", "ml").unwrap(), ("ml", "a"));
        for bad in ["", "/", "ml/", "/a", "A", "a/b/c", "a b", "a?x=1", "-", "..", "ml/a/../b"] {
            let said = named("job", bad, "ml").unwrap_err().to_string();
            assert!(said.contains(&format!("{bad:?} is no job")) && said.contains("namespace/name"), "{said}");
        }
    }
}
