//! Reconciles everything that is made of the hardware with the hardware: scans it, judges its health, and on every change renews
//! answers, CDI files, lists, the hand-off's inventory and what is published.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::answer::{AllocateAnswers, DeviceTable};
use super::cdi::CdiFiles;
use super::devices::{self, DeviceFindings};
use super::directory_watch::DirectoryWatch;
use super::error::AgentError;
use super::given_driver::GivenDriver;
use super::health::HealthBook;
use super::health_file::HealthFile;
use super::inventory::{device_infos, node_inventory, node_labels, to_seconds};
use super::kubelet::ResourcePlugins;
use super::metrics::AgentMetrics;
use super::nic_reads::{NicReads, PortReads, ReadPorts};
use super::node_device::{DeviceHealth, NodeDevice};
use super::node_handoff::HeldDevices;
use super::offer::{InUse, Unseen, configured, offers};
use super::options::{AgentOptions, AgentTimings};
use super::scan::{self, MachineScan, ScanQueue, ScanRequest, ScanResult};
use super::shares::ShareGuard;
use super::which_nics::WhichNics;
use baton_cluster::inventory::Published;
use baton_cluster::notice::{Notice, Notices, Subject};
use baton_contract::inventory::{DeviceStatus, device_names, reasoned};
use baton_contract::{ConditionReason, DeviceId, EventReason, ShareIsolation, key};
use baton_decide::health::{ServeOutcome, xid_words};
use baton_decide::shares::ShareOffer;
use baton_hardware::{Bdf, EventSink, GpuEvent, GpuProvider, Machine, NicInfo, Roots, pci, rdma};
use baton_runtime::clock;

/// What the reconciler works with.
pub struct ReconcilerContext {
    /// Configuration.
    pub options: Arc<AgentOptions>,
    /// Where the machine's files are.
    pub roots: Roots,
    /// Where GPU facts come from.
    pub provider: Arc<dyn GpuProvider>,
    /// Its events.
    pub events: mpsc::Receiver<GpuEvent>,
    /// Keeps the channel open: a recording has no events, and a closed channel is a bug.
    pub event_sink: EventSink,
    /// Builds answers.
    pub answers: Arc<AllocateAnswers>,
    /// What is handed out.
    pub holdings: Arc<dyn HeldDevices>,
    /// Changes when what is handed out did.
    pub handed_out: watch::Receiver<u64>,
    /// What became of pods here.
    pub outcomes: mpsc::Receiver<ServeOutcome>,
    /// What the cluster is to show.
    pub published: watch::Sender<Arc<Published>>,
    /// Counters.
    pub metrics: Arc<AgentMetrics>,
    /// Events on the node.
    pub notices: Notices,
    /// The reads of NICs under way.
    pub reads: NicReads,
}

/// See the module.
pub struct DeviceReconciler {
    context: ReconcilerContext,
    plugins: ResourcePlugins,
    book: HealthBook,
    /// Where the health of GPUs outlives this process; `None` where the machine names no boot.
    health_file: Option<HealthFile>,
    /// The ports of the NICs are being read.
    reads_ports: bool,
    /// Where device nodes come and go.
    nodes: DirectoryWatch,
    cdi: CdiFiles,
    machine: Machine,
    /// Which of its NICs are handed out.
    which: WhichNics,
    devices: Vec<NodeDevice>,
    /// The devices as the cluster shows them; `None` when nothing has changed since.
    reported: Option<Vec<NodeDevice>>,
    table: Arc<DeviceTable>,
    driver: GivenDriver,
    /// What holds GPU shares to their limits, what it offered when it was looked at last, and since when it does not work.
    guard: ShareGuard,
    shares: ShareOffer,
    unlimited_since: Timestamp,
    unselected_since: Timestamp,
    /// What the last events said of the node: that it is suspect, that it serves no shares, and that no NIC is selected.
    suspect: Option<String>,
    unavailable: Option<String>,
    none_selected: Option<String>,
    nvml_failed: bool,
    /// Why NVML cannot be used, where it is there; and why no device is offered at all.
    refusal: Option<String>,
    lacks: watch::Sender<Option<String>>,
    jobs: JoinSet<ScanResult>,
    scans: ScanQueue,
}

