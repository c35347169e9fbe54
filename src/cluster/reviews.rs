//! Who a token stands for and what a user may read, by the API server: TokenReview and SubjectAccessReview.

use futures::future::BoxFuture;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};

use super::client::{said, status_code};
use baton_runtime::auth::{AccessJudge, User};

/// Asks the API server with the daemon's own credentials.
pub struct Reviews {
    client: Client,
}

impl Reviews {
    /// Reviews by this client.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    async fn identify(&self, token: &str, audience: Option<&str>) -> Result<Option<User>, String> {
        let audiences = audience.map(|audience| vec![audience.to_owned()]);
        let spec = TokenReviewSpec { token: token.to_owned(), audiences };
        let review = TokenReview { spec, ..TokenReview::default() };
        let answer = Api::<TokenReview>::all(self.client.clone()).create(&PostParams::default(), &review).await;
        let status = answer.map_err(|error| unjudged("tokenreviews", &error))?.status.unwrap_or_default();
        let for_us = match audience {
            None => true,
            Some(audience) => status.audiences.is_some_and(|list| list.iter().any(|found| found == audience)),
        };
        let authenticated = status.authenticated == Some(true) && for_us;
        Ok(status.user.filter(|_| authenticated).map(user))
    }

    async fn allows(&self, user: &User, verb: &str, path: &str) -> Result<bool, String> {
        let User { name, uid, groups, extra } = user.clone();
        let attributes = NonResourceAttributes { path: Some(path.to_owned()), verb: Some(verb.to_owned()) };
        let spec = SubjectAccessReviewSpec {
            user: Some(name),
            uid: Some(uid).filter(|uid| !uid.is_empty()),
            groups: Some(groups),
            extra: Some(extra),
            non_resource_attributes: Some(attributes),
            resource_attributes: None,
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let answer = Api::<SubjectAccessReview>::all(self.client.clone()).create(&PostParams::default(), &review).await;
        let answer = answer.map_err(|error| unjudged("subjectaccessreviews", &error))?;
        Ok(answer.status.is_some_and(|status| status.allowed && status.denied != Some(true)))
    }
}

fn user(info: UserInfo) -> User {
    User {
        name: info.username.unwrap_or_default(),
        uid: info.uid.unwrap_or_default(),
        groups: info.groups.unwrap_or_default(),
        extra: info.extra.unwrap_or_default(),
    }
}

fn unjudged(what: &str, error: &kube::Error) -> String {
    let advice = match status_code(error) {
        Some(403) => {
            format!("; this daemon's role lacks `create` of {what}: apply the output of `baton manifests` again")
        }
        _ => String::new(),
    };
    said(error) + &advice
}

impl AccessJudge for Reviews {
    fn identify<'a>(
        &'a self,
        token: &'a str,
        audience: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Option<User>, String>> {
        Box::pin(self.identify(token, audience))
    }
    fn allows<'a>(&'a self, user: &'a User, verb: &'a str, path: &'a str) -> BoxFuture<'a, Result<bool, String>> {
        Box::pin(self.allows(user, verb, path))
    }
}
