//! Starts everything and waits until pods can be served: API server, machines, kubelets, then the daemons.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, FromArgMatches};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::args::{DemoArgs, ProgressOutput};
use super::fault::{DemoFault, FaultKind, SOCKET};
use super::install::install;
use super::pods::Needs;
use super::process::{Daemon, DaemonLog};
use super::timeline::{StoryLine, StoryStep};
use crate::leader::{LeaderArgs, LeaderClient};
use crate::live::{Access, Home};
use crate::manifests::{Values, files};
use crate::say::amount;
use crate::ui::UiArgs;
use baton_cluster::client::connect;
use baton_contract::inventory::Device;
use baton_contract::{DeviceType, Holder, LockFormat, LockValue, PodKey, PodUid, key};
use baton_decide::explain::NodeExplanation;
use baton_runtime::{clock, words};
use baton_sim::apiserver::{ApiServer, Options as ServerOptions};
use baton_sim::hardware::{NodeSpec, Shape, VirtualNode};
use baton_sim::kubelet::{Kubelet, KubeletOptions};

const NODES: usize = 3;
/// Longest words of a fault.
const MAX_LINE: u64 = 1024;
/// Namespace of the daemons.
pub(super) const SYSTEM: &str = "baton-system";
/// Everything has started, or something is wrong.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Daemons are looked at this often while the cluster is kept.
const LOOK: Duration = Duration::from_millis(200);
/// A daemon that ended starts again after this time: the kubelet's first pause.
const AGAIN: Duration = Duration::from_secs(10);
/// As the service accounts of `daemonset/rbac.yaml`: the demo shows that those permissions suffice.
const AGENT_USER: &str = "system:serviceaccount:baton-system:baton-device-plugin";
const SCHEDULER_USER: &str = "system:serviceaccount:baton-system:baton-scheduler";
const CONTROLLER_USER: &str = "system:serviceaccount:baton-system:baton-controller";

pub struct DemoNode {
    pub name: String,
    pub kubelet: Kubelet,
    /// The virtual machine, or what is left of it beside real hardware.
    machine: VirtualNode,
}

pub struct DemoCluster {
    /// Every request is counted here.
    pub server: ApiServer,
    /// Operator's client.
    pub client: Client,
    pub nodes: Vec<DemoNode>,
    /// Monotonic time at the start.
    pub start: Duration,
    pub progress: ProgressOutput,
    kubeconfig: PathBuf,
    daemons: Vec<Daemon>,
    /// Last, so that files are removed after the processes that use them.
    folder: TempDir,
}

impl DemoCluster {
    /// Starts everything; pods can be submitted when it returns.
    pub async fn start(args: &DemoArgs, progress: ProgressOutput) -> anyhow::Result<Self> {
        let start = clock::mono();
        // Sockets lie below, and their paths must stay short: /tmp, whatever TMPDIR says.
        let folder = tempfile::Builder::new().prefix("baton-").tempdir_in("/tmp");
        let folder = folder.context("cannot make a directory in /tmp for the demo's files")?;
        let server = ApiServer::start(ServerOptions::default()).await?;
        let kubeconfig = folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, server.kubeconfig("admin"))?;
        let client = connect(Some(&kubeconfig)).await?;
        let daemons = Vec::new();
        let mut cluster = Self { server, client, nodes: Vec::new(), start, progress, kubeconfig, daemons, folder };
        cluster.say("cluster", &format!("simulated API server at {}", cluster.server.tls_url()));
        let applied = install(&cluster.client, &Values::default()).await?;
        cluster.say("cluster", &format!("{applied} objects installed: namespaces, CRDs, RBAC, admission policies"));