/// When the next scans and probes are due.
struct Due {
    scan: Instant,
    ports: Instant,
    poll: Instant,
    probe: Instant,
    shares: Instant,
}

impl Due {
    fn of(timings: &AgentTimings, scan_period: Duration) -> Self {
        let (scan, poll) = (tick(scan_period), tick(timings.health_poll));
        Self { scan, ports: poll, poll, probe: tick(timings.recovery_probe), shares: poll }
    }
}

impl DeviceReconciler {
    /// Takes the first look at the machine as it is. CDI files stand and the lists are offered when this returns.
    pub fn start(context: ReconcilerContext, plugins: ResourcePlugins, first: MachineScan) -> Result<Self, AgentError> {
        let mut guard = ShareGuard::new(context.options.clone());
        let shares = guard.look();
        let mut reconciler = Self {
            book: HealthBook::new(&context.options)?,
            health_file: None,
            reads_ports: false,
            nodes: DirectoryWatch::new(NODE_DIRECTORIES.map(|below| context.roots.dev.join(below)).into()),
            cdi: CdiFiles::open(&context.options),
            context,
            plugins,
            machine: Machine::default(),
            which: WhichNics::default(),
            devices: Vec::new(),
            reported: None,
            table: Arc::default(),
            driver: GivenDriver::default(),
            guard,
            shares,
            unlimited_since: clock::wall(),
            unselected_since: clock::wall(),
            suspect: None,
            unavailable: None,
            none_selected: None,
            nvml_failed: false,
            refusal: None,
            lacks: watch::Sender::new(None),
            jobs: JoinSet::new(),
            scans: ScanQueue::default(),
        };
        reconciler.recall(&first);
        reconciler.apply_scan(first)?;
        reconciler.rebuild()?;
        reconciler.refresh()?;
        reconciler.reconcile_shares()?;
        reconciler.report_changes();
        Ok(reconciler)
    }

    /// Recalls what the daemon before this one knew of GPUs: those that do not answer now are out of service, not gone. This process
    /// holds the state directory, so the daemon that wrote there has ended.
    fn recall(&mut self, first: &MachineScan) {
        let Some(boot_id) = first.machine.as_ref().ok().and_then(|machine| machine.boot_id.as_ref()) else { return };
        let (file, earlier) = HealthFile::open(&self.context.options.paths.state_dir, boot_id);
        self.book.recall(earlier.ailments);
        self.book.recall_outages(earlier.outages, clock::now());
        self.health_file = Some(file);
        self.machine.gpus = earlier.seen;
        if earlier.is_of_earlier_boot {
            let sysfs = self.context.roots.sysfs_tree().ok();
            self.machine.gpus.keep_after_boot(|bdf| sysfs.as_ref().is_some_and(|sysfs| pci::is_present(sysfs, bdf)));
        }
    }

    /// The plugins, for their states.
    pub fn plugins(&self) -> &ResourcePlugins {
        &self.plugins
    }

    /// Why no device is offered although there may be some.
    pub fn lacks(&self) -> watch::Receiver<Option<String>> {
        self.lacks.subscribe()
    }

