//! The public handle of a simulated kubelet.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::cgroups::Cgroups;
use super::controls::Controls;
use super::error::{KubeletError, check_socket_path};
use super::history::ProcessRun;
use super::instance::KILLED;
use super::machine::Machine;
use super::options::{KubeletOptions, uuid};
use super::runtime::Runtime;
use super::view::{KubeletView, view};
use super::{locked, wire};
use baton_runtime::clock;

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
        let cgroups = Cgroups::new(options.cgroup_root.clone(), options.cgroup_layout);
        let kubelet = Self {
            options: Arc::new(options),
            controls: Arc::default(),
            runtime: Arc::new(Runtime::new(cgroups)),
            running: Mutex::new(Running { machine: None, starts: 0, boots: 1 }),
        };
        kubelet.switch_on()?;
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
        uuid(&format!("{}/{}", self.options.node_name, locked(&self.running).boots))
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

    /// Powers the node on again and starts the kubelet.
    pub async fn power_on(&self) -> Result<(), KubeletError> {
        self.boot().await?;
        self.start_again().await
    }

    /// Powers the node on again, with a new boot id and without a kubelet for now. Times of boots and of containers have whole seconds:
    /// the machine needs until the next one, so that what ran before has started before.
    pub async fn boot(&self) -> Result<(), KubeletError> {
        locked(&self.running).boots += 1;
        let part = Duration::from_nanos(clock::now().wall.subsec_nanosecond().unsigned_abs().into());
        tokio::time::sleep(Duration::from_secs(1).saturating_sub(part)).await;
        self.switch_on()
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

    /// Puts a pod's processes into a sleep that no signal reaches: they cannot be killed. Returns whether any runs.
    pub fn freeze(&self, uid: &str) -> bool {
        self.runtime.freeze(uid) > 0
    }

    /// Wakes a pod's processes: signals that came meanwhile reach them now. Returns whether any runs.
    pub fn thaw(&self, uid: &str) -> bool {
        self.runtime.thaw(uid) > 0
    }

    /// Stops the container runtime. Processes go on; none is started, stopped or listed.
    pub fn stop_runtime(&self) {
        self.runtime.go_down();
    }

    /// Starts the container runtime again. The kubelet finds it after a while, and repeats the stops that were under way.
    pub fn start_runtime(&self) {
        self.runtime.come_back(self.options.periods.scale);
    }

    /// Every container process that runs now, whatever the kubelet or the API server think of its pod. For tests to judge by.
    pub fn processes(&self) -> Vec<ProcessRun> {
        self.process_history().into_iter().filter(|run| run.ended.is_none()).collect()
    }

    /// Every container process so far, in the order of their starts; none is ever left out.
    pub fn process_history(&self) -> Vec<ProcessRun> {
        self.runtime.history()
    }

    /// A pod's directory in the cgroup tree; `None` when it has none.
    pub fn cgroup(&self, uid: &str) -> Option<PathBuf> {
        self.runtime.cgroups.dir(uid)
    }

    fn end(&self, namespace: &str, name: &str, only: Option<&str>, code: i32) -> bool {
        let Some(pod) = self.machine().and_then(|machine| machine.pod_named(namespace, name)) else { return false };
        let ended = self.runtime.end(&pod.uid, only, code);
        pod.wake.notify_one();
        ended > 0
    }

    fn machine(&self) -> Option<Arc<Machine>> {
        locked(&self.running).machine.clone()
    }

    /// What is on the machine before any pod: its boot id, and the node daemon's own pod.
    fn switch_on(&self) -> Result<(), KubeletError> {
        self.write_boot()?;
        let Some(uid) = &self.options.daemon_uid else { return Ok(()) };
        self.runtime.cgroups.make(uid, "Burstable");
        self.runtime.cgroups.occupy(uid);
        let Some(root) = &self.options.proc_root else { return Ok(()) };
        let dir = root.join("self");
        std::fs::create_dir_all(&dir).map_err(KubeletError::io("create", &dir))?;
        let file = dir.join("mountinfo");
        let line = format!(
            "1047 1012 254:0 /var/lib/kubelet/pods/{uid}/etc-hosts /etc/hosts rw,relatime - ext4 /dev/vda rw\n"
        );
        std::fs::write(&file, line).map_err(KubeletError::io("write", &file))
    }

    fn write_boot(&self) -> Result<(), KubeletError> {
        let Some(root) = &self.options.proc_root else { return Ok(()) };
        let write = |file: PathBuf, text: String| std::fs::write(&file, text).map_err(KubeletError::io("write", &file));
        let dir = root.join("sys/kernel/random");
        std::fs::create_dir_all(&dir).map_err(KubeletError::io("create", &dir))?;
        write(dir.join("boot_id"), format!("{}\n", self.boot_id()))?;
        write(root.join("stat"), format!("btime {}\n", clock::now().wall.as_second()))
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
