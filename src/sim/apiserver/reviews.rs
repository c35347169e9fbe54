//! Reviews: who a request or a token is, and what a user may do.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::auth::{path_allowed, strings};
use super::core::Core;
use super::failure::Failure;
use super::object::text;
use super::request::{Request, Target};
use super::resource::Resource;
use super::tokens;
use super::user::User;

/// The answer to a review: the body with its status.
pub fn review(core: &Core, resource: &Resource, request: &Request, mut body: Value) -> Result<Value, Failure> {
    body["status"] = match resource.plural.as_str() {
        "selfsubjectreviews" => json!({"userInfo": request.user.info()}),
        "tokenreviews" => tokens::review(core, &body["spec"])?,
        "subjectaccessreviews" | "localsubjectaccessreviews" => access(core, &subject(&body["spec"]), &body["spec"]),
        _ => access(core, &request.user, &body["spec"]),
    };
    body["kind"] = json!(resource.kind);
    body["apiVersion"] = json!(resource.api_version());
    Ok(body)
}

/// The user that a SubjectAccessReview asks about, with the groups that it names and no others.
fn subject(spec: &Value) -> User {
    let extra: BTreeMap<String, Vec<String>> =
        spec["extra"].as_object().into_iter().flatten().map(|(key, list)| (key.clone(), strings(list))).collect();
    User { name: text(spec, &["user"]).to_owned(), groups: strings(&spec["groups"]), extra }
}

fn access(core: &Core, user: &User, spec: &Value) -> Value {
    let path = &spec["nonResourceAttributes"];
    if path.is_object() {
        let allowed = path_allowed(user, text(path, &["verb"]), text(path, &["path"]), &core.store);
        return json!({ "allowed": allowed });
    }
    let wanted = &spec["resourceAttributes"];
    let target = Target {
        verb: text(wanted, &["verb"]).to_owned(),
        group: text(wanted, &["group"]).to_owned(),
        resource: text(wanted, &["resource"]).to_owned(),
        subresource: text(wanted, &["subresource"]).to_owned(),
        namespace: text(wanted, &["namespace"]).to_owned(),
        name: text(wanted, &["name"]).to_owned(),
        ..Target::default()
    };
    json!({"allowed": core.users.allowed(user, &target, &core.store)})
}
