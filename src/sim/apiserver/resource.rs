//! A served resource: its names, verbs and subresources, and what is known of the fields of its objects.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::schema::Schema;
use super::table::Column;

/// One served resource.
#[derive(Debug, Clone)]
pub struct Resource {
    /// API group, empty for core.
    pub group: String,
    /// Served version.
    pub version: String,
    /// Plural, lower case, as in paths.
    pub plural: String,
    /// Singular, lower case.
    pub singular: String,
    /// Kind of one object.
    pub kind: String,
    /// Kind of a list.
    pub list_kind: String,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Short names for clients.
    pub short: Vec<String>,
    /// Categories such as `all`.
    pub categories: Vec<String>,
    /// Verbs of the main resource.
    pub verbs: Vec<String>,
    /// Subresources with kind and verbs.
    pub subresources: Vec<Subresource>,
    /// Key of the collection that holds the objects (two resources may share one: events).
    pub storage: String,
    /// What the server knows of the objects' fields.
    pub schema: Arc<Schema>,
    /// For custom resources, what the definition says beyond the fields.
    pub custom: Option<Arc<Custom>>,
}

/// What a CustomResourceDefinition says beyond names.
#[derive(Debug, Clone)]
pub struct Custom {
    /// The structural schema as given.
    pub schema: Value,
    /// Whether `status` is a subresource.
    pub status_subresource: bool,
    /// Columns of `kubectl get`.
    pub columns: Vec<Column>,
    /// Name of the definition object.
    pub definition: String,
    /// `selectableFields` paths, with their leading dot.
    pub selectable: Vec<String>,
}

/// A path below an object.
#[derive(Debug, Clone)]
pub struct Subresource {
    /// e.g. `status`.
    pub name: String,
    /// Group, version and kind where they are not the parent's.
    pub gvk: Option<(String, String)>,
    /// Kind of the body.
    pub kind: String,
    /// Verbs.
    pub verbs: Vec<String>,
}

impl Resource {
    /// `pods`, `leases.coordination.k8s.io`.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// `v1`, `coordination.k8s.io/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `details` of a Status about one object.
    pub fn details(&self, name: &str, kind: &str) -> Value {
        let mut details = Map::new();
        if !name.is_empty() {
            details.insert("name".into(), json!(name));
        }
        if !self.group.is_empty() {
            details.insert("group".into(), json!(self.group));
        }
        details.insert("kind".into(), json!(kind));
        Value::Object(details)
    }

    /// Whether clients may write the status only through its own path.
    pub fn has_status(&self) -> bool {
        self.subresources.iter().any(|s| s.name == "status")
    }

    /// Whether this is a core or built-in kind named `plural` in `group`.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.group == group && self.plural == plural
    }

    /// Whether this is the core `pods`.
    pub fn is_pods(&self) -> bool {
        self.is("", "pods")
    }

    /// Whether objects count generations although they are built in.
    pub fn counts_generation(&self) -> bool {
        self.custom.is_some()
            || self.is_pods()
            || self.is("apiextensions.k8s.io", "customresourcedefinitions")
            || matches!(
                self.group.as_str(),
                "admissionregistration.k8s.io"
                    | "apps"
                    | "batch"
                    | "policy"
                    | "networking.k8s.io"
                    | "flowcontrol.apiserver.k8s.io"
            )
    }
}
