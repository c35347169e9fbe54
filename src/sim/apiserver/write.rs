//! Creating and updating objects: decoding, defaults, admission, field ownership, validation, commit.

use std::sync::Arc;

use serde_json::{Value, json};

use super::core::Core;
use super::defaults;
use super::events::{from_stored, to_stored};
use super::failure::{Cause, Failure};
use super::managed::{self, Manager};
use super::object::{Object, deleting, finalized, key, meta, metadata_mut, text};
use super::policies::{self, Asked};
use super::request::Request;
use super::resource::Resource;
use super::schema::{self, zero_object};
use super::validate;

/// One write: what to, by whom, under which options.
pub struct Write<'a> {
    /// The server.
    pub core: &'a Core,
    /// The resource written through.
    pub resource: &'a Arc<Resource>,
    /// The request.
    pub request: &'a Request,
    /// Warnings for the client.
    pub warnings: Vec<String>,
    /// A PUT.
    pub replaces: bool,
}

/// The result of a write.
pub struct Written {
    /// The object in the resource's form.
    pub value: Value,
    /// Whether it was created.
    pub created: bool,
}

impl<'a> Write<'a> {
    /// A write for a request.
    pub fn new(core: &'a Core, resource: &'a Arc<Resource>, request: &'a Request) -> Self {
        Self { core, resource, request, warnings: Vec::new(), replaces: false }
    }

    /// The manager of an update (not an apply).
    pub fn manager(&self) -> Manager {
        Manager {
            name: self.request.manager(),
            applies: false,
            api_version: self.resource.api_version(),
            subresource: self.request.target.subresource.clone(),
        }
    }

    fn dry(&self) -> bool {
        self.request.query.get("dryRun").is_some_and(|d| d == "All")
    }

    /// Whether kind and version in the body are those of the path.
    fn check_type(&self, body: &Value) -> Result<(), Failure> {
        let (kind, version) = (text(body, &["kind"]), text(body, &["apiVersion"]));
        let wanted = self.resource.api_version();
        if !body.is_object() {
            return Err(Failure::bad_request(format!(
                "{} in version \"{}\" cannot be handled as a {}: json: cannot unmarshal into an object",
                self.resource.kind, self.resource.version, self.resource.kind
            )));
        }
        if !version.is_empty() && version != wanted {
            return Err(Failure::bad_request(format!(
                "the API version in the data ({version}) does not match the expected API version ({wanted})"
            )));
        }
        if !kind.is_empty() && kind != self.resource.kind {
            return Err(Failure::bad_request(format!(
                "{kind} in version \"{}\" cannot be handled as a {}: the kind in the data does not match",
                self.resource.version, self.resource.kind
            )));
        }
        Ok(())
    }

    /// Reads fields by type: unknown ones are dropped with a warning or refused, as `fieldValidation` says.
    pub fn decode(&mut self, mut body: Value) -> Result<Value, schema::Mismatch> {
        if let Some(custom) = &self.resource.custom {
            if let Some(map) = body.as_object_mut() {
                map.remove("kind");
                map.remove("apiVersion");
            }
            let dropped = validate::prune(&custom.schema, &mut body);
            self.note_unknown(&dropped)?;
            validate::apply_defaults(&custom.schema, &mut body);
            let metadata = body["metadata"].take();
            body["metadata"] = self.decode_metadata(metadata)?;
            return Ok(body);
        }
        let decoded = schema::decode(&self.resource.schema, body)?;
        self.note_unknown(&decoded.unknown)?;
        let mut value = decoded.value;
        metadata_mut(&mut value);
        defaults::decode_time(self.resource, &mut value);
        Ok(value)
    }

    /// Metadata of a custom object is typed like that of every object.
    fn decode_metadata(&mut self, metadata: Value) -> Result<Value, schema::Mismatch> {
        let lease = schema::builtin_schema("coordination.k8s.io", "v1", "Lease");
        let decoded = schema::decode(&lease, json!({"metadata": metadata}))?;
        self.note_unknown(&decoded.unknown)?;
        let mut value = decoded.value;
        Ok(Value::Object(std::mem::take(metadata_mut(&mut value))))
    }