    /// Runs until something fails that only a new process can mend. Cancel-safe: drop it, then [`DeviceReconciler::finish`].
    pub async fn run(&mut self) -> AgentError {
        let timings = self.context.options.timings;
        let mut due = Due::of(&timings, self.scan_period());
        let limits_shares = self.shares.isolation != ShareIsolation::None;
        loop {
            let ailing = !self.book.ailing().is_empty();
            let silent = !self.book.silent().is_empty();
            let suspect_until = self.book.next_outage_end();
            let suspect_until = suspect_until.map(|end| Instant::now() + end.saturating_sub(clock::mono()));
            let done = tokio::select! {
                event = self.context.events.recv() => self.reconcile_event(event),
                Some(finding) = self.jobs.join_next() => match finding {
                    Ok(finding) => self.reconcile_scan(finding),
                    Err(error) => Err(AgentError::Panicked(error.to_string())),
                },
                Some(outcome) = self.context.outcomes.recv() => self.reconcile_outcome(outcome),
                () = sleep_until(suspect_until.unwrap_or_else(Instant::now)), if suspect_until.is_some() => self.reconcile_suspicion(),
                () = self.nodes.happening(is_device_node) => self.reconcile_nodes(),
                error = self.plugins.failed() => Err(error),
                changed = self.context.handed_out.changed() => match changed {
                    Ok(()) => self.reconcile_held(),
                    Err(_) => Err(AgentError::Panicked("the hand-off ended".to_owned())),
                },
                () = sleep_until(due.scan) => {
                    due.scan = tick(self.scan_period());
                    self.scan();
                    Ok(())
                }
                () = sleep_until(due.ports), if !self.reads_ports => {
                    due.ports = tick(timings.health_poll);
                    self.read_ports();
                    Ok(())
                }
                () = sleep_until(due.poll), if silent => {
                    due.poll = tick(timings.health_poll);
                    self.probe(self.book.silent());
                    Ok(())
                }
                () = sleep_until(due.shares), if limits_shares => {
                    due.shares = tick(timings.health_poll);
                    self.reconcile_shares()
                }
                () = sleep_until(due.probe), if ailing => {
                    due.probe = tick(timings.recovery_probe);
                    self.probe(self.book.ailing());
                    Ok(())
                }
            };
            if let Err(error) = done {
                return error;
            }
            if self.reported.is_some() {
                // Behind everything that is ready to run: the lists are in the kubelet's sockets before the rest is made.
                tokio::task::yield_now().await;
                self.report_changes();
            }
        }
    }

    /// Stops serving: calls in hand end, sockets close.
    pub async fn finish(self) {
        self.plugins.finish().await;
    }

    fn scan_period(&self) -> Duration {
        let timings = &self.context.options.timings;
        if self.nvml_failed { timings.nvml_retry.min(timings.rescan) } else { timings.rescan }
    }

    fn scan(&mut self) {
        self.scans.scan = true;
        self.look();
    }

    fn probe(&mut self, uuids: Vec<String>) {
        self.scans.probe.extend(uuids);
        self.look();
    }

    /// Beside the looks at GPUs: a NIC waits for no NVML.
    fn read_ports(&mut self) {
        let nics: Vec<Bdf> = self.machine.nics.iter().map(|nic| nic.bdf).collect();
        if !nics.is_empty() {
            let (roots, reads) = (self.context.roots.clone(), self.context.reads.clone());
            let read: ReadPorts = Arc::new(move |bdf| scan::ports(&roots, *bdf));
            self.jobs.spawn_blocking(move || ScanResult::Ports(reads.ports(&nics, &read)));
            self.reads_ports = true;
        }
    }

    fn look(&mut self) {
        let provider = self.context.provider.clone();
        match self.scans.take() {
            Some(ScanRequest::Machine) => {
                let (roots, reads) = (self.context.roots.clone(), self.context.reads.clone());
                self.jobs.spawn_blocking(move || ScanResult::Machine(Box::new(scan::scan(&roots, &*provider, &reads))));
            }
            Some(ScanRequest::Probe(uuids)) => {
                self.jobs.spawn_blocking(move || scan::probe(&provider, uuids));
            }
            None => {}
        }
    }

    fn reconcile_event(&mut self, event: Option<GpuEvent>) -> Result<(), AgentError> {
        // The sink lives as long as the provider, which is ours.
        let Some(event) = event else { return Err(AgentError::Panicked("the event channel closed".to_owned())) };
        let outcome = self.book.apply_event(&event, &self.machine, clock::now());
        if let Some((xid, action)) = outcome.xid {
            self.context.metrics.xid(xid, &action.to_string());
        }
        if let Some((id, xid)) = &outcome.noted {
            self.note_xid(id, *xid);
        }
        if !outcome.probe.is_empty() {
            self.probe(outcome.probe);
        }
        if outcome.changed { self.refresh() } else { Ok(()) }
    }

