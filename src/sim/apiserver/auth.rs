//! Who asks, and whether they may: bearer tokens, and role-based access as far as the simulated cluster needs it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::failure::Failure;
use super::object::text;
use super::request::Target;
use super::resource::Resource;
use super::store::Store;
use super::user::{NODE_NAME, User};

/// The audience of tokens that the server itself accepts.
pub const AUDIENCE: &str = "https://kubernetes.default.svc";

/// What a token stands for.
#[derive(Debug, Clone, Default)]
pub struct Credential {
    /// Whose token it is.
    pub user: User,
    /// Who accepts it; the server when empty.
    pub audiences: Vec<String>,
    /// The objects that it lives and dies with: collection, key and uid.
    pub bound: Vec<(String, String, String)>,
    /// When it expires; never when `None`.
    pub until: Option<Timestamp>,
}

impl Credential {
    /// Of the audiences asked for (the server when empty), those that the token is for.
    pub fn for_audiences(&self, asked: &[String]) -> Vec<String> {
        let server = [AUDIENCE.to_owned()];
        let or_server = |list: &[String]| if list.is_empty() { server.to_vec() } else { list.to_vec() };
        let own = or_server(&self.audiences);
        or_server(asked).into_iter().filter(|audience| own.contains(audience)).collect()
    }

    /// Whether the token has not expired, and all that it is bound to is still there.
    fn is_live(&self, store: &Store, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
            && self.bound.iter().all(|(collection, key, uid)| {
                store.get(collection, key).is_some_and(|object| super::object::meta(&object.value, "uid") == uid)
            })
    }
}

/// One allowed thing. `*` matches everything; resources are `pods` or `pods/binding`.
#[derive(Debug, Clone, Default)]
pub struct Rule {
    /// API groups.
    pub groups: Vec<String>,
    /// Resources.
    pub resources: Vec<String>,
    /// Verbs.
    pub verbs: Vec<String>,
    /// Only in this namespace; everywhere when `None`.
    pub namespace: Option<String>,
}

impl Rule {
    /// A rule for all namespaces, each list separated by blanks; `core` stands for the empty group.
    pub fn new(groups: &str, resources: &str, verbs: &str) -> Self {
        let list =
            |s: &str| s.split_whitespace().map(|w| if w == "core" { String::new() } else { w.to_owned() }).collect();
        Self { groups: list(groups), resources: list(resources), verbs: list(verbs), namespace: None }
    }

    fn allows(&self, target: &Target, resource: &str) -> bool {
        let has = |list: &[String], word: &str| list.iter().any(|w| w == "*" || w == word);
        has(&self.groups, &target.group)
            && has(&self.resources, resource)
            && has(&self.verbs, &target.verb)
            && self.namespace.as_ref().is_none_or(|n| *n == target.namespace)
    }
}

/// Tokens and what their users may do. Users of group `system:masters` may do everything; others have the rules given
/// here and those of the RBAC objects in the store.
#[derive(Debug, Default)]
pub struct Users {
    tokens: Mutex<BTreeMap<String, Credential>>,
    rules: Mutex<BTreeMap<String, Vec<Rule>>>,
}

impl Users {
    /// The users that are always there: `admin` (everything) and, on demand, nodes.
    pub fn new(secret: &str) -> Self {
        let users = Self::default();
        let admin = User { name: "admin".into(), groups: vec!["system:masters".into()], ..User::default() };
        users.add(Credential { user: admin, ..Credential::default() }, &format!("{secret}-admin"));
        users
    }