    fn note_unknown(&mut self, unknown: &[String]) -> Result<(), schema::Mismatch> {
        if unknown.is_empty() {
            return Ok(());
        }
        match self.request.query.text("fieldValidation") {
            "Ignore" => {}
            "Strict" => {
                let list: Vec<String> = unknown.iter().map(|f| format!("unknown field \"{f}\"")).collect();
                return Err(schema::Mismatch(format!("strict decoding error: {}", list.join(", "))));
            }
            _ => self.warnings.extend(unknown.iter().map(|f| format!("unknown field \"{f}\""))),
        }
        Ok(())
    }

    fn misfit(&self, why: &schema::Mismatch) -> Failure {
        Failure::bad_request(format!(
            "{} in version \"{}\" cannot be handled as a {}: {why}",
            self.resource.kind, self.resource.version, self.resource.kind
        ))
    }

    fn set_namespace(&self, value: &mut Value) -> Result<(), Failure> {
        let wanted = &self.request.target.namespace;
        let given = meta(value, "namespace").to_owned();
        if self.resource.namespaced {
            if !given.is_empty() && given != *wanted {
                return Err(Failure::bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
            metadata_mut(value).insert("namespace".into(), json!(wanted));
        } else {
            metadata_mut(value).remove("namespace");
        }
        Ok(())
    }

    /// Creates the object of a body.
    pub fn create(&mut self, body: Value) -> Result<Written, Failure> {
        self.check_type(&body)?;
        let value = self.decode(body).map_err(|why| self.misfit(&why))?;
        let manager = self.manager();
        self.create_decoded(value, Some(&manager))
    }

    /// Creates a decoded object. `manager` is `None` when field ownership is already recorded.
    pub fn create_decoded(&mut self, mut value: Value, manager: Option<&Manager>) -> Result<Written, Failure> {
        let core = self.core;
        self.set_namespace(&mut value)?;
        if !meta(&value, "resourceVersion").is_empty() {
            return Err(Failure::internal("resourceVersion should not be set on objects to be created"));
        }
        let prefix = meta(&value, "generateName").to_owned();
        let generated = meta(&value, "name").is_empty() && !prefix.is_empty();
        if generated {
            let kept: String = prefix.chars().take(58).collect();
            metadata_mut(&mut value).insert("name".into(), json!(format!("{kept}{}", core.suffix())));
        }
        if let Some(manager) = manager {
            metadata_mut(&mut value).remove("managedFields");
            let mut zero = zero_object(&self.resource.schema);
            // Creation ignores a status that the client brings along, so no manager owns one.
            if self.resource.has_status() {
                zero["status"] = value["status"].clone();
            }
            managed::record_update(&self.resource.schema, &zero, &mut value, manager, &core.now());
        }
        if value["status"].is_null()
            && let Some(map) = value.as_object_mut()
            && self.resource.custom.is_some()
        {
            map.remove("status");
        }
        let classes = |name: &str| super::admission::priority_class(core, name);
        defaults::admit_new(self.resource, &mut value, &classes)?;
        super::admission::namespace_open(core, self.resource, &value)?;
        super::quotas::fill(core, self.resource, &mut value);
        defaults::prepare(self.resource, &mut value);
        let name = meta(&value, "name").to_owned();
        let metadata = metadata_mut(&mut value);
        for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"] {
            metadata.remove(key);
        }
        metadata.insert("uid".into(), json!(core.uuid()));
        metadata.insert("creationTimestamp".into(), json!(core.now()));
        if self.resource.counts_generation() {
            metadata.insert("generation".into(), json!(1));
        }
        let causes = self.validate_new(&value);
        if !causes.is_empty() {
            return Err(Failure::invalid(self.resource, &name, &causes));
        }
        let asked = Asked::of(self.request, self.resource, "CREATE");
        core.judge(&Asked { name: &name, object: Some(&value), ..asked })?;
        super::quotas::admit(core, self.resource, &value, self.dry())?;
        let stored = to_stored(self.resource, value);
        if self.dry() {
            return Ok(Written { value: from_stored(self.resource, &stored), created: true });
        }
        let key = key(meta(&stored, "namespace"), &name);
        let object = core
            .store
            .commit(&self.resource.storage, &key, None, Some(stored))
            .map_err(|_| Failure::already_exists(self.resource, &name))?;
        Ok(Written { value: from_stored(self.resource, &object.value), created: true })
    }

    fn validate_new(&self, value: &Value) -> Vec<Cause> {
        let mut causes = validate::metadata(self.resource, value);
        if self.resource.is_pods() {
            causes.extend(validate::pod(value));
        }
        causes.extend(self.validate_custom(value, None));
        causes
    }

    /// `current` is the object before an update.
    fn validate_custom(&self, value: &Value, current: Option<&Value>) -> Vec<Cause> {
        if let Some(custom) = &self.resource.custom {
            let mut causes = validate::custom(&custom.schema, value);
            validate::rules(&custom.schema, value, current, &mut causes);
            return causes;
        }
        if self.resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
            return super::definitions::validate(value);
        }
        if self.resource.is(policies::GROUP, "validatingadmissionpolicies") {
            return policies::validate(value);
        }
        if self.resource.is(policies::GROUP, "validatingadmissionpolicybindings") {
            return policies::validate_binding(value);
        }
        Vec::new()
    }

