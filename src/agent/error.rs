//! Why the daemon ends.

use std::path::PathBuf;

use super::cdi::CdiError;
use super::handoff::StateError;
use super::kubelet::TooMany;
use baton_cluster::client::ConnectError;
use baton_cluster::restored::Restored;
use baton_contract::key;
use baton_hardware::{NvmlError, ScanError};
use baton_runtime::admin::PortError;
use baton_runtime::options::OptionError;

/// An end that a new start, or an operator, has to mend. A signal is not one of them.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// An option cannot work.
    #[error(transparent)]
    AgentOptions(#[from] OptionError),
    /// The state directory.
    #[error(transparent)]
    State(#[from] StateError),
    /// The API server's credentials.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Its addresses.
    #[error(transparent)]
    Ports(#[from] PortError),
    /// A root of the machine's files.
    #[error(transparent)]
    MachineScan(#[from] ScanError),
    /// NVML cannot be used at the start.
    #[error("{0}; with --fail-on-init-error=false the daemon waits instead and offers no GPU until NVML can be used")]
    Init(NvmlError),
    /// The node's Device object has cordons that are not read: devices that people took out of use would be handed out.
    #[error(
        "Device {node}: annotation {before} is not read any more; the key is {now}: clear it with `kubectl annotate device {node} {before}-`, \
         and cordon the devices again with `baton cordon`",
        now = key::CORDONED
    )]
    CordonedBefore {
        /// Node.
        node: String,
        /// The annotation.
        before: String,
    },
    /// The CDI directory.
    #[error(transparent)]
    Cdi(#[from] CdiError),
    /// The kubelet's directory was removed under its mount.
    #[error(
        "the kubelet's directory {} was removed on the node, and this process still has the removed one: it ends, and its next start has \
         the directory that is there then",
        .0.display()
    )]
    KubeletDirectory(PathBuf),
    /// More ids than the kubelet takes.
    #[error(transparent)]
    TooMany(#[from] TooMany),
    /// The API server's store was restored from a backup.
    #[error(transparent)]
    Restored(#[from] Restored),
    /// A task of the daemon panicked or ended when it must not.
    #[error("a part of the daemon failed: {0}; this is a bug, please report it")]
    Panicked(String),
}
