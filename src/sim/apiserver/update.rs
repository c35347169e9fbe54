//! PUT and the four kinds of PATCH.

use axum::body::Bytes;
use serde_json::Value;

use super::codec;
use super::failure::{Cause, Failure};
use super::managed::{self, Manager, OnConflict};
use super::object::{key, meta, metadata_mut, text, typed};
use super::patch;
use super::resource::Resource;
use super::schema::zero_object;
use super::write::{Made, Write, Written};

/// Whether a PUT may come without resourceVersion and then overwrites.
fn unconditional(resource: &Resource) -> bool {
    resource.custom.is_none()
        && !matches!(
            (resource.group.as_str(), resource.plural.as_str()),
            ("coordination.k8s.io", "leases")
                | ("policy", "poddisruptionbudgets")
                | ("admissionregistration.k8s.io" | "apiextensions.k8s.io" | "discovery.k8s.io" | "resource.k8s.io", _)
        )
}

/// Whether a PUT of an absent object creates it.
fn creates(resource: &Resource) -> bool {
    matches!(
        (resource.group.as_str(), resource.plural.as_str()),
        ("coordination.k8s.io", "leases")
            | ("" | "events.k8s.io", "events" | "endpoints" | "limitranges")
            | ("rbac.authorization.k8s.io", _)
    )
}