    /// Adds a token.
    pub fn add(&self, credential: Credential, token: &str) {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner).insert(token.to_owned(), credential);
    }

    /// Replaces the rules of a user.
    pub fn allow(&self, user: &str, rules: Vec<Rule>) {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).insert(user.to_owned(), rules);
    }

    /// The token of a user, if it has one; on a node, the one that is bound to this node alone.
    pub fn token(&self, user: &str, node: Option<&str>) -> Option<String> {
        let wanted: BTreeMap<String, Vec<String>> =
            node.map(|node| (NODE_NAME.to_owned(), vec![node.to_owned()])).into_iter().collect();
        let tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let found = tokens.iter().find(|(_, c)| c.user.name == user && c.user.extra == wanted && c.bound.is_empty());
        found.map(|(token, _)| token.clone())
    }

    /// What a token stands for, unless it is unknown, has expired, or what it is bound to is gone.
    pub fn credential(&self, token: &str, store: &Store, now: Timestamp) -> Option<Credential> {
        let found = self.tokens.lock().unwrap_or_else(PoisonError::into_inner).get(token).cloned();
        found.filter(|credential| credential.is_live(store, now))
    }

    /// The user of an `Authorization` header: anonymous when absent, 401 when the server does not accept the token.
    pub fn authenticate(&self, header: Option<&str>, store: &Store, now: Timestamp) -> Result<User, Failure> {
        let Some(header) = header else {
            let groups = vec!["system:unauthenticated".into()];
            return Ok(User { name: "system:anonymous".into(), groups, ..User::default() });
        };
        let token = header.strip_prefix("Bearer ").ok_or_else(Failure::unauthorized)?.trim();
        let credential = self.credential(token, store, now).ok_or_else(Failure::unauthorized)?;
        if credential.for_audiences(&[]).is_empty() {
            return Err(Failure::unauthorized());
        }
        Ok(credential.user)
    }

    /// Whether the user may do this.
    pub fn allowed(&self, user: &User, target: &Target, store: &Store) -> bool {
        if user.groups.iter().any(|g| g == "system:masters") {
            return true;
        }
        let resource = if target.subresource.is_empty() {
            target.resource.clone()
        } else {
            format!("{}/{}", target.resource, target.subresource)
        };
        let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        if rules.get(&user.name).is_some_and(|r| r.iter().any(|r| r.allows(target, &resource))) {
            return true;
        }
        drop(rules);
        if user.groups.iter().any(|g| g == "system:nodes") && node_may(user, target, &resource) {
            return true;
        }
        if target.resource.starts_with("self") && !user.name.ends_with("anonymous") {
            return true;
        }
        stored_rules(user, target, store).iter().any(|r| r.allows(target, &resource))
    }

    /// Refuses what is not allowed, in the words of a real server.
    pub fn authorize(
        &self,
        user: &User,
        target: &Target,
        resource: Option<&Resource>,
        path: &str,
        store: &Store,
    ) -> Result<(), Failure> {
        if target.resource.is_empty() {
            let known = !user.name.ends_with("anonymous");
            if is_public(path) || known || user.groups.iter().any(|g| g == "system:masters") {
                return Ok(());
            }
            let message = format!("forbidden: User \"{}\" cannot {} path \"{path}\"", user.name, target.verb);
            return Err(Failure::forbidden(message, json!({})));
        }
        if self.allowed(user, target, store) {
            return Ok(());
        }
        let plural = &target.resource;
        let full =
            if target.subresource.is_empty() { plural.clone() } else { format!("{plural}/{}", target.subresource) };
        let title = if target.group.is_empty() { plural.clone() } else { format!("{plural}.{}", target.group) };
        let named = if target.name.is_empty() { String::new() } else { format!(" \"{}\"", target.name) };
        let scope = if target.namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace \"{}\"", target.namespace)
        };
        let mut message = format!(
            "{title}{named} is forbidden: User \"{}\" cannot {} resource \"{full}\" in API group \"{}\" {scope}",
            user.name, target.verb, target.group
        );
        let secret_like = matches!(plural.as_str(), "secrets" | "configmaps") && target.group.is_empty();
        if secret_like && user.groups.iter().any(|g| g == "system:nodes") && target.namespace.is_empty() {
            message.push_str(": can only read namespaced object of this type");
        }
        let mut details = json!({ "kind": plural });
        if !target.name.is_empty() {
            details["name"] = json!(target.name);
        }
        if !target.group.is_empty() {
            details["group"] = json!(target.group);
        }
        let _ = resource;
        Err(Failure::forbidden(message, details))
    }
}

/// Whether RBAC lets the user do this to a path that is no resource.
pub fn path_allowed(user: &User, verb: &str, path: &str, store: &Store) -> bool {
    if is_public(path) || user.groups.iter().any(|g| g == "system:masters") {
        return true;
    }
    let mut allowed = false;
    for_each_rule(user, "", store, |rule, _| {
        let fits = |pattern: &String| match pattern.strip_suffix('*') {
            Some(prefix) => path.starts_with(prefix),
            None => pattern == path,
        };
        let verbs = strings(&rule["verbs"]);
        allowed |= verbs.iter().any(|v| v == "*" || v == verb) && strings(&rule["nonResourceURLs"]).iter().any(fits);
    });
    allowed
}