    fn reconcile_scan(&mut self, finding: ScanResult) -> Result<(), AgentError> {
        let now = clock::now();
        if let ScanResult::Ports(ports) = finding {
            self.reads_ports = false;
            return self.reconcile_ports(&ports);
        }
        self.scans.under_way = false;
        self.look();
        let changed = match finding {
            ScanResult::Ports(_) => false,
            ScanResult::Machine(scan) => {
                self.apply_scan(*scan)?;
                self.rebuild()?;
                true
            }
            ScanResult::Probes(probes) => {
                probes.iter().filter(|(uuid, probe)| self.book.probed(uuid, probe, now)).count() > 0
            }
        };
        if changed { self.refresh() } else { Ok(()) }
    }

    /// The ports of the NICs were polled.
    fn reconcile_ports(&mut self, ports: &PortReads) -> Result<(), AgentError> {
        let now = clock::now();
        let poll = |(bdf, ports): &(_, Result<Vec<_>, _>)| {
            let ports = ports.as_ref().map(Vec::as_slice).map_err(Clone::clone);
            self.book.polled_ports(*bdf, ports, now)
        };
        if ports.iter().map(poll).filter(|changed| *changed).count() == 0 {
            return Ok(());
        }
        self.book.settle(&mut self.machine);
        self.choose_nics();
        self.refresh()
    }

    /// A pod was served here, or the machine failed it.
    fn reconcile_outcome(&mut self, outcome: ServeOutcome) -> Result<(), AgentError> {
        if self.book.served(outcome, clock::now()) { self.refresh() } else { Ok(()) }
    }

    /// An outage may be over.
    fn reconcile_suspicion(&mut self) -> Result<(), AgentError> {
        if self.book.age_suspicion(clock::now()) { self.refresh() } else { Ok(()) }
    }

    /// What limits GPU shares may have stopped to work, or work again.
    fn reconcile_shares(&mut self) -> Result<(), AgentError> {
        let mut offer = self.guard.look();
        if offer.unavailable.is_none() {
            let is_shared = |device: &&NodeDevice| device.health.healthy && device.may_be_shared();
            let mut shared = self.devices.iter().filter(is_shared);
            let gpu = shared.find(|device| !offer.can_limit(device.memory().unwrap_or(0)));
            let why =
                gpu.map(|gpu| format!("how much memory {} has is not known, so no share of it can be limited", gpu.id));
            offer.unavailable = why.map(Into::into);
        }
        if offer == self.shares {
            return Ok(());
        }
        if self.shares.unavailable.is_none() {
            self.unlimited_since = clock::wall();
        }
        self.shares = offer;
        self.refresh()
    }

    /// Device nodes came or went. Those of GPUs are looked up again at once; those of NICs are a part of a scan, and where nodes of
    /// GPUs come, a GPU may come with them.
    fn reconcile_nodes(&mut self) -> Result<(), AgentError> {
        self.scan();
        self.rebuild()?;
        self.refresh()
    }