        let count = if args.real() { 1 } else { NODES };
        for k in 0..count {
            let (node, daemon) = cluster.node(args, k).await?;
            cluster.say(&node.name, "kubelet and node daemon started");
            cluster.nodes.push(node);
            cluster.daemons.push(daemon);
        }
        let admin = free_address()?;
        let scheduler = cluster.central("scheduler", SCHEDULER_USER, Some(admin), args.daemon_log())?;
        cluster.pod_of(("baton-scheduler", Some("scheduler")), "node-0", admin).await?;
        let controller = cluster.central("controller", CONTROLLER_USER, None, args.daemon_log())?;
        cluster.daemons.extend([scheduler, controller]);
        cluster.wait_until_ready(admin).await?;
        Ok(cluster)
    }

    /// Prints a line with the time.
    pub fn say(&self, subject: &str, text: &str) {
        let at = clock::mono().saturating_sub(self.start);
        self.progress.line(StoryLine::new(at, subject, text.to_owned(), StoryStep::Submitted));
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// One machine with its kubelet and the daemon on it.
    async fn node(&self, args: &DemoArgs, k: usize) -> anyhow::Result<(DemoNode, Daemon)> {
        let name = format!("node-{k}");
        let root = self.path().join(format!("n{k}"));
        let spec = NodeSpec::new(&name).seeded(k as u64 + 1).shaped(Shape::Quad);
        let machine = VirtualNode::create(root.join("hw"), spec).context("cannot build the virtual machine")?;
        let cdi_root = root.join("cdi");
        std::fs::create_dir_all(&cdi_root)?;
        let mut options = KubeletOptions::new(&name, root.join("k"), self.client.clone());
        options.seed = k as u64 + 1;
        options.host_ip = format!("10.0.0.{}", k + 1);
        // Beside real hardware the daemon reads this machine's own cgroups, which are none of the simulated pods'.
        if !args.real() {
            options.set_machine(&machine.sysfs_root(), &machine.proc_root());
        }
        options.cdi_root = Some(cdi_root.clone());
        // A kubelet's default is 10 s; this is its own flag --node-status-update-frequency.
        options.periods.node_status = Duration::from_secs(1);
        let kubelet = Kubelet::start(options).await?;

        let admin = free_address()?;
        let mut line = vec!["device-plugin".to_owned()];
        let mut flag = |name: &str, value: &Path| line.push(format!("--{name}={}", value.display()));
        flag("node-name", Path::new(&name));
        // As the token of a pod on the node: bound to it.
        let kubeconfig = self.path().join(format!("{name}.kubeconfig"));
        std::fs::write(&kubeconfig, self.server.kubeconfig_on_node(AGENT_USER, &name))?;
        flag("kubeconfig", &kubeconfig);
        flag("kubelet-dir", &kubelet.options().device_plugins_dir());
        flag("pod-resources-socket", &kubelet.options().pod_resources_socket());
        flag("cdi-root", &cdi_root);
        flag("state-dir", &root.join("state"));
        flag("listen", Path::new(&admin.to_string()));
        flag("probe-listen", Path::new("none"));
        flag("metrics-listen", Path::new("none"));
        for (name, value) in hardware_flags(args, &machine) {
            flag(name, &value);
        }
        let daemon = Daemon::start(&name, line, self.path(), args.daemon_log())?;
        self.pod_of(("baton-device-plugin", None), &name, admin).await?;
        Ok((DemoNode { name, kubelet, machine }, daemon))
    }

    /// A daemon that the cluster has one of. No kubelet probes it.
    fn central(&self, role: &str, user: &str, admin: Option<SocketAddr>, log: DaemonLog) -> anyhow::Result<Daemon> {
        let kubeconfig = self.path().join(format!("{role}.kubeconfig"));
        std::fs::write(&kubeconfig, self.server.kubeconfig(user))?;
        let mut line = vec![role.to_owned(), format!("--kubeconfig={}", kubeconfig.display())];
        line.extend(["--probe-listen=none", "--metrics-listen=none"].map(str::to_owned));
        line.extend(admin.map(|admin| format!("--listen={admin}")));
        Daemon::start(role, line, self.path(), log)
    }

    /// The pod in which a daemon would run: its kubelet runs it, and a port-forward leads to the daemon.
    async fn pod_of(
        &self,
        (app, component): (&str, Option<&str>),
        node: &str,
        admin: SocketAddr,
    ) -> anyhow::Result<()> {
        let mut labels = BTreeMap::from([("app.kubernetes.io/part-of", "baton"), ("app.kubernetes.io/name", app)]);
        labels.extend(component.map(|component| ("app.kubernetes.io/component", component)));
        let ports = json!([{"name": "admin", "containerPort": admin.port()}]);
        let pod = json!({"metadata": {"name": format!("{app}-{node}"), "labels": labels},
            "spec": {"nodeName": node, "containers": [{"name": "daemon", "image": "baton", "ports": ports}]}});
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), SYSTEM);
        pods.create(&PostParams::default(), &serde_json::from_value(pod)?)
            .await
            .context("cannot create the daemon's pod")?;
        Ok(())
    }

    /// Waits until every node's allocatable holds what its Device object says, and the scheduler at `admin` gives it to pods: those
    /// that are created before go where they would not go after.
    async fn wait_until_ready(&mut self, admin: SocketAddr) -> anyhow::Result<()> {
        let deadline = clock::mono() + START_LIMIT;
        let mut ready = BTreeSet::new();
        let home = Home { namespace: SYSTEM.to_owned() };
        let scheduler = LeaderArgs { admin_url: Some(format!("http://{admin}").parse()?), home };
        let scheduler = LeaderClient::find(&scheduler, &Access::default()).await?;
        loop {
            self.check_daemons()?;
            let inventory = self.inventory().await.unwrap_or_default();
            let nodes = Api::<Node>::all(self.client.clone()).list(&ListParams::default()).await?;
            for node in nodes.items {
                let name = node.metadata.name.unwrap_or_default();
                let allocatable = node.status.and_then(|status| status.allocatable).unwrap_or_default();
                let of =
                    |name: &str| allocatable.get(name).and_then(|amount| amount.0.parse::<usize>().ok()).unwrap_or(0);
                let Some(devices) = inventory.get(&name) else { continue };
                let (gpus, nics) = (devices.gpus, devices.nics);
                let offered =
                    of(key::NVIDIA_GPU) == gpus && of(key::RDMA) == nics * 100 && of(key::GPU_CORE) == gpus * 100;
                if gpus + nics == 0 || !offered || ready.contains(&name) {
                    continue;
                }
                let judged = scheduler.get::<NodeExplanation>(&format!("/nodes/{name}")).await;
                if judged.is_ok_and(|judged| judged.takes_devices) && ready.insert(name.clone()) {
                    let devices = format!("{} and {}", amount(gpus, "GPU"), amount(nics, "NIC"));
                    self.say(&name, &format!("ready: {devices} registered and published"));
                }
            }
            if ready.len() == self.nodes.len() {
                return Ok(());
            }
            if clock::mono() > deadline {
                let silent = self.nodes.iter().zip(&self.daemons).filter(|(node, _)| !ready.contains(&node.name));
                let logs: Vec<String> =
                    silent.map(|(node, daemon)| format!("{}:\n{}", node.name, daemon.last_lines(12))).collect();
                bail!("not ready after {} s; the daemons' last lines:\n{}", START_LIMIT.as_secs(), logs.join("\n"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// GPUs and NICs of each node, from the Device objects.
    pub async fn inventory(&self) -> anyhow::Result<BTreeMap<String, Needs>> {
        let devices = Api::<Device>::all(self.client.clone()).list(&ListParams::default()).await?.items;
        let count = |device: &Device, kind: &DeviceType| {
            let whole = device.spec.devices.iter().filter(|info| info.kind == *kind && !info.resources.is_empty());
            whole.count()
        };
        let of =
            |device: &Device| Needs { gpus: count(device, &DeviceType::Gpu), nics: count(device, &DeviceType::Rdma) };
        Ok(devices.iter().map(|device| (device.metadata.name.clone().unwrap_or_default(), of(device))).collect())
    }

    /// An error when a daemon is not running any more.
    pub fn check_daemons(&mut self) -> anyhow::Result<()> {
        match self.daemons.iter_mut().find_map(Daemon::ended) {
            Some(why) => bail!(why),
            None => Ok(()),
        }
    }

    /// Starts daemons again that have ended, as a DaemonSet does, and makes the faults that are asked for, and says so; until it is
    /// dropped.
    pub async fn keep(&mut self) -> anyhow::Result<()> {
        let asked = UnixListener::bind(self.path().join(SOCKET)).context("cannot listen for faults")?;
        loop {
            if let Ok(found) = tokio::time::timeout(LOOK, asked.accept()).await {
                // A client that has left is no concern of the demo.
                let _ = self.answer_fault(found?.0).await;
            }
            let at = clock::mono().saturating_sub(self.start);
            for daemon in &mut self.daemons {
                let said = match daemon.again {
                    None if daemon.stays_away => None,
                    None => daemon.status().map(|status| {
                        daemon.again = Some(clock::mono() + AGAIN);
                        let pause = AGAIN.as_secs();
                        format!("daemon ended with {status}; it starts again in {pause} s, as a DaemonSet's would")
                    }),
                    Some(again) if clock::mono() >= again => {
                        daemon.again = None;
                        daemon.restart()?;
                        Some("daemon started again".to_owned())
                    }
                    Some(_) => None,
                };
                if let Some(text) = said {
                    self.progress.line(StoryLine::new(at, &daemon.name, text, StoryStep::Submitted));
                }
            }
        }
    }

    async fn answer_fault(&mut self, mut client: UnixStream) -> anyhow::Result<()> {
        let mut line = String::new();
        (&mut client).take(MAX_LINE).read_to_string(&mut line).await?;
        let fault = DemoFault::parse(&line.split_whitespace().collect::<Vec<_>>()).map_err(anyhow::Error::from);
        let made = match fault {
            Ok(fault) => self.make_fault(&fault).await.map(|()| fault),
            Err(bad) => Err(bad),
        };
        let answer = match made {
            Ok(fault) => {
                self.say(&fault.node, &fault.to_string());
                fault.to_string()
            }
            Err(error) => format!("error: {}", words(error.as_ref())),
        };
        client.write_all(answer.as_bytes()).await?;
        Ok(())
    }

    async fn make_fault(&mut self, fault: &DemoFault) -> anyhow::Result<()> {
        let names: Vec<&str> = self.nodes.iter().map(|node| &*node.name).collect();
        let no_node = || format!("there is no node {:?}; there are {}", fault.node, names.join(", "));
        let at = self.nodes.iter().position(|node| node.name == fault.node).with_context(no_node)?;
        let (node, daemon) = (&self.nodes[at], &mut self.daemons[at]);
        let within = |device: usize, all: usize, kind: &str| {
            anyhow::ensure!(device < all, "{} has no {kind}-{device}, it has {all}", fault.node);
            anyhow::Ok(device)
        };
        let gpu = |gpu: usize| within(gpu, node.machine.gpu_uuids().len(), "gpu");
        let nic = |nic: usize| within(nic, node.machine.nic_addresses().len(), "nic");
        match fault.what {
            FaultKind::Xid(of, xid) => node.machine.xid(gpu(of)?, xid)?,
            FaultKind::Lost(of, true) => node.machine.lose(gpu(of)?)?,
            FaultKind::Lost(of, false) => node.machine.find(gpu(of)?)?,
            FaultKind::Down(of, true) => node.machine.port_down(nic(of)?)?,
            FaultKind::Down(of, false) => node.machine.port_up(nic(of)?)?,
            FaultKind::Daemon(true) => {
                daemon.stays_away = true;
                daemon.stop().await;
            }
            FaultKind::Daemon(false) if std::mem::take(&mut daemon.stays_away) => daemon.restart()?,
            FaultKind::Daemon(false) => bail!("the node daemon of {} was not stopped", fault.node),
            FaultKind::Kubelet(true) => node.kubelet.stop().await,
            FaultKind::Kubelet(false) => node.kubelet.start_again().await?,
            FaultKind::Lock => {
                let holder = Holder { pod: PodKey::new("default", "gone"), uid: Some(PodUid::new("gone")) };
                let lock = LockValue { time: clock::wall(), holder: Some(holder) }.print(LockFormat::Uid);
                let locked = json!({"metadata": {"annotations": {key::NODE_LOCK: lock}}});
                let nodes = Api::<Node>::all(self.client.clone());
                nodes.patch(&fault.node, &PatchParams::default(), &Patch::Merge(locked)).await?;
            }
        }
        Ok(())
    }

    /// The end of every daemon's log, for a story that did not end well.
    pub fn last_lines(&self, count: usize) -> String {
        let logs: Vec<String> =
            self.daemons.iter().map(|daemon| format!("{}:\n{}", daemon.name, daemon.last_lines(count))).collect();
        logs.concat()
    }

    /// What to type while the cluster is kept.
    pub fn invitation(&self) -> anyhow::Result<String> {
        let examples = self.path().join("examples");
        std::fs::create_dir_all(&examples)?;
        for file in files(&Values::default()).iter().filter(|file| file.path.starts_with("examples/")) {
            std::fs::write(self.path().join(file.path), &file.text)?;
        }
        let program = std::env::current_exe().context("cannot find this program's own path")?;
        Ok(format!(
            "\nThe cluster keeps running; Ctrl-C ends it. Logs: {logs}/*.log\n\n  export KUBECONFIG={kubeconfig}\n  export PATH={path}:$PATH\n\n  kubectl get nodes,pods,devices\n  kubectl \
             describe pod one-gpu\n  kubectl delete pod gpu-share\n  kubectl apply -f {examples}/gpu-share.yaml\n  kubectl apply -f \
             {examples}/tyjob.yaml\n  kubectl get tyj\n  baton get nodes\n  baton get devices\n  baton get pods\n  baton get jobs\n  baton \
             explain pod default/one-gpu\n  baton explain --what-if -f {examples}/gpu-rdma.yaml\n  baton explain node node-1\n  baton \
             cordon node-1/gpu-3 --reason fan-fails --until 2h\n  baton drain node-1/gpu-3\n  baton uncordon node-1/gpu-3\n  kill -9 $(cat \
             {logs}/node-1.pid)    # its daemon dies, and starts again after 10 s: baton get nodes\n  baton demo fault \
             node-1/gpu-3 xid 79
  baton audit\n  baton get queue\n  baton get \
             locks\n  kubectl get pods -w\n",
            logs = self.path().display(),
            kubeconfig = self.kubeconfig.display(),
            path = program.parent().unwrap_or(Path::new("")).display(),
            examples = examples.display(),
        ))
    }

    /// Arguments with which `baton ui` shows this cluster.
    pub fn ui(&self) -> anyhow::Result<UiArgs> {
        let line = [format!("--kubeconfig={}", self.kubeconfig.display()), "--open".to_owned()];
        let command = UiArgs::augment_args(clap::Command::new("ui").no_binary_name(true));
        Ok(UiArgs::from_arg_matches(&command.try_get_matches_from(line)?)?)
    }

    /// Ends the daemons, then the kubelets.
    pub async fn stop(&mut self) {
        for daemon in &mut self.daemons {
            daemon.stop().await;
        }
        for node in &self.nodes {
            node.kubelet.stop().await;
        }
    }
}

/// Flags that say where a daemon finds its hardware: the given places, and for the rest the virtual machine. With real hardware the
/// daemon reads this machine's own /sys and /proc, so that places and libraries are those of the GPUs.
fn hardware_flags(args: &DemoArgs, machine: &VirtualNode) -> Vec<(&'static str, PathBuf)> {
    let library = args.nvml_library.clone().unwrap_or_else(|| machine.nvml_library().to_owned());
    if !args.real() {
        return vec![
            ("nvml-library", library),
            ("sysfs-root", machine.sysfs_root()),
            ("proc-root", machine.proc_root()),
            ("dev-root", machine.dev_root()),
            ("driver-root", machine.driver_root()),
        ];
    }
    // A library without a driver behind it (another virtual one) has no device nodes here; the simulated containers only name them.
    let own = PathBuf::from("/dev");
    let dev = if own.join("nvidiactl").exists() { own } else { machine.dev_root() };
    vec![
        ("nvml-library", library),
        ("sysfs-root", args.sysfs_root.clone().unwrap_or_else(|| "/sys".into())),
        ("dev-root", args.dev_root.clone().unwrap_or(dev)),
    ]
}

/// A free port of this machine. Another process may take it before the daemon does; then the daemon says so and ends.
fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port on 127.0.0.1")?;
    Ok(listener.local_addr()?)
}
