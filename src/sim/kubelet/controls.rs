//! What a test may force on a running kubelet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::watch;

use super::locked;

/// How the PodResources service behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PodResourcesMode {
    /// As in a real kubelet, with its rate limit.
    #[default]
    Normal,
    /// There is no socket.
    Absent,
    /// Each call takes this much longer.
    Slow(Duration),
    /// Each call is rejected by the rate limit.
    Throttled,
    /// After each list the checkpoint is written, as where a plugin registers just then: pods that the list dropped are in it no more.
    Written,
}

/// Behaviour forced from outside. It outlives kubelet restarts.
#[derive(Debug, Default)]
pub struct Controls {
    forced: Mutex<Forced>,
    pod_resources: watch::Sender<PodResourcesMode>,
    cut: watch::Sender<bool>,
    allocate_times: Mutex<Vec<Duration>>,
}

#[derive(Debug, Default, Clone)]
struct Forced {
    skip_preferred: bool,
    admission_delay: Option<Duration>,
    affinity: BTreeMap<String, BTreeSet<String>>,
}

impl Controls {
    /// Never asks plugins for preferred devices, as kubelets before that call existed.
    pub fn skip_preferred_allocation(&self) {
        locked(&self.forced).skip_preferred = true;
    }

    /// Waits this long before each admission.
    pub fn delay_admission(&self, delay: Option<Duration>) {
        locked(&self.forced).admission_delay = delay;
    }

    /// Restricts choices of a resource as a topology manager's NUMA hint would: when more of `ids` are free than needed,
    /// only those are offered to the plugin, else all of them are taken unasked. `None` ends it.
    pub fn force_affinity(&self, resource: &str, ids: Option<BTreeSet<String>>) {
        let affinity = &mut locked(&self.forced).affinity;
        match ids {
            Some(ids) => affinity.insert(resource.to_owned(), ids),
            None => affinity.remove(resource),
        };
    }

    /// Makes PodResources absent, slow, throttled, or followed by a write.
    pub fn set_pod_resources(&self, mode: PodResourcesMode) {
        self.pod_resources.send_replace(mode);
    }

    /// Cuts the kubelet off from the API server.
    pub fn cut_off(&self) {
        self.cut.send_replace(true);
    }

    /// Brings it back: it lists again.
    pub fn reconnect(&self) {
        self.cut.send_replace(false);
    }

    /// How long each Allocate call took since this was last asked, in order.
    pub fn take_allocate_times(&self) -> Vec<Duration> {
        std::mem::take(&mut locked(&self.allocate_times))
    }

    pub(super) fn note_allocate(&self, took: Duration) {
        let mut times = locked(&self.allocate_times);
        // The log may have no reader.
        if times.len() < 100_000 {
            times.push(took);
        }
    }

    pub(super) fn skips_preferred(&self) -> bool {
        locked(&self.forced).skip_preferred
    }

    pub(super) fn admission_delay(&self) -> Option<Duration> {
        locked(&self.forced).admission_delay
    }

    pub(super) fn affinity(&self, resource: &str) -> Option<BTreeSet<String>> {
        locked(&self.forced).affinity.get(resource).cloned()
    }

    pub(super) fn cut(&self) -> watch::Receiver<bool> {
        self.cut.subscribe()
    }

    pub(super) fn pod_resources(&self) -> watch::Receiver<PodResourcesMode> {
        self.pod_resources.subscribe()
    }
}
