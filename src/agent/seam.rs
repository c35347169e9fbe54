//! The hand-off as the rest of the daemon sees it.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::grant::Answerer;
use super::handoff::StateDir;
use super::keeper::Holdings;
use super::kubelet::DeviceCalls;
use super::metrics::Metrics;
use super::options::Options;
use crate::cluster::notice::Notices;
use crate::cluster::requests::Resumed;
use crate::contract::{DeviceId, DeviceType, Identity};
use crate::decide::handoff::NodeInventory;

/// Identifies callers, serves them, remembers what it served, and releases the node lock.
pub trait Handoff: DeviceCalls + Holdings {
    /// Changes when what is handed out did; 0 while that is not known.
    fn handed_out(&self) -> watch::Receiver<u64>;
    /// A registration was lost: the kubelet may have started again, and will admit its pods anew.
    fn registration_lost(&self);
    /// How surely callers are told.
    fn identity(&self) -> watch::Receiver<Identity>;
    /// What was served, for people and for comparisons.
    fn ledger(&self) -> Vec<LedgerLine>;
    /// Makes the ledger known, watches pods, settles and verifies, releases locks; until `stop`.
    fn run(self: Arc<Self>, stop: CancellationToken) -> BoxFuture<'static, ()>;
}

/// One entry of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerLine {
    /// Pod namespace.
    pub namespace: Box<str>,
    /// Pod name.
    pub pod: Box<str>,
    /// Pod uid.
    pub uid: Box<str>,
    /// Container.
    pub container: Box<str>,
    /// Resource name.
    pub resource: Box<str>,
    /// Ids that the kubelet named.
    pub ids: Vec<Box<str>>,
    /// Devices that were served, by type.
    pub served: BTreeMap<DeviceType, Vec<DeviceId>>,
}

/// What a hand-off is opened with.
pub struct Opening {
    /// Configuration.
    pub options: Arc<Options>,
    /// The locked state directory.
    pub state: StateDir,
    /// What is in the machine, as far as the first look told.
    pub inventory: NodeInventory,
    /// The API server.
    pub client: kube::Client,
    /// Tells of its watches that resume.
    pub resumed: Resumed,
    /// Builds answers.
    pub answerer: Arc<dyn Answerer>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Events.
    pub notices: Notices,
    /// The kernel's boot id.
    pub boot_id: Option<String>,
}

/// Makes the hand-off once the state directory is locked and the machine was looked at.
pub type OpenHandoff = Box<dyn FnOnce(Opening) -> Arc<dyn Handoff> + Send>;
