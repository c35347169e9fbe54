//! Each permission of the node daemon's role, by the answer of the API server.

use std::collections::BTreeMap;

use futures::future::join_all;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};

use super::objects::within;
use super::report::Finding;
use crate::manifests::{Permission, agent_permissions};

/// One line for each resource.
pub async fn look(client: &Client, namespace: &str) -> Vec<Finding> {
    let asked = join_all(agent_permissions(namespace).into_iter().map(|permission| async {
        let answer = within(ask(client.clone(), &permission)).await;
        (permission, answer.map_err(|error| error.text))
    }))
    .await;
    let mut resources: BTreeMap<String, Vec<Asked>> = BTreeMap::new();
    for (permission, answer) in asked {
        resources.entry(permission.title()).or_default().push((permission, answer));
    }
    resources.into_iter().map(|(title, asked)| line(&title, &asked)).collect()
}

/// A permission and whether the API server grants it, or why that is not known.
type Asked = (Permission, Result<bool, String>);

fn line(title: &str, asked: &[Asked]) -> Finding {
    let verbs = |wanted: fn(&Result<bool, String>) -> bool| -> Vec<&str> {
        asked.iter().filter(|(_, answer)| wanted(answer)).map(|(permission, _)| permission.verb.as_str()).collect()
    };
    let why = asked.first().map(|(permission, _)| permission.why.as_str()).unwrap_or_default();
    if let Some(error) = asked.iter().find_map(|(_, answer)| answer.as_ref().err()) {
        let advice = "the API server gave no answer; every user may create selfsubjectaccessreviews unless system:basic-user was changed";
        return Finding::warn("permission", format!("{title}: {error}"), advice);
    }
    let (denied, allowed) = (verbs(|answer| *answer == Ok(false)), verbs(|answer| *answer == Ok(true)));
    if denied.is_empty() {
        return Finding::ok("permission", format!("{title}: {}", allowed.join(", ")));
    }
    let advice = format!(
        "needed for: {why} Apply the roles again (`baton manifests | kubectl apply --server-side -f -`), and check the ServiceAccount of the daemon's pod"
    );
    Finding::fail("permission", format!("{title}: may not {}", denied.join(", ")), advice)
}

async fn ask(client: Client, permission: &Permission) -> Result<bool, kube::Error> {
    let (resource, subresource) = match permission.resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
        None => (permission.resource.as_str(), None),
    };
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(permission.group.clone()),
                resource: Some(resource.to_owned()),
                subresource,
                verb: Some(permission.verb.clone()),
                namespace: permission.namespace.clone(),
                name: permission.name.clone(),
                ..ResourceAttributes::default()
            }),
            non_resource_attributes: None,
        },
        ..SelfSubjectAccessReview::default()
    };
    let answer = Api::<SelfSubjectAccessReview>::all(client).create(&PostParams::default(), &review).await;
    answer.map(|review| review.status.is_some_and(|status| status.allowed))
}