    /// Takes a scan as the machine, with what is known of devices that kept silent.
    fn apply_scan(&mut self, scan: MachineScan) -> Result<(), AgentError> {
        let mut machine = scan.machine?;
        let now = clock::now();
        // Without a library there are no GPUs to wait for: such nodes are served, too.
        let refusal = scan.nvml.as_ref().filter(|error| !error.is_absence()).map(ToString::to_string);
        match (&scan.nvml, &refusal) {
            // Most such nodes have no GPU, and nothing has to be done.
            (Some(error), None) if !self.nvml_failed => {
                tracing::warn!("there is no NVML library here: no GPU is served until there is one");
                tracing::debug!("{error}");
            }
            (_, Some(error)) if self.refusal.is_none() => {
                tracing::error!("NVML cannot be used, GPUs are out of service until it can: {error}");
            }
            (None, _) if self.nvml_failed => tracing::info!("NVML can be used again"),
            _ => {}
        }
        self.nvml_failed = scan.nvml.is_some();
        self.refusal = refusal;
        if scan.nvml.is_some() {
            machine.gpus = self.machine.gpus.clone();
        }
        machine.keep_silent(&self.machine);
        let used = self.used(&self.context.holdings.in_use());
        machine.add_unseen(&self.machine, self.unseen(&machine, &used));
        self.book.scanned(&machine, scan.nvml.as_ref(), now);
        self.book.settle(&mut machine);
        self.machine = machine;
        self.choose_nics();
        for fault in &self.which.faults {
            tracing::warn!(nic = %fault.ibdev, why = %fault.reason, "an RDMA device cannot be read; the others are served");
        }
        self.driver = GivenDriver::of(scan.driver, scan.mismatch.as_ref(), &self.cdi, &self.context.options);
        Ok(())
    }

    /// Which NICs are handed out, by what is known of them now.
    fn choose_nics(&mut self) {
        let which = WhichNics::of(&self.machine, &self.context.options, |bdf| self.book.is_proven(bdf));
        let before = std::mem::replace(&mut self.which, which);
        if before.none_selected.is_none() {
            self.unselected_since = clock::wall();
        }
        for (bdf, why) in self.which.unserved.iter().filter(|(bdf, why)| before.unserved.get(bdf) != Some(why)) {
            tracing::info!(nic = %bdf, why, "a NIC is not handed out");
        }
        for why in self.which.said().filter(|why| !before.said().any(|said| said == *why)) {
            tracing::warn!("{why}");
        }
    }

    /// NICs that are in the machine and not in view: those that cannot be read, and those that pods may have in network namespaces of
    /// their own. Of functions that are a resource of their own the kubelet alone knows the holders: all that were known count.
    fn unseen(&self, machine: &Machine, used: &BTreeSet<DeviceId>) -> Vec<NicInfo> {
        let seen: BTreeSet<Bdf> = machine.nics.iter().map(|nic| nic.bdf).collect();
        let before: BTreeSet<Bdf> = self.machine.nics.iter().map(|nic| nic.bdf).collect();
        let faults = machine.nic_faults.iter().filter_map(|fault| Some((fault.bdf?, fault.hangs)));
        let faulty: BTreeSet<Bdf> =
            faults.filter(|(bdf, hangs)| *hangs || before.contains(bdf)).map(|(bdf, _)| bdf).collect();
        let held: BTreeSet<Bdf> = used.iter().filter_map(|id| id.as_str().parse().ok()).collect();
        let apart = !self.context.options.rdma_vf_resource.is_empty();
        let offered = self.cdi.nics().filter_map(|name| name.parse().ok());
        let known: BTreeSet<Bdf> = before.into_iter().chain(offered).filter(|_| apart).collect();
        let all: BTreeSet<Bdf> = faulty.iter().chain(&held).chain(&known).copied().collect();
        let missing: Vec<Bdf> = all.into_iter().filter(|bdf| !seen.contains(bdf)).collect();
        let Some(sysfs) = self.context.roots.sysfs_tree().ok().filter(|_| !missing.is_empty()) else {
            return Vec::new();
        };
        let dev = self.context.roots.dev_tree().ok();
        let unseen = missing.into_iter().filter_map(|bdf| rdma::by_function(&sysfs, dev.as_ref(), bdf));
        // Where the RDMA device has died, the NIC goes the way of a GPU that has left.
        let may_be_lent = |nic: &NicInfo| nic.chars.uverbs.is_some() && (held.contains(&nic.bdf) || nic.is_vf());
        unseen.filter(|nic| faulty.contains(&nic.bdf) || may_be_lent(nic)).collect()
    }

