//! Which requests a policy or its binding is about.

use serde_json::Value;

use super::asked::Asked;
use crate::apiserver::auth::strings;
use crate::apiserver::selectors::selects;
use crate::apiserver::store::Store;

/// `matchConstraints` of a policy, `matchResources` of a binding.
#[derive(Default)]
pub(super) struct Match {
    rules: Vec<PolicyRule>,
    excluded: Vec<PolicyRule>,
    namespaces: Value,
    objects: Value,
}

struct PolicyRule {
    groups: Vec<String>,
    versions: Vec<String>,
    operations: Vec<String>,
    resources: Vec<String>,
    names: Vec<String>,
    scope: String,
}

impl Match {
    pub(super) fn read(value: &Value) -> Self {
        let rules = |key: &str| value[key].as_array().into_iter().flatten().map(PolicyRule::read).collect();
        Self {
            rules: rules("resourceRules"),
            excluded: rules("excludeResourceRules"),
            namespaces: value["namespaceSelector"].clone(),
            objects: value["objectSelector"].clone(),
        }
    }

    pub(super) fn matches(&self, asked: &Asked<'_>, store: &Store) -> bool {
        (self.rules.is_empty() || self.rules.iter().any(|rule| rule.matches(asked)))
            && !self.excluded.iter().any(|rule| rule.matches(asked))
            && self.selects_object(asked)
            && self.selects_namespace(asked, store)
    }

    fn selects_object(&self, asked: &Asked<'_>) -> bool {
        is_empty(&self.objects) || [asked.object, asked.old].into_iter().flatten().any(|o| selects(&self.objects, o))
    }

    /// What lives in no namespace is always selected; a namespace is by its own labels.
    fn selects_namespace(&self, asked: &Asked<'_>, store: &Store) -> bool {
        if is_empty(&self.namespaces) {
            return true;
        }
        if asked.resource.is("", "namespaces") {
            return asked.object.or(asked.old).is_none_or(|object| selects(&self.namespaces, object));
        }
        let found = store.get("/namespaces", &format!("/{}", asked.namespace));
        asked.namespace.is_empty() || found.is_some_and(|namespace| selects(&self.namespaces, &namespace.value))
    }
}

fn is_empty(selector: &Value) -> bool {
    let lists = ["matchLabels", "matchExpressions"].map(|key| &selector[key]);
    lists
        .iter()
        .all(|list| list.as_object().is_none_or(serde_json::Map::is_empty) && list.as_array().is_none_or(Vec::is_empty))
}

impl PolicyRule {
    fn read(value: &Value) -> Self {
        let list = |key: &str| strings(&value[key]);
        Self {
            groups: list("apiGroups"),
            versions: list("apiVersions"),
            operations: list("operations"),
            resources: list("resources"),
            names: list("resourceNames"),
            scope: value["scope"].as_str().unwrap_or("*").to_owned(),
        }
    }

    fn matches(&self, asked: &Asked<'_>) -> bool {
        let has = |list: &[String], word: &str| list.iter().any(|w| w == "*" || w == word);
        let clustered = asked.namespace.is_empty() || asked.resource.is("", "namespaces");
        let in_scope = match self.scope.as_str() {
            "Cluster" => clustered,
            "Namespaced" => !clustered,
            _ => true,
        };
        // A subresource only where it is named.
        let named = self.resources.iter().any(|word| {
            let (resource, subresource) = word.split_once('/').unwrap_or((word, ""));
            (resource == "*" || resource == asked.resource.plural)
                && (subresource == "*" || subresource == asked.subresource)
        });
        in_scope
            && named
            && has(&self.operations, asked.operation)
            && has(&self.groups, &asked.resource.group)
            && has(&self.versions, &asked.resource.version)
            && (self.names.is_empty() || self.names.iter().any(|name| name == asked.name))
    }
}
