//! Which plugins the kubelet is connected to: up to Kubernetes 1.36 one for each resource, since 1.37 one for each socket of it.

use std::sync::Arc;

use super::endpoint::Plugin;

/// The first minor version that keeps plugins by socket.
const BY_SOCKET: u32 = 37;

/// A plugin and its resource.
type OfResource = (String, Arc<Plugin>);

/// Connected plugins.
#[derive(Debug)]
pub(super) struct Connections {
    minor: u32,
    /// Those whose stream's end will be noticed.
    clients: Vec<OfResource>,
    /// Those that have said their options, in this order.
    endpoints: Vec<OfResource>,
}

impl Connections {
    /// None yet, for Kubernetes 1.`minor`.
    pub fn new(minor: u32) -> Self {
        Self { minor, clients: Vec::new(), endpoints: Vec::new() }
    }

    /// The plugin that is called for a resource: the one that connected last.
    pub fn called(&self, resource: &str) -> Option<Arc<Plugin>> {
        let newest = self.endpoints.iter().rev().find(|(name, _)| name == resource);
        newest.map(|(_, plugin)| plugin.clone())
    }

    /// A plugin registers: the end of its stream will be noticed, and up to 1.36 that of no other one of its resource.
    pub fn register(&mut self, resource: &str, plugin: &Arc<Plugin>) {
        if self.minor < BY_SOCKET {
            self.forget(resource, plugin);
        }
        self.clients.push((resource.to_owned(), plugin.clone()));
    }

    /// A registration has failed. With it all that count as the same plugin are forgotten, also one whose stream is open: its end will
    /// not be noticed any more.
    pub fn forget(&mut self, resource: &str, plugin: &Plugin) {
        let minor = self.minor;
        self.clients.retain(|client| !is_same(minor, client, resource, plugin));
    }

    /// A plugin has said its options. Since 1.37 it is refused, in the kubelet's words, where its socket counts as connected.
    pub fn connect(&mut self, resource: &str, plugin: &Arc<Plugin>) -> Result<(), String> {
        let minor = self.minor;
        if minor < BY_SOCKET {
            self.endpoints.retain(|endpoint| !is_same(minor, endpoint, resource, plugin));
        } else if self.endpoints.iter().any(|endpoint| is_same(minor, endpoint, resource, plugin)) {
            return Err(format!("device plugin already connected: {}", plugin.socket().display()));
        }
        self.endpoints.push((resource.to_owned(), plugin.clone()));
        Ok(())
    }

    /// A plugin's stream has ended. Closes what counts as that plugin, unless it was forgotten; `true` where the resource has none then.
    pub fn end(&mut self, resource: &str, plugin: &Plugin) -> bool {
        let minor = self.minor;
        let Some(at) = self.clients.iter().position(|client| is_same(minor, client, resource, plugin)) else {
            return false;
        };
        self.clients[at].1.close();
        self.forget(resource, plugin);
        let before = self.endpoints.len();
        self.endpoints.retain(|endpoint| !is_same(minor, endpoint, resource, plugin));
        self.endpoints.len() < before && self.called(resource).is_none()
    }

    /// The kubelet ends.
    pub fn clear(&mut self) {
        self.clients.clear();
        self.endpoints.clear();
    }
}

/// Up to 1.36 two registrations of a resource are of one plugin, since 1.37 two of one socket.
fn is_same(minor: u32, known: &OfResource, resource: &str, plugin: &Plugin) -> bool {
    known.0 == resource && (minor < BY_SOCKET || known.1.socket() == plugin.socket())
}