    /// Looks the device nodes up again and writes the CDI files: needed when the machine may have changed, not when only the health
    /// of a device has.
    fn rebuild(&mut self) -> Result<(), AgentError> {
        // Attached first, looked at second: nothing falls between.
        self.nodes.attach();
        let used = self.used(&self.context.holdings.in_use());
        let dev = self.context.roots.dev_tree().ok();
        let devices = self.list(&used);
        let mut table = DeviceTable::build(&devices, dev.as_ref(), self.driver.files.clone());
        table.keep_used(&self.table, &used);
        let first = self.devices.is_empty();
        for (kind, error) in self.cdi.write(&table, &used) {
            if first || error.is_of_removed_directory() {
                return Err(error.into());
            }
            tracing::error!("{error}");
            table.unwritten.insert(kind, error.to_string());
        }
        if *self.table != table {
            self.table = Arc::new(table);
            self.context.answers.replace(self.table.clone());
        }
        Ok(())
    }

    /// Everything that pods hold, by whatever name.
    fn used(&self, in_use: &InUse) -> BTreeSet<DeviceId> {
        let mut used = self.context.holdings.functions_in_use();
        used.extend(in_use.values().flatten().cloned());
        used
    }

    fn list(&self, used: &BTreeSet<DeviceId>) -> Vec<NodeDevice> {
        let now = clock::now();
        let apart = !self.context.options.rdma_vf_resource.is_empty();
        let findings = DeviceFindings {
            faults: self.book.faults(&self.machine, now),
            table: Some(&self.table),
            unselected: self.which.unselected(),
            held_functions: if apart { self.context.holdings.functions_in_use() } else { BTreeSet::new() },
            driver_differs: self.driver.differs.as_deref(),
        };
        let mut list = devices::list(&self.machine, &self.context.options, &findings, now.wall);
        devices::keep_used(&mut list, &self.devices, used, now.wall);
        devices::without_unselected(&mut list, used);
        devices::keep_since(&mut list, &self.devices);
        list
    }

    /// Pods were given devices, or gave them back. The lists show that only where something is listed because it is in use,
    /// and the next call of the kubelet may be waiting: mostly there is nothing to do.
    fn reconcile_held(&mut self) -> Result<(), AgentError> {
        self.show_shares();
        let in_use = self.context.holdings.in_use();
        let each = in_use.iter().filter(|(name, _)| key::is_device_resource(name));
        if !self.plugins.offer_in_health(each.flat_map(|(name, ids)| ids.iter().map(|id| (&**name, id)))) {
            return self.refresh();
        }
        if self.context.published.borrow().held != self.context.holdings.held() {
            self.publish();
        }
        Ok(())
    }

    /// Judges the devices again and brings the result to those that hand devices out, this daemon and the kubelet. Memory only: a bad
    /// device is in the kubelet's list within milliseconds. [`DeviceReconciler::report_changes`] does the rest.
    fn refresh(&mut self) -> Result<(), AgentError> {
        let in_use = self.context.holdings.in_use();
        let devices = self.list(&self.used(&in_use));
        let unseen = Unseen { gpus: self.refusal.is_some(), nics: !self.which.faults.is_empty() };
        let mut lists = offers(&devices, &self.context.options, &in_use, unseen);
        for (name, behind) in self.context.holdings.behind() {
            lists.entry(name).and_modify(|list| list.exchange(&behind));
        }
        let mut registered = configured(&self.context.options);
        registered.extend(lists.keys().cloned());
        self.context.holdings.set_inventory(node_inventory(&devices, registered, self.shares.clone()));
        self.plugins.update(lists)?;
        let before = std::mem::replace(&mut self.devices, devices);
        self.reported.get_or_insert(before);
        Ok(())
    }

    /// Reports to the cluster what changed since the last report.
    fn report_changes(&mut self) {
        let Some(before) = self.reported.take() else { return };
        self.show_shares();
        self.publish();
        if let Some(file) = &mut self.health_file {
            file.keep(self.book.ailments(), self.book.outages(), &self.machine.gpus);
        }
        // After the Device object: schedulers read that, people read these events.
        self.report_health(&before);
        for (resource, (healthy, total)) in self.plugins.counts() {
            self.context.metrics.offered(&resource, healthy, total);
        }
        self.report_suspicion();
        let lacks = self.refusal.clone().filter(|_| self.devices.is_empty());
        self.lacks.send_if_modified(|now| std::mem::replace(now, lacks.clone()) != lacks);
    }

