//! A user: its name, its groups, and what else its token says.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Key of [`User::extra`]: the node that a service-account token is bound to.
pub const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// An authenticated (or anonymous) user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    /// e.g. `system:node:node-a`.
    pub name: String,
    /// e.g. `system:masters`.
    pub groups: Vec<String>,
    /// What else the token says, e.g. the node that it is bound to.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// A user in the groups that its name brings along: those of every user, of nodes, of service accounts.
    pub fn named(name: &str) -> Self {
        let mut groups = vec!["system:authenticated".to_owned()];
        if name.starts_with("system:node:") {
            groups.push("system:nodes".to_owned());
        }
        groups.extend(account_groups(name));
        Self { name: name.to_owned(), groups, ..Self::default() }
    }

    /// The user as `userInfo` of a review; empty fields are left out.
    pub fn info(&self) -> Value {
        let mut info = json!({"username": self.name});
        if !self.groups.is_empty() {
            info["groups"] = json!(self.groups);
        }
        if !self.extra.is_empty() {
            info["extra"] = json!(self.extra);
        }
        info
    }
}

/// The groups of a service account; none for other names.
pub fn account_groups(name: &str) -> Vec<String> {
    let account = name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    let groups = account
        .map(|(namespace, _)| vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")]);
    groups.unwrap_or_default()
}
