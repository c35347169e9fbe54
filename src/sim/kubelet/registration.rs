//! The Registration service on `device-plugins/kubelet.sock`, and the device lists of plugins that have registered.

use std::sync::{Arc, Weak};

use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use super::endpoint::Plugin;
use super::error::{KubeletError, check_socket_path};
use super::machine::Machine;
use super::{locked, wire};
use baton_contract::deviceplugin::registration_server::{Registration, RegistrationServer};
use baton_contract::deviceplugin::{Empty, RegisterRequest};
use baton_runtime::clock;

/// The only version of the device plugin API.
const VERSION: &str = "v1beta1";

/// Empties the directory of sockets and serves registrations.
pub(super) fn serve(machine: &Arc<Machine>) -> Result<(), KubeletError> {
    let dir = machine.options.device_plugins_dir();
    let socket = machine.options.registration_socket();
    check_socket_path(&socket)?;
    std::fs::create_dir_all(&dir).map_err(KubeletError::io("create", &dir))?;
    wire::remove_sockets(&dir, None).map_err(KubeletError::io("empty", &dir))?;
    let listener = wire::listen(&socket)?;
    let service = RegistrationServer::new(RegistrationService { machine: Arc::downgrade(machine) });
    let stopping = machine.stopping();
    machine.spawn(async move {
        let incoming = UnixListenerStream::new(listener);
        let server = tonic::transport::Server::builder().add_service(service);
        let served = server.serve_with_incoming_shutdown(incoming, stopping.cancelled_owned()).await;
        if let Err(error) = served {
            tracing::error!(%error, "the registration service ended");
        }
    });
    Ok(())
}

struct RegistrationService {
    machine: Weak<Machine>,
}

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let machine = self.machine.upgrade().ok_or_else(|| Status::unavailable("the kubelet is stopping"))?;
        let RegisterRequest { version, endpoint, resource_name: resource, .. } = request.into_inner();
        if version != VERSION {
            let text = format!(
                "requested API version {version:?} is not supported by kubelet. Supported version is [{VERSION:?}]"
            );
            return Err(Status::unknown(text));
        }
        if !is_extended_resource_name(&resource) {
            return Err(Status::unknown(format!("the ResourceName {resource:?} is invalid")));
        }
        connect(&machine, resource, &endpoint).await?;
        Ok(Response::new(Empty {}))
    }
}

/// Dials the plugin back inside its call, asks its options, then reads its device lists.
async fn connect(machine: &Arc<Machine>, resource: String, endpoint: &str) -> Result<(), Status> {
    let socket = machine.options.device_plugins_dir().join(endpoint);
    let timeout = machine.options.periods.dial_timeout;
    let channel = dial_until(socket.clone(), timeout).await?;
    let plugin = Arc::new(Plugin::new(socket, channel));
    // It counts from here on, even while it is being asked.
    locked(&machine.plugins).register(&resource, &plugin);
    let refused = |text: String| {
        locked(&machine.plugins).forget(&resource, &plugin);
        Status::unknown(text)
    };
    let options = plugin
        .options()
        .await
        .map_err(|status| refused(format!("failed to get device plugin options: {}", wire::go_status(&status))))?;
    let connected = locked(&machine.plugins).connect(&resource, &plugin);
    connected.map_err(refused)?;
    locked(&machine.state).devices.connected(&resource, options);
    machine.spawn(follow(machine.clone(), resource, plugin));
    Ok(())
}

/// Reads a plugin's device lists until its stream ends, then disconnects what counts as that plugin. Up to Kubernetes 1.36 that is
/// **the resource's current plugin**: with two overlapping instances, the end of the old one's stream also ends the new one's.
async fn follow(machine: Arc<Machine>, resource: String, plugin: Arc<Plugin>) {
    let mut client = plugin.client();
    if let Ok(stream) = plugin.open(client.list_and_watch(Empty {})).await {
        let mut stream = stream.into_inner();
        while let Ok(Some(list)) = plugin.open(stream.message()).await {
            let touched = {
                let mut state = locked(&machine.state);
                let touched = state.devices.listed(&resource, list.devices);
                let touched = touched.iter().filter_map(|uid| state.pods.get(uid).cloned());
                touched.collect::<Vec<_>>()
            };
            if let Err(error) = machine.write_checkpoint() {
                tracing::error!(%error, "cannot write the device checkpoint");
            }
            machine.devices_changed.notify_one();
            for pod in touched {
                pod.wake.notify_one();
            }
        }
    }
    let is_gone = locked(&machine.plugins).end(&resource, &plugin);
    if is_gone {
        locked(&machine.state).devices.disconnected(&resource, clock::mono());
        machine.devices_changed.notify_one();
    }
}

/// Tries to connect until the time is over: a plugin may register just before it listens.
async fn dial_until(
    socket: std::path::PathBuf,
    timeout: std::time::Duration,
) -> Result<tonic::transport::Channel, Status> {
    let pause = std::time::Duration::from_millis(20);
    let dialling = async {
        loop {
            match wire::dial(socket.clone(), timeout).await {
                Ok(channel) => return channel,
                Err(_) => tokio::time::sleep(pause).await,
            }
        }
    };
    tokio::time::timeout(timeout, dialling)
        .await
        .map_err(|_| Status::unknown("failed to dial device plugin: context deadline exceeded"))
}

/// `domain/name`, qualified, not of Kubernetes' own domain and not a quota's `requests.` form.
fn is_extended_resource_name(name: &str) -> bool {
    let label = |text: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        text.len() <= 63 && text.chars().all(inner) && edge(text.chars().next()) && edge(text.chars().last())
    };
    let domain = |text: &str| {
        let part = |part: &str| label(part) && !part.contains('_') && part.chars().all(|c| !c.is_ascii_uppercase());
        text.len() <= 253 && text.split('.').all(part)
    };
    name.split_once('/').is_some_and(|(prefix, suffix)| {
        let native = prefix == "kubernetes.io" || prefix.ends_with(".kubernetes.io");
        domain(prefix) && label(suffix) && !native && !name.starts_with("requests.")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_resource_names_are_qualified_and_foreign() {
        for good in ["example.com/gpu", "nvidia.com/mig-1g.10gb", "koordinator.sh/gpu-core"] {
            assert!(is_extended_resource_name(good), "{good}");
        }
        for bad in
            ["gpu", "kubernetes.io/gpu", "a.kubernetes.io/x", "requests.a.b/c", "Ex.com/gpu", "a/b/c", "a.b/", "/x"]
        {
            assert!(!is_extended_resource_name(bad), "{bad}");
        }
    }
}
