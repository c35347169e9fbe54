//! Tokens of service accounts, as TokenRequest gives them out and TokenReview explains them.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{Timestamp, ToSpan};
use serde_json::{Value, json};

use super::auth::{AUDIENCE, Credential, strings};
use super::core::{Core, rfc3339};
use super::failure::{Cause, Failure};
use super::object::{Object, key, meta, metadata_mut, text};
use super::policies::Asked;
use super::request::Request;
use super::resource::Resource;
use super::schema;
use super::user::User;

/// Seconds of a token that asks for none.
const LIFETIME: i64 = 3600;
/// Fewest seconds of a token.
const SHORTEST: i64 = 600;

/// The fields of a request for a token of a service account.
fn read(kind: &Resource, namespace: &str, name: &str, body: Value) -> Result<Value, Failure> {
    let schema = schema::builtin_schema(&kind.group, &kind.version, &kind.kind);
    let misfit = |why: schema::Mismatch| {
        Failure::bad_request(format!("TokenRequest in version \"v1\" cannot be handled as a TokenRequest: {why}"))
    };
    let value = schema::decode(&schema, body).map_err(misfit)?.value;
    for (field, wanted) in [("name", name), ("namespace", namespace)] {
        let given = meta(&value, field);
        if !given.is_empty() && given != wanted {
            let why = format!("must match the service account {field} if specified");
            let cause = Cause::invalid(format!("metadata.{field}"), &json!(given), &why);
            return Err(Failure::invalid(kind, name, &[cause]));
        }
    }
    Ok(value)
}

/// A new token of a service account, bound to a pod or a node where the request says so.
pub fn request(core: &Core, accounts: &Resource, request: &Request, body: Value) -> Result<Value, Failure> {
    let (namespace, name) = (&request.target.namespace, request.target.name.as_str());
    let kind = Resource {
        group: "authentication.k8s.io".to_owned(),
        version: "v1".to_owned(),
        kind: "TokenRequest".to_owned(),
        ..accounts.clone()
    };
    let mut value = read(&kind, namespace, name, body)?;
    let account =
        core.store.get(&accounts.storage, &key(namespace, name)).ok_or_else(|| Failure::not_found(accounts, name))?;
    let metadata = metadata_mut(&mut value);
    metadata.insert("name".into(), json!(name));
    metadata.insert("namespace".into(), json!(namespace));
    metadata.insert("uid".into(), account.value["metadata"]["uid"].clone());
    metadata.insert("creationTimestamp".into(), json!(core.now()));
    let mut audiences = strings(&value["spec"]["audiences"]);
    if audiences.is_empty() {
        audiences = vec![AUDIENCE.to_owned()];
    }
    let seconds = value["spec"]["expirationSeconds"].as_i64().unwrap_or(LIFETIME);
    let bound_to = value["spec"]["boundObjectRef"].clone();
    value["spec"] = json!({"audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": bound_to});
    if seconds < SHORTEST {
        let why = "may not specify a duration less than 10 minutes";
        let cause = Cause::invalid("spec.expirationSeconds", &json!(seconds), why);
        return Err(Failure::invalid(&kind, "", &[cause]));
    }
    core.judge(&Asked {
        kind: (&kind.group, &kind.version, &kind.kind),
        object: Some(&value),
        ..Asked::of(request, accounts, "CREATE")
    })?;
    let (claims, mut bound) = claims(core, namespace, name, &bound_to)?;
    bound.push((accounts.storage.clone(), key(namespace, name), meta(&account.value, "uid").to_owned()));
    let mut user = User::named(&format!("system:serviceaccount:{namespace}:{name}"));
    let id = core.uuid();
    user.extra = claims;
    user.extra.insert("authentication.kubernetes.io/credential-id".to_owned(), vec![format!("JTI={id}")]);
    let now = core.time();
    let until = now.checked_add(seconds.seconds()).unwrap_or(now);
    let token = jwt(&id, &user.name, &audiences, (now, until));
    if request.query.get("dryRun") != Some("All") {
        core.users.add(Credential { user, audiences, bound, until: Some(until) }, &token);
    }
    value["status"] = json!({"token": token, "expirationTimestamp": rfc3339(until)});
    value["kind"] = json!(kind.kind);
    value["apiVersion"] = json!(kind.api_version());
    Ok(value)
}

