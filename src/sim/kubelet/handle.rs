//! The public handle of a simulated kubelet.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::controls::Controls;
use super::error::{KubeletError, check_socket_path};
use super::machine::Machine;
use super::options::KubeletOptions;
use super::runtime::{Runtime, fnv};
use super::view::{KubeletView, view};
use super::{locked, wire};

/// Exit code of a killed process.
const KILLED: i32 = 137;

/// A running kubelet. Dropping it stops every task; its containers' state and its files stay with the directory.
pub struct Kubelet {
    options: Arc<KubeletOptions>,
    controls: Arc<Controls>,
    runtime: Arc<Runtime>,
    running: Mutex<Running>,
}

struct Running {
    machine: Option<Arc<Machine>>,
    /// Starts and boots so far: seeds and boot ids differ between them.
    starts: u64,
    boots: u64,
}

impl Kubelet {
    /// Starts a kubelet: both sockets are open when this returns; the Node object follows.
    pub async fn start(options: KubeletOptions) -> Result<Self, KubeletError> {
        check_socket_path(&options.registration_socket())?;
        check_socket_path(&options.pod_resources_socket())?;
        let kubelet = Self {
            options: Arc::new(options),
            controls: Arc::default(),
            runtime: Arc::default(),
            running: Mutex::new(Running { machine: None, starts: 0, boots: 1 }),
        };
        kubelet.write_boot_id()?;
        kubelet.start_again().await?;
        Ok(kubelet)
    }

    /// What it was started with.
    pub fn options(&self) -> &KubeletOptions {
        &self.options
    }

    /// Behaviour that a test may force.
    pub fn controls(&self) -> &Controls {
        &self.controls
    }

    /// What the kubelet believes now; empty while it is stopped.
    pub fn view(&self) -> KubeletView {
        self.machine().map(|machine| view(&locked(&machine.state), &machine.runtime)).unwrap_or_default()
    }

    /// Monotonic time at which the plugin's answer for a container and a resource was there; `None` before, and after a restart.
    pub fn answered_at(&self, uid: &str, container: &str, resource: &str) -> Option<Duration> {
        let machine = self.machine()?;
        let call = (uid.to_owned(), container.to_owned(), resource.to_owned());
        locked(&machine.state).devices.answered.get(&call).copied()
    }

    /// The node's current boot id.
    pub fn boot_id(&self) -> String {
        let hash = format!("{:032x}", fnv(&format!("{}/{}", self.options.node_name, locked(&self.running).boots)));
        [&hash[..8], &hash[8..12], &hash[12..16], &hash[16..20], &hash[20..]].join("-")
    }

    /// Stops the kubelet process. Containers go on; socket files stay; plugins see their streams end.
    pub async fn stop(&self) {
        let machine = locked(&self.running).machine.take();
        if let Some(machine) = machine {
            machine.stop().await;
        }
    }

    /// Starts a stopped kubelet: sockets are deleted, the checkpoint is read, plugins must register again.
    pub async fn start_again(&self) -> Result<(), KubeletError> {
        self.stop().await;
        let boot_id = self.boot_id();
        let mut running = locked(&self.running);
        let seed = self.options.seed.wrapping_mul(1_000_003).wrapping_add(running.starts);
        running.starts += 1;
        let (options, controls, runtime) = (self.options.clone(), self.controls.clone(), self.runtime.clone());
        running.machine = Some(Machine::start(options, controls, runtime, boot_id, seed)?);
        Ok(())
    }

    /// Stops and starts the kubelet process.
    pub async fn restart(&self) -> Result<(), KubeletError> {
        self.stop().await;
        self.start_again().await
    }

    /// Powers the node off: the kubelet and every container end, the CDI directory (tmpfs) is emptied.
    pub async fn power_off(&self) -> Result<(), KubeletError> {
        self.stop().await;
        self.runtime.power_off();
        if let Some(dir) = &self.options.cdi_root {
            empty(dir).map_err(KubeletError::io("empty", dir))?;
        }
        Ok(())
    }

    /// Powers the node on again, with a new boot id, and starts the kubelet.
    pub async fn power_on(&self) -> Result<(), KubeletError> {
        locked(&self.running).boots += 1;
        self.write_boot_id()?;
        self.start_again().await
    }

    /// Reboots the node.
    pub async fn reboot(&self) -> Result<(), KubeletError> {
        self.power_off().await?;
        self.power_on().await
    }

    /// Deletes the registration socket while the kubelet goes on serving it to those connected.
    pub fn remove_registration_socket(&self) -> std::io::Result<()> {
        std::fs::remove_file(self.options.registration_socket())
    }

    /// Deletes every socket in the device-plugins directory except the kubelet's own. Returns their names.
    pub fn wipe_plugin_sockets(&self) -> std::io::Result<Vec<String>> {
        wire::remove_sockets(&self.options.device_plugins_dir(), Some("kubelet.sock"))
    }

    /// Kills every container of a pod at once. Returns whether any was running. The restart policy then applies.
    pub fn kill_pod(&self, namespace: &str, name: &str) -> bool {
        self.end(namespace, name, None, KILLED)
    }

    /// Ends a container with an exit code. Returns whether it was running.
    pub fn fail_container(&self, namespace: &str, pod: &str, container: &str, exit_code: i32) -> bool {
        self.end(namespace, pod, Some(container), exit_code)
    }

    fn end(&self, namespace: &str, name: &str, only: Option<&str>, code: i32) -> bool {
        let Some(pod) = self.machine().and_then(|machine| machine.pod_named(namespace, name)) else { return false };
        let names = self.runtime.sandbox(&pod.uid).unwrap_or_default().containers.into_keys();
        let ended = names
            .filter(|name| only.is_none_or(|only| only == name))
            .filter(|name| self.runtime.end(&pod.uid, name, code, Duration::ZERO))
            .count();
        pod.wake.notify_one();
        ended > 0
    }

    fn machine(&self) -> Option<Arc<Machine>> {
        locked(&self.running).machine.clone()
    }

    fn write_boot_id(&self) -> Result<(), KubeletError> {
        let Some(root) = &self.options.proc_root else { return Ok(()) };
        let dir = root.join("sys/kernel/random");
        std::fs::create_dir_all(&dir).map_err(KubeletError::io("create", &dir))?;
        let file = dir.join("boot_id");
        std::fs::write(&file, format!("{}\n", self.boot_id())).map_err(KubeletError::io("write", &file))
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        // The tasks share the machine with this handle: they must be stopped.
        if let Some(machine) = self.machine() {
            machine.cancel();
        }
    }
}

fn empty(dir: &Path) -> std::io::Result<()> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        } else {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
