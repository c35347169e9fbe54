//! A simulated kubelet: admission, device manager, pod-resources and checkpoint, over real Unix sockets.
//!
//! It speaks to the API server through a `kube::Client` only, and to device plugins by gRPC over Unix sockets, and behaves as
//! a Kubernetes 1.36 kubelet does, and one of 1.37 where pods leave (`tests/kubelet_conformance.rs` holds it to recordings of
//! both), and as either where plugins register again ([`KubeletOptions::minor`]). Containers are virtual: a command such as
//! `sleep 3` says how long one runs.
//!
//! ```text
//! source ──► admission ──► worker ──► status_writer ──► API server
//!  (watch)    │  choice      │  lifecycle, leaving, status   ▲
//!             ▼              ▼                               │
//!          devices ◄──── endpoint ◄── registration          node
//!          grants, checkpoint,       connections
//!          podresources, view
//! ```

mod admission;
mod cgroups;
mod checkpoint;
mod choice;
mod connections;
mod controls;
mod devices;
mod endpoint;
mod error;
mod grants;
mod handle;
mod history;
mod instance;
mod leaving;
mod lifecycle;
mod link;
mod lock;
mod machine;
mod node;
mod options;
mod pod;
mod podresources;
mod predicates;
mod process;
mod quantity;
mod registration;
mod runtime;
mod source;
mod status;
mod status_writer;
mod view;
mod wire;
mod worker;

pub use cgroups::CgroupLayout;
pub use controls::{Controls, PodResourcesMode};
pub use error::KubeletError;
pub use handle::Kubelet;
pub use history::ProcessRun;
pub use instance::Injected;
use lock::locked;
pub use options::{KubeletOptions, Periods};
pub use process::{EXIT_CODE, RUN_SECONDS, STOP_SECONDS};
pub use view::{ContainerView, KubeletView, PodView};