impl Write<'_> {
    /// PUT.
    pub fn replace(&mut self, body: &Value) -> Result<Written, Failure> {
        self.replaces = true;
        let name = self.request.target.name.clone();
        let given = meta(body, "name");
        if !given.is_empty() && given != name {
            return Err(Failure::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            )));
        }
        let resource = self.resource;
        let absent = self.core.store.get(&resource.storage, &key(&self.request.target.namespace, &name)).is_none();
        if absent && creates(resource) && self.request.target.subresource.is_empty() {
            let mut body = body.clone();
            metadata_mut(&mut body).insert("name".into(), Value::String(name));
            return self.create(body);
        }
        let decoded = self.decode(body.clone()).map_err(|why| {
            Failure::bad_request(format!(
                "{} in version \"{}\" cannot be handled as a {}: {why}",
                resource.kind, resource.version, resource.kind
            ))
        })?;
        self.update(&name, |write, _| {
            let version = meta(&decoded, "resourceVersion").to_owned();
            if version.is_empty() && !unconditional(resource) {
                let cause =
                    Cause::invalid("metadata.resourceVersion", &Value::from(0), "must be specified for an update");
                return Err(Failure::invalid_as(resource, &resource.plural, &name, &[cause]));
            }
            let pinned = (!version.is_empty()).then_some(version);
            Ok(Made { value: decoded.clone(), record: Some(write.manager()), pinned })
        })
    }

    /// PATCH.
    pub fn patch(&mut self, body: &Bytes) -> Result<Written, Failure> {
        let kind = self.request.content_type.clone();
        let custom = self.resource.custom.is_some();
        match kind.as_str() {
            "application/json-patch+json" | "application/merge-patch+json" => {}
            "application/strategic-merge-patch+json" if !custom => {}
            "application/apply-patch+yaml" => return self.apply(body),
            _ if custom => {
                return Err(Failure::unsupported_media(&[
                    "application/json-patch+json",
                    "application/merge-patch+json",
                    "application/apply-patch+yaml",
                ]));
            }
            _ => {
                return Err(Failure::unsupported_media(&[
                    "application/json-patch+json",
                    "application/merge-patch+json",
                    "application/strategic-merge-patch+json",
                    "application/apply-patch+yaml",
                ]));
            }
        }
        let document: Value =
            serde_json::from_slice(body).map_err(|e| Failure::bad_request(format!("error decoding patch: {e}")))?;
        let name = self.request.target.name.clone();
        self.update(&name, |write, current| {
            let resource = write.resource;
            let shown = typed(resource, current);
            let patched = match kind.as_str() {
                "application/json-patch+json" => patch::json_patch(&shown, &document)?,
                "application/merge-patch+json" => patch::merge_patch(&shown, &document),
                _ => patch::strategic_patch(&resource.schema, &shown, &document)?,
            };
            let text_of = patched.to_string();
            let strict = write.request.query.text("fieldValidation") == "Strict";
            let value = write.decode(patched).map_err(|why| {
                if strict && why.0.starts_with("strict") {
                    Failure::bad_request(why.0)
                } else {
                    Failure::patch_unfit(&text_of, &why.0)
                }
            })?;
            let given = meta(&value, "name");
            if given != name {
                return Err(Failure::bad_request(format!(
                    "the name of the object ({given}) does not match the name on the URL ({name})"
                )));
            }
            // Only a version that the patch itself sets pins; the object's own is what it was made from.
            let version = meta(&value, "resourceVersion").to_owned();
            let pinned = (version != meta(current, "resourceVersion") && !version.is_empty()).then_some(version);
            Ok(Made { value, record: Some(write.manager()), pinned })
        })
    }

    /// Server-side apply.
    fn apply(&mut self, body: &Bytes) -> Result<Written, Failure> {
        let document = codec::read(self.request, body)?;
        let name = self.request.target.name.clone();
        let resource = self.resource;
        let manager = Manager {
            name: self.request.query.text("fieldManager").to_owned(),
            applies: true,
            api_version: resource.api_version(),
            subresource: self.request.target.subresource.clone(),
        };
        if manager.name.is_empty() {
            return Err(Failure::bad_request(
                "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
            ));
        }
        let given = meta(&document, "name");
        if !given.is_empty() && given != name {
            return Err(Failure::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            )));
        }
        let (version, kind) = (text(&document, &["apiVersion"]), text(&document, &["kind"]));
        if version != resource.api_version() || kind != resource.kind {
            return Err(Failure::bad_request(format!(
                "couldn't get version/kind; or the body is not of the requested type: {version}, Kind={kind}"
            )));
        }
        if document["metadata"].get("managedFields").is_some_and(|m| !m.is_null()) {
            return Err(Failure::bad_request("metadata.managedFields must be nil"));
        }
        let intent = self.intent(document)?;
        let conflicts = if self.request.query.flag("force") { OnConflict::Take } else { OnConflict::Refuse };
        let pinned = Some(meta(&intent, "resourceVersion").to_owned()).filter(|v| !v.is_empty());
        let key = key(&self.request.target.namespace, &name);
        if self.core.store.get(&resource.storage, &key).is_none() {
            if !manager.subresource.is_empty() {
                return Err(Failure::not_found(resource, &name));
            }
            let mut zero = zero_object(&resource.schema);
            metadata_mut(&mut zero);
            let take = OnConflict::Take;
            let applied = managed::apply(&resource.schema, &zero, &intent, &manager, take, &self.core.now())?;
            let mut value = self.decode(applied.value).map_err(|why| Failure::bad_request(why.0))?;
            metadata_mut(&mut value).insert("name".into(), Value::String(name));
            return self.create_decoded(value, None);
        }
        self.update(&name, |write, current| {
            let applied = managed::apply(&resource.schema, current, &intent, &manager, conflicts, &write.core.now())?;
            let value = write.decode(applied.value).map_err(|why| Failure::bad_request(why.0))?;
            Ok(Made { value, record: None, pinned: pinned.clone() })
        })
    }

    /// The applied document without kind and version, refused where a field is not in the schema.
    fn intent(&self, mut document: Value) -> Result<Value, Failure> {
        let resource = self.resource;
        let mut unknown = Vec::new();
        undeclared(&resource.schema, resource.schema.root(), &document, "", &mut unknown);
        if !unknown.is_empty() {
            let list: Vec<String> = unknown.iter().map(|f| format!("{f}: field not declared in schema")).collect();
            let title = format!(
                "{}/{}; {}, Kind={}",
                self.request.target.namespace,
                self.request.target.name,
                resource.api_version(),
                resource.kind
            );
            let why =
                if let [one] = list.as_slice() { one.clone() } else { format!("errors:\n  {}", list.join("\n  ")) };
            return Err(Failure::internal(format!("failed to create typed patch object ({title}): {why}")));
        }
        if let Some(map) = document.as_object_mut() {
            map.remove("apiVersion");
            map.remove("kind");
        }
        if let Some(metadata) = document["metadata"].as_object_mut() {
            metadata.remove("creationTimestamp");
        }
        Ok(document)
    }
}

use super::schema::{Node, Schema};

/// Paths of fields that the schema does not declare.
fn undeclared(schema: &Schema, node: &Node, value: &Value, at: &str, unknown: &mut Vec<String>) {
    match (schema.resolve(node), value) {
        (Node::Struct(s), Value::Object(map)) => {
            for (key, item) in map {
                let path = format!("{at}.{key}");
                match s.fields.get(key) {
                    Some(inner) => undeclared(schema, inner, item, &path, unknown),
                    None if s.preserve || (at.is_empty() && (key == "kind" || key == "apiVersion")) => {}
                    None => unknown.push(path),
                }
            }
        }
        (Node::Map(elem, _), Value::Object(map)) => {
            for (key, item) in map {
                undeclared(schema, elem, item, &format!("{at}.{key}"), unknown);
            }
        }
        (Node::List(elem, _), Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                undeclared(schema, elem, item, &format!("{at}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}