/// Paths that every user may read.
fn is_public(path: &str) -> bool {
    matches!(path, "/version" | "/version/" | "/healthz" | "/livez" | "/readyz")
}

/// What the node authoriser lets a kubelet do.
fn node_may(user: &User, target: &Target, resource: &str) -> bool {
    let own = user.name.strip_prefix("system:node:").unwrap_or_default();
    match (target.group.as_str(), resource, target.verb.as_str()) {
        ("", "nodes", "get" | "list" | "watch" | "create")
        | ("", "pods", "get" | "list" | "watch" | "create" | "delete")
        | ("", "pods/status", "get" | "patch" | "update")
        | ("", "pods/eviction", "create")
        | ("" | "events.k8s.io", "events", "create" | "patch" | "update")
        | ("", "services", "get" | "list" | "watch")
        | ("storage.k8s.io", "csinodes", _)
        | ("resource.k8s.io", "resourceclaims", "get")
        | ("resource.k8s.io", "resourceslices", _)
        | ("node.k8s.io", "runtimeclasses", "get" | "list" | "watch") => true,
        ("", "nodes" | "nodes/status", "patch" | "update") => target.name == own,
        ("", "configmaps" | "secrets", "get") => !target.namespace.is_empty(),
        ("coordination.k8s.io", "leases", _) => target.namespace == "kube-node-lease",
        _ => false,
    }
}

/// The rules that RBAC objects in the store give a user.
fn stored_rules(user: &User, target: &Target, store: &Store) -> Vec<Rule> {
    let mut rules = Vec::new();
    for_each_rule(user, &target.namespace, store, |rule, namespace| {
        let list = |key: &str| strings(&rule[key]);
        let names = list("resourceNames");
        if !names.is_empty() && !names.contains(&target.name) {
            return;
        }
        rules.push(Rule {
            groups: list("apiGroups"),
            resources: list("resources"),
            verbs: list("verbs"),
            namespace: namespace.map(str::to_owned),
        });
    });
    rules
}

/// The strings of a list.
pub fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Calls back with every rule of the roles that are bound to a user: in the whole cluster and, where one is named, in a
/// namespace.
fn for_each_rule(user: &User, namespace: &str, store: &Store, mut each: impl FnMut(&Value, Option<&str>)) {
    let mut bindings = |collection: &str, prefix: &str, namespace: Option<&str>| {
        let Ok(snapshot) = store.list(collection, prefix, None, None) else { return };
        for (_, binding) in snapshot.items {
            if !binding.value["subjects"].as_array().into_iter().flatten().any(|s| is_subject(user, s)) {
                continue;
            }
            let (kind, name) = (text(&binding.value, &["roleRef", "kind"]), text(&binding.value, &["roleRef", "name"]));
            let role = match (kind, namespace) {
                ("ClusterRole", _) => store.get("rbac.authorization.k8s.io/clusterroles", &format!("/{name}")),
                (_, Some(ns)) => store.get("rbac.authorization.k8s.io/roles", &format!("/{ns}/{name}")),
                _ => None,
            };
            for rule in role.iter().flat_map(|r| r.value["rules"].as_array().into_iter().flatten()) {
                each(rule, namespace);
            }
        }
    };
    bindings("rbac.authorization.k8s.io/clusterrolebindings", "/", None);
    if !namespace.is_empty() {
        let prefix = format!("/{namespace}/");
        bindings("rbac.authorization.k8s.io/rolebindings", &prefix, Some(namespace));
    }
}

fn is_subject(user: &User, subject: &Value) -> bool {
    let name = subject["name"].as_str().unwrap_or_default();
    match subject["kind"].as_str() {
        Some("User") => user.name == name,
        Some("Group") => user.groups.iter().any(|g| g == name),
        Some("ServiceAccount") => {
            let namespace = subject["namespace"].as_str().unwrap_or_default();
            user.name == format!("system:serviceaccount:{namespace}:{name}")
        }
        _ => false,
    }
}
