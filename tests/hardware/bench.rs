//! One virtual machine on the bench, with the daemon's own reader on it.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use baton::hardware::gpu::GpuScan;
use baton::hardware::machine::{self, Machine};
use baton::hardware::{Bdf, GpuEvent, GpuProvider, NvmlError, NvmlOptions, NvmlProvider, Probe, Roots};
use baton::sim::hardware::{NodeSpec, Shape, VirtualNode};

/// Longest wait for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// The provider's deadline on the bench; short, because wedged calls are waited for.
pub const DEADLINE: Duration = Duration::from_millis(300);

pub struct Bench {
    pub node: VirtualNode,
    pub provider: NvmlProvider,
    pub events: Receiver<GpuEvent>,
    pub directory: tempfile::TempDir,
}

impl Bench {
    pub fn new(shape: Shape) -> Self {
        Self::of(NodeSpec::new("node-1").shaped(shape))
    }

    /// Whose GPUs the reader has seen once.
    pub fn scanned(shape: Shape) -> Self {
        let bench = Self::new(shape);
        bench.scan();
        bench
    }

    pub fn of(spec: NodeSpec) -> Self {
        let directory = crate::directory::directory();
        println!("seed {}", spec.seed);
        let node = VirtualNode::create(directory.path().join(&spec.name), spec).unwrap();
        let (sink, events) = mpsc::channel();
        let provider = NvmlProvider::new(options(&node), Arc::new(move |event| drop(sink.send(event))));
        Self { node, provider, events, directory }
    }

    pub fn roots(&self) -> Roots {
        let node = &self.node;
        Roots {
            sysfs: node.sysfs_root(),
            proc: node.proc_root(),
            dev: node.dev_root(),
            driver: node.driver_root(),
            net: None,
        }
    }

    pub fn machine(&self) -> Machine {
        machine::scan(&self.roots(), &self.provider).unwrap()
    }

    pub fn scan(&self) -> GpuScan {
        self.provider.scan().unwrap()
    }

    pub fn try_scan(&self) -> Result<GpuScan, NvmlError> {
        self.provider.scan()
    }

    pub fn probe(&self, gpu: usize) -> Probe {
        self.provider.probe(&self.uuid(gpu)).unwrap()
    }

    pub fn uuid(&self, gpu: usize) -> String {
        self.node.gpu_uuids()[gpu].clone()
    }

    pub fn gpu_bdf(&self, gpu: usize) -> Bdf {
        self.node.gpu_addresses()[gpu].to_string().parse().unwrap()
    }

    pub fn nic_bdf(&self, nic: usize) -> Bdf {
        self.node.nic_addresses()[nic].to_string().parse().unwrap()
    }

    /// The next event that `wanted` accepts.
    pub fn event(&self, wanted: impl Fn(&GpuEvent) -> bool) -> GpuEvent {
        loop {
            let event = self.events.recv_timeout(PATIENCE).expect("the event arrives in time");
            if wanted(&event) {
                return event;
            }
        }
    }
}

pub trait CleanProbe {
    /// The GPU answered, is itself, and asks for no action.
    fn is_clean(&self) -> bool;
}

impl CleanProbe for Probe {
    fn is_clean(&self) -> bool {
        self.outcome.as_ref().is_ok_and(|recovery| recovery.wanted().is_none())
    }
}

pub fn options(node: &VirtualNode) -> NvmlOptions {
    NvmlOptions {
        library: Some(node.nvml_library().to_owned()),
        driver_root: node.driver_root(),
        sysfs: Some(node.sysfs_root()),
        deadline: DEADLINE,
        init_deadline: DEADLINE,
        event_wait: Duration::from_millis(50),
        clock: Some(baton::runtime::clock::mono),
    }
}

/// Waits until `holds`, and fails after [`PATIENCE`].
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let (step, mut left) = (Duration::from_millis(5), PATIENCE);
    while !holds() {
        left = left.checked_sub(step).unwrap_or_else(|| panic!("{what}: not within {PATIENCE:?}"));
        std::thread::park_timeout(step);
    }
}
