//! Holds the simulated kubelet to recordings of a real one (Kubernetes 1.36): the same pods, the same two plugins, the same
//! faults in the same order; the calls, their arguments, what PodResources says during each of them, and the pods' and the
//! node's outcomes must be the recorded ones. Another recording: `BATON_FIXTURES=<dir>` (`<dir>/kubelet/{rpc,pods}.jsonl`). How pods leave
//! is held to recordings of a newer kubelet (1.37, `<dir>/kubelet-force-delete/timelines.jsonl`).
#![allow(clippy::unchecked_time_subtraction)] // a test reads its clock in order
#![cfg(feature = "sim")]
// The lint's own exception covers `#[test]` functions and not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "harness/directory.rs"]
mod directory;

mod kubelet_conformance {
    mod cluster;
    mod compare;
    mod faults;
    mod leaving;
    mod node;
    mod observer;
    mod plugin;
    mod pods;
    mod prelude;
    mod recording;
    mod renaming;
    mod replay;
    mod restarts;
    mod timeline;
    mod waiting;
}
