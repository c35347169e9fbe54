//! The way to the API server, which a test may cut.

use http::Request;
use kube::Client;
use kube::client::Body;
use tokio::sync::watch;
use tower::BoxError;

/// The client, while the node is not cut off.
pub(super) fn through(client: Client, cut: watch::Receiver<bool>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, cut) = (client.clone(), cut.clone());
        async move {
            if *cut.borrow() {
                return Err(BoxError::from("the node is cut off from the API server"));
            }
            client.send(request).await.map_err(BoxError::from)
        }
    });
    Client::new(service, namespace)
}