    /// Updates an object by a function of its current state; retries when another write was faster.
    /// `make` gets the object in the resource's form and answers the next state, decoded.
    pub fn update(
        &mut self,
        name: &str,
        mut make: impl FnMut(&mut Self, &Value) -> Result<Made, Failure>,
    ) -> Result<Written, Failure> {
        loop {
            let key = key(&self.request.target.namespace, name);
            let live = self
                .core
                .store
                .get(&self.resource.storage, &key)
                .ok_or_else(|| Failure::not_found(self.resource, name))?;
            let current = from_stored(self.resource, &live.value);
            let made = make(self, &current)?;
            if let Some(written) = self.try_update(&key, &live, &current, made)? {
                return Ok(written);
            }
        }
    }

    /// Refuses another uid than that of the object.
    fn check_uid(&self, value: &Value, current: &Value) -> Result<(), Failure> {
        let (resource, name, found) = (self.resource, meta(current, "name"), meta(current, "uid"));
        let uid = value["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty() && *uid != found);
        // The status of a custom object takes nothing from the metadata: there, another uid is dropped without a word.
        let uid = uid.filter(|_| resource.custom.is_none() || self.request.target.subresource != "status");
        let Some(uid) = uid else { return Ok(()) };
        // Only a PUT makes a precondition of it; a patch would change what cannot change.
        if self.replaces {
            let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {found}");
            return Err(Failure::conflict(resource, &resource.plural, name, &why));
        }
        let cause = Cause::invalid("metadata.uid", &json!(uid), "field is immutable");
        Err(Failure::invalid(resource, name, &[cause]))
    }

    fn try_update(
        &mut self,
        key: &str,
        live: &Arc<Object>,
        current: &Value,
        made: Made,
    ) -> Result<Option<Written>, Failure> {
        let core = self.core;
        let resource = self.resource;
        let name = meta(current, "name").to_owned();
        let Made { mut value, record, pinned } = made;
        self.check_uid(&value, current)?;
        if let Some(version) = pinned
            && version != live.version.to_string()
        {
            return Err(Failure::modified(resource, &name));
        }
        self.set_namespace(&mut value)?;
        restore(self.resource, &self.request.target.subresource, &mut value, current);
        if let Some(manager) = record {
            managed::record_update(&resource.schema, current, &mut value, &manager, &core.now());
        }
        let mut causes = validate::metadata_update(resource, &value, current);
        if resource.is_pods() && self.request.target.subresource.is_empty() {
            causes.extend(validate::pod_update(&value, current));
        }
        causes.extend(self.validate_custom(&value, Some(current)));
        if !causes.is_empty() {
            return Err(Failure::invalid(resource, &name, &causes));
        }
        bump_generation(resource, &mut value, current);
        let asked = Asked::of(self.request, resource, "UPDATE");
        core.judge(&Asked { object: Some(&value), old: Some(current), ..asked })?;
        if managed::forget(&value) == managed::forget(current) {
            return Ok(Some(Written { value: current.clone(), created: false }));
        }
        let stored = to_stored(resource, value);
        if self.dry() {
            return Ok(Some(Written { value: from_stored(resource, &stored), created: false }));
        }
        let grace = stored["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        let namespace_held =
            resource.is("", "namespaces") && !stored["spec"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        if deleting(&stored) && !finalized(&stored) && grace == 0 && !namespace_held {
            return match core.store.commit(&resource.storage, key, Some(live.version), None) {
                Ok(_) => Ok(Some(Written { value: from_stored(resource, &stored), created: false })),
                Err(_) => Ok(None),
            };
        }
        match core.store.commit(&resource.storage, key, Some(live.version), Some(stored)) {
            Ok(object) => Ok(Some(Written { value: from_stored(resource, &object.value), created: false })),
            Err(_) => Ok(None),
        }
    }
}

/// The next state of an object.
pub struct Made {
    /// The object, decoded.
    pub value: Value,
    /// Records field ownership for this manager; `None` when it is already recorded.
    pub record: Option<Manager>,
    /// The resourceVersion that the client insists on.
    pub pinned: Option<String>,
}

/// Puts back what this kind of write may not change.
fn restore(resource: &Resource, subresource: &str, value: &mut Value, current: &Value) {
    let meta_keys = [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "generation",
        "selfLink",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generateName",
        "resourceVersion",
    ];
    let old = &current["metadata"];
    let metadata = metadata_mut(value);
    for key in meta_keys {
        match old.get(key) {
            Some(item) => metadata.insert(key.to_owned(), item.clone()),
            None => metadata.remove(key),
        };
    }
    if subresource.is_empty() {
        if resource.has_status() {
            keep(value, current, "status");
        }
        return;
    }
    if subresource == "status" {
        let fields: Vec<String> = current.as_object().into_iter().flatten().map(|(k, _)| k.clone()).collect();
        for field in fields.iter().chain(std::iter::once(&"spec".to_owned())) {
            if field != "status" && field != "metadata" {
                keep(value, current, field);
            }
        }
        if resource.custom.is_some() {
            let managed = value["metadata"].get("managedFields").cloned();
            value["metadata"] = current["metadata"].clone();
            if let Some(managed) = managed {
                value["metadata"]["managedFields"] = managed;
            }
        } else {
            keep_in_metadata(value, current, "ownerReferences");
            if resource.is_pods() {
                keep_in_metadata(value, current, "finalizers");
            }
        }
    }
}

fn keep(value: &mut Value, current: &Value, field: &str) {
    let Some(map) = value.as_object_mut() else { return };
    match current.get(field) {
        Some(item) => map.insert(field.to_owned(), item.clone()),
        None => map.remove(field),
    };
}

fn keep_in_metadata(value: &mut Value, current: &Value, field: &str) {
    let old = current["metadata"].get(field).cloned();
    let metadata = metadata_mut(value);
    match old {
        Some(item) => metadata.insert(field.to_owned(), item),
        None => metadata.remove(field),
    };
}

/// A new generation when anything changed that the object's author decides.
fn bump_generation(resource: &Resource, value: &mut Value, current: &Value) {
    if !resource.counts_generation() {
        return;
    }
    let changed = match &resource.custom {
        Some(custom) if !custom.status_subresource => {
            let body = |v: &Value| {
                let mut map = v.as_object().cloned().unwrap_or_default();
                map.remove("metadata");
                map
            };
            body(value) != body(current)
        }
        _ => value["spec"] != current["spec"],
    };
    if changed {
        let generation = current["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
        metadata_mut(value).insert("generation".into(), json!(generation));
    }
}