    /// An event on the node, and on each pod that has the device, for every device that goes out of service or comes back, and for one
    /// that stays in service although
    /// something of it is not known. The log says the reason of every change.
    fn report_health(&self, before: &[NodeDevice]) {
        let healthy = DeviceHealth::of(Vec::new(), Timestamp::UNIX_EPOCH);
        let infos = device_infos(&self.devices);
        let names: BTreeMap<&DeviceId, String> = infos.iter().map(|info| &info.id).zip(device_names(&infos)).collect();
        let node = &self.context.options.node_name;
        for device in &self.devices {
            let (kind, id, health) = (device.kind(), &device.id, &device.health);
            // A device that is seen for the first time and is well is no news.
            let before = before.iter().find(|before| before.id == *id).map_or(&healthy, |before| &before.health);
            if before.reason != health.reason {
                let (reason, why) = (health.reason, &*health.message);
                if health.healthy {
                    tracing::info!(%kind, device = %id, why, "the device takes pods again");
                } else {
                    tracing::warn!(%kind, device = %id, %reason, why, "the device takes no new pods");
                }
            }
            let said = reasoned(&health.reason.to_string(), &health.message);
            let limited = health.limits().ne(before.limits()) && health.limits().next().is_some();
            let unhealthy = || (EventReason::DeviceUnhealthy, format!("is out of service: {said}"));
            let news = match health.healthy {
                true if !before.healthy => Some((EventReason::DeviceHealthy, format!("takes pods again: {said}"))),
                false if before.healthy => Some(unhealthy()),
                true if limited => {
                    let told: Vec<String> = health.limits().map(|of| format!("{}: {of}", of.reason)).collect();
                    let told = told.join("; ");
                    tracing::warn!(%kind, device = %id, why = told, "not everything is known of the device");
                    Some((EventReason::DeviceLimited, format!("takes pods, and not everything is known of it: {told}")))
                }
                _ => None,
            };
            let fails = |of: &DeviceHealth| !of.healthy && !of.reason.serves_its_pod();
            let of_holders =
                if health.healthy { news.clone() } else { (fails(health) && !fails(before)).then(unhealthy) };
            let name = names.get(id).cloned().unwrap_or_else(|| kind.to_string());
            let id_is_address = device.bdf.is_none_or(|bdf| bdf.to_string() == id.as_str());
            let address = device.bdf.filter(|_| !id_is_address).map(|bdf| format!(", {bdf}")).unwrap_or_default();
            let name = format!("{name} ({id}{address})");
            let post = |subject, reason, message| {
                let warning = reason != EventReason::DeviceHealthy;
                self.context.notices.post(Notice { subject, warning, reason, action: "Health", message });
            };
            if let Some((reason, message)) = of_holders {
                for pod in self.context.holdings.holders(id) {
                    post(Subject::Pod(pod), reason, format!("{name} of node {node}, which this pod has, {message}"));
                }
            }
            if let Some((reason, message)) = news {
                post(Subject::Node(node.as_str().into()), reason, format!("{name} {message}"));
            }
        }
    }

    /// Events of a device which reported an error and stays in service, on its node and on each pod that has it: mostly the pod's own
    /// program is to blame.
    fn note_xid(&self, id: &DeviceId, xid: u64) {
        let infos = device_infos(&self.devices);
        let at = infos.iter().position(|info| info.id == *id);
        let name = at.map(|at| device_names(&infos).swap_remove(at)).unwrap_or_default();
        let node = &self.context.options.node_name;
        let words = xid_words(xid);
        let post = |subject, whose: &str| {
            let message = format!("{name} ({id}){whose} stays in service: {words}");
            let reason = EventReason::DeviceError;
            self.context.notices.post(Notice { subject, warning: true, reason, action: "Health", message });
        };
        let pods = self.context.holdings.holders(id).into_iter().map(Subject::Pod);
        pods.for_each(|pod| post(pod, &format!(" of node {node}, which this pod has,")));
        post(Subject::Node(node.as_str().into()), "");
    }

