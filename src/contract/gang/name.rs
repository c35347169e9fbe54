//! Names of gangs: a namespace and a name that could name an object.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::contract::name::{BadName, bad, check_label_name, check_subdomain};

/// Namespace and name of a gang, printed `namespace/name`. Cheap to clone; ordered as printed names are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GangId {
    namespace: Arc<str>,
    name: Arc<str>,
}

impl GangId {
    /// Checks both parts.
    pub fn new(namespace: &str, name: &str) -> Result<Self, BadName> {
        check_label_name("namespace", namespace)?;
        check_subdomain("gang name", name)?;
        Ok(Self { namespace: namespace.into(), name: name.into() })
    }

    /// Reads `namespace/name`.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        match text.split_once('/') {
            Some((namespace, name)) => Self::new(namespace, name),
            None => Err(bad("gang", text, "is not of the form namespace/name")),
        }
    }

    /// Namespace: that of the members.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Name within the namespace; that of the PodGroup, where there is one.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for GangId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl Serialize for GangId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_follow_rfc_1123() {
        let long = "a".repeat(253);
        for name in ["a", "gang-a", "gang.a", "0", "a.b-c.d", &long] {
            assert!(GangId::new("ml", name).is_ok(), "{name}");
        }
        let longer = "a".repeat(254);
        for name in ["", "Gang_A", "gang_a", "-a", "a-", "a..b", ".a", "a.", "a/b", "ä", "a b", &longer] {
            let error = GangId::new("ml", name).unwrap_err().to_string();
            assert!(error.contains("gang name"), "{error}");
        }
        for namespace in ["", "Ml", "a.b", &"n".repeat(64)] {
            assert!(GangId::new(namespace, "a").unwrap_err().to_string().contains("namespace"), "{namespace}");
        }
    }

    #[test]
    fn an_id_is_read_from_namespace_slash_name() {
        let id = GangId::parse("ml/train").unwrap();
        assert_eq!((id.namespace(), id.name(), id.to_string().as_str()), ("ml", "train", "ml/train"));
        assert!(GangId::parse("train").unwrap_err().to_string().contains("namespace/name"));
        assert!(GangId::parse("a/b/c").is_err());
        assert_eq!(serde_json::to_value(&id).unwrap(), "ml/train");
    }

    proptest! {
        #[test]
        fn what_is_read_prints_as_it_was(text in "\\PC{0,30}|[a-z0-9.-]{0,12}/[a-z0-9.-]{0,12}") {
            if let Ok(id) = GangId::parse(&text) {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }
}
