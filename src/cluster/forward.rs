//! A stream to a port on the loopback of a pod, through the API server and the pod's kubelet.

use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::Api;
use tokio::io::DuplexStream;

use crate::client::said;

/// After the stream has ended, its end's reason comes within this time or not at all.
const REASON: Duration = Duration::from_secs(1);

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The user lacks a right.
    #[error(
        "this user lacks the verb {verb} of pods/portforward in namespace {namespace}, where a port-forward takes get and create: `kubectl -n {namespace} create rolebinding NAME --role=baton-operator --user=USER` gives both"
    )]
    Forbidden {
        /// The first that is missing.
        verb: &'static str,
        /// Of the pod.
        namespace: String,
    },
    /// Anything else.
    #[error("{}", said(.0))]
    Api(kube::Error),
}

/// Why a stream ended: what the kubelet reports about a port that cannot be reached.
pub type EndReason = BoxFuture<'static, Option<String>>;

/// Opens a stream to `port` of a pod.
pub async fn open(
    client: &Client,
    namespace: &str,
    pod: &str,
    port: u16,
) -> Result<(DuplexStream, EndReason), ForwardError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let mut forward = pods.portforward(pod, &[port]).await.map_err(|error| match missing_verb(&error) {
        Some(verb) => ForwardError::Forbidden { verb, namespace: namespace.to_owned() },
        None => ForwardError::Api(error),
    })?;
    let (stream, reason) = (forward.take_stream(port), forward.take_error(port));
    let reason = async { tokio::time::timeout(REASON, reason?).await.ok().flatten() };
    let stream =
        stream.ok_or_else(|| ForwardError::Api(kube::Error::Service("the port-forward has no stream".into())))?;
    Ok((stream, Box::pin(reason)))
}

/// The verb of a refusal by rights. An API server asks for `get`, then for `create`, and gives no reason where that is missing.
fn missing_verb(error: &kube::Error) -> Option<&'static str> {
    let kube::Error::Api(status) = error else { return None };
    let (_, why) = status.message.split_once("is forbidden:").filter(|_| status.code == 403)?;
    if why.contains("cannot get resource") {
        return Some("get");
    }
    (why.trim().is_empty() || why.contains("cannot create resource")).then_some("create")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As servers of 1.36 and 1.37 say it.
    #[test]
    fn the_missing_verb_is_that_of_the_refusal_and_another_refusal_is_none() {
        let refused = |code, message: &str| {
            let status = kube::core::Status::failure(message, "Forbidden").with_code(code);
            missing_verb(&kube::Error::Api(status.boxed()))
        };
        let get = "pods \"web\" is forbidden: User \"ann\" cannot get resource \"pods/portforward\" in API group \"\"";
        assert_eq!(refused(403, get), Some("get"));
        assert_eq!(refused(403, "pods \"web\" is forbidden: "), Some("create"));
        assert_eq!(refused(403, &get.replace("cannot get", "cannot create")), Some("create"));
        assert_eq!(refused(403, "admission webhook \"a.b\" denied the request: no"), None);
        assert_eq!(refused(403, "pods \"web\" is forbidden: not while the cluster is frozen"), None);
        assert_eq!(refused(404, "pods \"web\" not found"), None);
    }
}