/// The form of a real token, so that those who hold it can read for whom and until when it is. In place of the signature stands what
/// cannot be guessed: its id.
fn jwt(id: &str, subject: &str, audiences: &[String], (from, until): (Timestamp, Timestamp)) -> String {
    let claims = json!({
        "iss": AUDIENCE, "sub": subject, "aud": audiences, "jti": id, "iat": from.as_second(), "nbf": from.as_second(), "exp": until.as_second(),
    });
    let parts = [json!({"alg": "none"}).to_string(), claims.to_string(), id.to_owned()];
    parts.map(|part| URL_SAFE_NO_PAD.encode(part)).join(".")
}

/// What a token says beside its user, and the objects that it lives and dies with.
type Claims = (BTreeMap<String, Vec<String>>, Vec<(String, String, String)>);

fn claims(core: &Core, namespace: &str, account: &str, reference: &Value) -> Result<Claims, Failure> {
    let mut extra = BTreeMap::new();
    let mut say = |key: &str, value: &str| {
        extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value.to_owned()]);
    };
    if reference.is_null() {
        return Ok((extra, Vec::new()));
    }
    let (kind, name) = (text(reference, &["kind"]), text(reference, &["name"]));
    let version = text(reference, &["apiVersion"]);
    let (object, collection, object_key) = match (version, kind) {
        ("v1" | "", "Pod") => {
            let pod = bound_object(core, "pods", namespace, name)?;
            if text(&pod.value, &["spec", "serviceAccountName"]) != account {
                return Err(Failure::bad_request(format!(
                    "cannot bind token for serviceaccount \"{account}\" to pod running with different serviceaccount \
                     name."
                )));
            }
            say("pod-name", name);
            say("pod-uid", meta(&pod.value, "uid"));
            let node = text(&pod.value, &["spec", "nodeName"]);
            if !node.is_empty() {
                say("node-name", node);
                if let Some(node) = core.store.get("/nodes", &key("", node)) {
                    say("node-uid", meta(&node.value, "uid"));
                }
            }
            (pod, "/pods", key(namespace, name))
        }
        ("v1" | "", "Node") => {
            let node = bound_object(core, "nodes", "", name)?;
            say("node-name", name);
            say("node-uid", meta(&node.value, "uid"));
            (node, "/nodes", key("", name))
        }
        ("v1" | "", "Secret") => (bound_object(core, "secrets", namespace, name)?, "/secrets", key(namespace, name)),
        _ => {
            let what = format!("{version}, Kind={kind}");
            return Err(Failure::bad_request(format!("cannot bind token to object of type {what}")));
        }
    };
    let (given, found) = (text(reference, &["uid"]), meta(&object.value, "uid"));
    if !given.is_empty() && given != found {
        let why = format!(
            "the UID in the bound object reference ({given}) does not match the UID in record. The object might have been \
             deleted and then recreated"
        );
        let registry = core.registry.load();
        let pods = registry.find("", "v1", "pods").ok_or_else(Failure::unknown_resource)?;
        return Err(Failure::conflict(&pods, kind, name, &why));
    }
    let bound = (collection.to_owned(), object_key, found.to_owned());
    Ok((extra, vec![bound]))
}

fn bound_object(core: &Core, plural: &str, namespace: &str, name: &str) -> Result<Arc<Object>, Failure> {
    let registry = core.registry.load();
    let resource = registry.find("", "v1", plural).ok_or_else(Failure::unknown_resource)?;
    core.store.get(&resource.storage, &key(namespace, name)).ok_or_else(|| Failure::not_found(&resource, name))
}

/// What a token stands for, as `status` of a TokenReview.
pub fn review(core: &Core, spec: &Value) -> Result<Value, Failure> {
    let token = text(spec, &["token"]);
    if token.is_empty() {
        return Err(Failure::bad_request("token is required for TokenReview in authentication"));
    }
    let found = core.users.credential(token, &core.store, core.time());
    let asked = strings(&spec["audiences"]);
    Ok(match found.as_ref().map(|credential| (credential, credential.for_audiences(&asked))) {
        None => json!({"user": {}, "error": "invalid bearer token"}),
        Some((credential, audiences)) if audiences.is_empty() => json!({
            "user": {},
            "error": format!(
                "[invalid bearer token, token audiences {:?} is invalid for the target audiences {asked:?}]",
                credential.audiences
            ),
        }),
        Some((credential, audiences)) => {
            json!({"authenticated": true, "user": credential.user.info(), "audiences": audiences})
        }
    })
}
