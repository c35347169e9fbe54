//! A write, as policies see it.

use serde_json::Value;

use crate::apiserver::object::meta;
use crate::apiserver::request::Request;
use crate::apiserver::resource::Resource;
use crate::apiserver::user::User;

/// A write as policies see it.
pub struct Asked<'a> {
    /// The resource of the request.
    pub resource: &'a Resource,
    /// Its subresource, or empty.
    pub subresource: &'a str,
    /// Group, version and kind of the object.
    pub kind: (&'a str, &'a str, &'a str),
    /// `CREATE`, `UPDATE` or `DELETE`.
    pub operation: &'static str,
    /// Namespace, or empty. Of a namespace that is named in the path, its own name.
    pub namespace: &'a str,
    /// Name, or empty where the request gives none.
    pub name: &'a str,
    /// The object as it would be stored, without kind and version; none of a deletion.
    pub object: Option<&'a Value>,
    /// The object as it is; none of a creation.
    pub old: Option<&'a Value>,
    /// Who asks.
    pub user: &'a User,
    /// Whether nothing is to be stored.
    pub dry: bool,
}

impl<'a> Asked<'a> {
    /// What a request asks for, as yet without objects.
    pub fn of(request: &'a Request, resource: &'a Resource, operation: &'static str) -> Self {
        let target = &request.target;
        let namespace = if resource.is("", "namespaces") { &target.name } else { &target.namespace };
        Self {
            resource,
            subresource: &target.subresource,
            kind: (&resource.group, &resource.version, &resource.kind),
            operation,
            namespace,
            name: &target.name,
            object: None,
            old: None,
            user: &request.user,
            dry: request.query.get("dryRun") == Some("All"),
        }
    }

    /// The name that a refusal gives.
    pub(super) fn shown_name(&self) -> &str {
        let generated = self.object.map(|object| meta(object, "name")).filter(|name| !name.is_empty());
        if self.name.is_empty() { generated.unwrap_or("Unknown") } else { self.name }
    }
}