    /// An event on the node when it is suspect, serves no shares or has no NIC that is selected, and when that is over.
    fn report_suspicion(&mut self) {
        let now = self.book.node_condition().map(|condition| condition.message.clone());
        if now != self.suspect {
            self.context.metrics.suspect(now.is_some());
            let words = (EventReason::NodeSuspect, EventReason::NodeTrusted, "pods with devices may come again");
            self.post(now.as_deref(), words);
            self.suspect = now;
        }
        let now = self.shares.unavailable.as_deref().map(str::to_owned);
        if now != self.unavailable {
            self.context.metrics.shares_unavailable(now.is_some());
            let words =
                (EventReason::SharesUnavailable, EventReason::SharesAvailable, "pods with GPU shares may come again");
            self.post(now.as_deref(), words);
            self.unavailable = now;
        }
        if self.which.none_selected != self.none_selected {
            let words =
                (EventReason::NoDevicesSelected, EventReason::DevicesSelected, "--rdma-select takes NICs of this node");
            self.post(self.which.none_selected.as_deref(), words);
            self.none_selected.clone_from(&self.which.none_selected);
        }
    }

    /// An event on the node: what is wrong, or that nothing is any more.
    fn post(&self, wrong: Option<&str>, (bad, good, well): (EventReason, EventReason, &str)) {
        let (warning, reason) = if wrong.is_some() { (true, bad) } else { (false, good) };
        let message = wrong.unwrap_or(well).to_owned();
        self.context.notices.post(Notice {
            subject: Subject::Node(self.context.options.node_name.as_str().into()),
            warning,
            reason,
            action: "Health",
            message,
        });
    }

    /// What the Device object says of the node, beside that it is suspect.
    fn conditions(&self) -> impl Iterator<Item = Condition> {
        let unlimited = (DeviceStatus::SHARES_UNAVAILABLE, ConditionReason::LimitsNotEnforced, self.unlimited_since);
        let unselected =
            (DeviceStatus::NO_DEVICES_SELECTED, ConditionReason::SelectorMatchesNothing, self.unselected_since);
        let both = [(unlimited, self.shares.unavailable.as_deref()), (unselected, self.which.none_selected.as_deref())];
        both.into_iter().filter_map(|((of, reason, since), why)| {
            Some(Condition {
                type_: of.to_owned(),
                status: "True".to_owned(),
                reason: reason.word().to_owned(),
                message: why?.to_owned(),
                last_transition_time: Time(to_seconds(since)),
                observed_generation: None,
            })
        })
    }

    fn show_shares(&self) {
        let (metrics, shares) = (&self.context.metrics, self.context.holdings.pod_shares());
        metrics.devices(&device_infos(&self.devices), &shares);
        if self.context.options.pod_metrics {
            metrics.pod_shares(&self.context.options.node_name, &shares);
        }
    }

    fn publish(&self) {
        let published = Published {
            devices: device_infos(&self.devices),
            held: self.context.holdings.held(),
            conditions: self.book.node_condition().cloned().into_iter().chain(self.conditions()).collect(),
            labels: node_labels(&self.machine, self.shares.isolation),
        };
        self.context.published.send_if_modified(|now| {
            let changed = **now != published;
            if changed {
                *now = Arc::new(published);
            }
            changed
        });
    }
}

/// Where device nodes lie, below the dev root.
const NODE_DIRECTORIES: [&str; 3] = ["", "nvidia-caps", "infiniband"];

/// A file of ours, or a directory that holds some.
fn is_device_node(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    ["nvidia", "infiniband", "uverbs", "rdma_cm"].iter().any(|of| name.starts_with(of.as_bytes()))
}

/// The next of the ticks that everything of this period shares.
fn tick(period: Duration) -> Instant {
    Instant::now() + clock::until_tick(period)
}
