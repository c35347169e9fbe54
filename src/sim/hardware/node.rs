//! The handle of one virtual machine: where its files are, and what can be done to it while daemons run.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::layout::{self, device};
use super::library::{Library, NvmlReturn};
use super::plan::{self, Address, Function, Kind};
use super::rdma::RdmaFunction;
use super::spec::{NodeSpec, NvLink};
use super::sysfs::Sysfs;
use super::{files, mig};

const EVENT_DOUBLE_BIT_ECC: u64 = 2;
const EVENT_XID: u64 = 8;
/// NVML's NVLink device types.
const LINK_TO_GPU: u32 = 0;
const LINK_TO_SWITCH: u32 = 2;
/// NVML's state of a GPU that is registered with its fabric.
const FABRIC_COMPLETED: u32 = 3;

/// A virtual machine below one directory. GPUs and NICs are named by their position, from 0, in PCI order.
#[derive(Debug)]
pub struct VirtualNode {
    root: PathBuf,
    spec: NodeSpec,
    library: Library,
    sysfs: Sysfs,
    gpus: Vec<(Function, String)>,
    nics: Mutex<Vec<RdmaFunction>>,
    random: Mutex<fastrand::Rng>,
}

impl VirtualNode {
    /// Builds the machine below `root`, which is created and must be empty.
    pub fn create(root: impl Into<PathBuf>, spec: NodeSpec) -> io::Result<Self> {
        let root = root.into();
        let functions = plan::functions(spec.shape);
        let mut random = fastrand::Rng::with_seed(seed(&spec));
        let of = |kind: Kind| {
            let mut found: Vec<Function> = functions.iter().filter(|f| f.kind == kind).cloned().collect();
            found.sort_by_key(|f| f.at);
            found
        };
        let gpus: Vec<(Function, String)> =
            of(Kind::Gpu).into_iter().map(|f| (f, format!("GPU-{}", uuid(&mut random)))).collect();
        let nics = rdma_functions(&of(Kind::Nic), spec.vfs_per_nic, &mut random);
        let sysfs = Sysfs::create(root.join("sys"), spec.config_space)?;
        functions.iter().try_for_each(|function| sysfs.function(function))?;
        sysfs.numa(functions.iter().map(|f| f.numa + 1).max().unwrap_or(1))?;
        files::dev(&root.join("dev"))?;
        files::proc(&root.join("proc"), &spec.driver_version, &uuid(&mut random))?;
        files::driver(&root.join("driver"), &spec.driver_version)?;
        let library = Library::install(&root.join("driver/usr/lib64"), &spec.driver_version)?;
        let node = Self { root, spec, library, sysfs, gpus, nics: Mutex::new(nics), random: Mutex::new(random) };
        node.write_system()?;
        (0..node.gpus.len()).try_for_each(|gpu| node.write_gpu(gpu))?;
        node.write_nics()?;
        Ok(node)
    }

    /// The library to give to `--nvml-library`.
    pub fn nvml_library(&self) -> &Path {
        self.library.path()
    }

    /// The directory to give to `--sysfs-root`.
    pub fn sysfs_root(&self) -> PathBuf {
        self.root.join("sys")
    }

    /// The directory to give to `--dev-root`.
    pub fn dev_root(&self) -> PathBuf {
        self.root.join("dev")
    }

    /// The directory to give to `--proc-root`.
    pub fn proc_root(&self) -> PathBuf {
        self.root.join("proc")
    }

    /// The directory to give to `--driver-root`.
    pub fn driver_root(&self) -> PathBuf {
        self.root.join("driver")
    }

    /// GPU UUIDs by position.
    pub fn gpu_uuids(&self) -> Vec<String> {
        self.gpus.iter().map(|(_, uuid)| uuid.clone()).collect()
    }

    /// GPU addresses by position.
    pub fn gpu_addresses(&self) -> Vec<Address> {
        self.gpus.iter().map(|(function, _)| function.at).collect()
    }

    /// NIC addresses by position, virtual functions after their physical one.
    pub fn nic_addresses(&self) -> Vec<Address> {
        self.nics().iter().map(|nic| nic.at).collect()
    }

    /// NVML calls by function since the machine was built.
    pub fn nvml_calls(&self) -> io::Result<BTreeMap<String, u64>> {
        self.library.calls()
    }

    /// The state that the library reads, for faults that have no verb here.
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// Reports a critical XID error on a GPU.
    pub fn xid(&self, gpu: usize, xid: u64) -> io::Result<()> {
        self.library.event(EVENT_XID, xid, gpu as u32, None)
    }

    /// Reports a critical XID error on one MIG instance.
    pub fn xid_on_instance(&self, gpu: usize, xid: u64, instance: (u32, u32)) -> io::Result<()> {
        self.library.event(EVENT_XID, xid, gpu as u32, Some(instance))
    }

    /// Reports a double-bit ECC error, as an event of its own kind that names no MIG instance.
    pub fn double_bit_ecc(&self, gpu: usize) -> io::Result<()> {
        self.library.event(EVENT_DOUBLE_BIT_ECC, 0, gpu as u32, None)
    }

    /// Lets a GPU fall off the bus. After [`Self::find`] NVML sees it again only when it is restarted.
    pub fn lose(&self, gpu: usize) -> io::Result<()> {
        self.set(gpu, device::LOST, 1)
    }

    /// Brings a lost GPU back.
    pub fn find(&self, gpu: usize) -> io::Result<()> {
        self.set(gpu, device::LOST, 0)
    }

    /// Lets every call about a GPU hang.
    pub fn wedge(&self, gpu: usize) -> io::Result<()> {
        self.set(gpu, device::WEDGED, 1)
    }

    /// Lets hanging calls about a GPU return.
    pub fn release(&self, gpu: usize) -> io::Result<()> {
        self.set(gpu, device::WEDGED, 0)
    }

    /// Lets the start of NVML hang.
    pub fn wedge_start(&self) -> io::Result<()> {
        self.library.u32(layout::WEDGE_INIT, 1)
    }

    /// Lets a start of NVML that hangs go on.
    pub fn release_start(&self) -> io::Result<()> {
        self.library.u32(layout::WEDGE_INIT, 0)
    }

    /// What every call about a GPU answers; [`NvmlReturn::Success`] ends it.
    pub fn fault(&self, gpu: usize, answer: NvmlReturn) -> io::Result<()> {
        self.set(gpu, device::FAULT, answer as u32)
    }

    /// Lets one function of the library answer `answer` about a GPU; [`NvmlReturn::Success`] ends it.
    pub fn fail_question(&self, gpu: usize, function: &str, answer: NvmlReturn) -> io::Result<()> {
        let function = if answer == NvmlReturn::Success { "" } else { function };
        self.set(gpu, device::FAILING_ANSWER, answer as u32)?;
        self.library.text(Library::field(gpu, device::FAILING), 56, function)
    }

    /// Lets a GPU answer with success what no GPU can be, or what another one is.
    pub fn answer(&self, gpu: usize, value: &GpuValue) -> io::Result<()> {
        let at = |field| Library::field(gpu, field);
        match value {
            GpuValue::Minor(minor) => self.set(gpu, device::MINOR, *minor),
            GpuValue::Uuid(uuid) => self.library.text(at(device::UUID), 96, uuid),
            GpuValue::Name(name) => self.library.text(at(device::NAME), 96, name),
            GpuValue::Memory(bytes) => self.library.u64(at(device::MEMORY_BYTES), *bytes),
            GpuValue::Capability(major, minor) => {
                self.set(gpu, device::CC_MAJOR, *major)?;
                self.set(gpu, device::CC_MINOR, *minor)
            }
            GpuValue::Address(domain, bus, number) => {
                [(device::DOMAIN, *domain), (device::BUS, *bus), (device::DEVICE, *number)]
                    .into_iter()
                    .try_for_each(|(field, value)| self.set(gpu, field, value))
            }
        }
    }

    /// What the start of NVML answers, such as a version mismatch; [`NvmlReturn::Success`] ends it.
    pub fn fail_start(&self, answer: NvmlReturn) -> io::Result<()> {
        self.library.u32(layout::INIT_ERROR, answer as u32)
    }

    /// What every call answers; [`NvmlReturn::Success`] ends it.
    pub fn fail_calls(&self, answer: NvmlReturn) -> io::Result<()> {
        self.library.u32(layout::CALL_ERROR, answer as u32)
    }

    /// Lets a GPU not report its memory.
    pub fn hide_memory(&self, gpu: usize) -> io::Result<()> {
        self.set(gpu, device::MEMORY_SUPPORTED, 0)
    }

    /// Lets a GPU report its memory again.
    pub fn show_memory(&self, gpu: usize) -> io::Result<()> {
        self.set(gpu, device::MEMORY_SUPPORTED, 1)
    }

    /// Lets a GPU report its memory by the first version of the call only, as drivers before R510 do.
    pub fn old_memory_call(&self, gpu: usize) -> io::Result<()> {
        self.set(gpu, device::MEMORY_SUPPORTED, 2)
    }

    /// GPUs deliver events.
    pub fn deliver_events(&self) -> io::Result<()> {
        self.library.u32(layout::EVENTS_UNSUPPORTED, 0)
    }

    /// GPUs deliver no events at all.
    pub fn deliver_no_events(&self) -> io::Result<()> {
        self.library.u32(layout::EVENTS_UNSUPPORTED, 1)
    }

    /// A library that lets events be asked for and then says that it has none.
    pub fn promise_events_only(&self) -> io::Result<()> {
        self.library.u32(layout::EVENTS_UNSUPPORTED, 2)
    }

    /// A library whose wait for events ends at once when there is none.
    pub fn wait_for_no_event(&self) -> io::Result<()> {
        self.library.u32(layout::EVENTS_UNSUPPORTED, 3)
    }

    /// A library that fails to make a set of events.
    pub fn make_no_event_set(&self) -> io::Result<()> {
        self.library.u32(layout::EVENTS_UNSUPPORTED, 5)
    }

    /// A wait for events says at once that a GPU is lost, unless there is an event.
    pub fn lost_instead_of_waiting(&self) -> io::Result<()> {
        self.library.u32(layout::EVENTS_UNSUPPORTED, 4)
    }

    /// The recovery action that a GPU reports (0 none, 1 reset, 2 reboot, 3 drain, 4 drain and reset); `None`: this
    /// driver cannot say.
    pub fn recovery(&self, gpu: usize, action: Option<u32>) -> io::Result<()> {
        self.set(gpu, device::RECOVERY_SUPPORTED, u32::from(action.is_some()))?;
        self.set(gpu, device::RECOVERY, action.unwrap_or(0))
    }

    /// What a GPU says of its registration with the NVSwitch fabric: NVML's state (0 not supported, 1 not started, 2 in progress,
    /// 3 completed) and, for the last, with which result (0 is success).
    pub fn fabric(&self, gpu: usize, state: u32, status: u32) -> io::Result<()> {
        self.set(gpu, device::FABRIC_STATUS, status)?;
        self.set(gpu, device::FABRIC_STATE, state)
    }

    /// Splits a GPU into instances of these profiles; an empty list leaves MIG on without an instance. Every call makes
    /// new UUIDs, which are returned in order.
    pub fn mig(&self, gpu: usize, profiles: &[&str]) -> io::Result<Vec<String>> {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let instances = mig::partition(profiles, || format!("MIG-{}", uuid(&mut random)))?;
        for instance in &instances {
            for compute in [None, Some(instance.compute_instance)] {
                let cap = files::cap(gpu as u32, instance.gpu_instance, compute);
                fs::write(self.dev_root().join(format!("nvidia-caps/nvidia-cap{cap}")), "")?;
            }
        }
        mig::write(&self.library, gpu, &instances)?;
        Ok(instances.into_iter().map(|instance| instance.uuid).collect())
    }

    /// Destroys the instance with this number on a GPU; the others keep their numbers.
    pub fn destroy_mig(&self, gpu: usize, at: usize) -> io::Result<()> {
        mig::destroy(&self.library, gpu, at)
    }

    /// Switches MIG off on a GPU.
    pub fn unsplit(&self, gpu: usize) -> io::Result<()> {
        self.set(gpu, device::MIG_COUNT, 0)?;
        self.set(gpu, device::MIG_MODE, 1)
    }

    /// Takes a GPU out of the machine. NVML's list follows when it is restarted.
    pub fn remove(&self, gpu: usize) -> io::Result<()> {
        self.set(gpu, device::PRESENT, 0)?;
        fs::remove_file(self.dev_root().join(format!("nvidia{gpu}")))?;
        self.sysfs.remove(&self.gpus[gpu].0, "nvidia")
    }

    /// Puts a removed GPU back.
    pub fn add(&self, gpu: usize) -> io::Result<()> {
        self.sysfs.function(&self.gpus[gpu].0)?;
        self.write_gpu(gpu)
    }

    /// Takes the link of a NIC up.
    pub fn port_up(&self, nic: usize) -> io::Result<()> {
        self.nics()[nic].port_up(&self.sysfs)
    }

    /// Takes the link of a NIC down.
    pub fn port_down(&self, nic: usize) -> io::Result<()> {
        self.nics()[nic].port_down(&self.sysfs)
    }

    /// Gives a NIC another kernel name.
    pub fn rename_nic(&self, nic: usize, name: &str) -> io::Result<()> {
        self.nics()[nic].rename(&self.sysfs, name)
    }

    /// Moves a NIC's RDMA device out of the host's view, as an exclusive network namespace does.
    pub fn lend_nic(&self, nic: usize) -> io::Result<()> {
        self.nics()[nic].remove_class(&self.sysfs)
    }

    /// Brings it back.
    pub fn return_nic(&self, nic: usize) -> io::Result<()> {
        self.nics()[nic].restore_class(&self.sysfs)
    }

    /// The RDMA device of a NIC dies; its PCI function stays.
    pub fn unregister_nic(&self, nic: usize) -> io::Result<()> {
        self.nics()[nic].unregister(&self.sysfs, &self.dev_root())
    }

    /// Brings it back, with the lowest number that is free, as the kernel gives it.
    pub fn register_nic(&self, nic: usize) -> io::Result<()> {
        let nodes = self.dev_root().join("infiniband");
        let mut nics = self.nics();
        nics[nic].number = (0..256).find(|number| !nodes.join(format!("uverbs{number}")).exists()).unwrap_or_default();
        nics[nic].write(&self.sysfs, &self.dev_root())
    }

    /// Takes the PCI function of a NIC, whose RDMA device has died, out of the machine.
    pub fn unplug_nic(&self, nic: usize) -> io::Result<()> {
        let RdmaFunction { at, directory, .. } = self.nics()[nic].clone();
        fs::remove_file(self.sysfs_root().join(format!("bus/pci/devices/{at}")))?;
        fs::remove_dir_all(self.sysfs_root().join(directory))
    }

    /// Puts the libraries of another driver in the place of those that are there, which stay beside them. NVML and the driver in the kernel
    /// stay what they are.
    pub fn update_driver(&self, version: &str) -> io::Result<()> {
        files::libraries(&self.driver_root(), version)
    }

    /// Loads a driver of this version into the kernel.
    pub fn load_driver(&self, version: &str) -> io::Result<()> {
        self.sysfs.write("module/nvidia/version", &format!("{version}\n"))?;
        self.library.text(layout::DRIVER_VERSION, 80, version)
    }

    /// A new boot id. Returns it.
    pub fn reboot(&self) -> io::Result<String> {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let boot_id = uuid(&mut random);
        files::set_boot_id(&self.proc_root(), &boot_id)?;
        Ok(boot_id)
    }

    fn nics(&self) -> MutexGuard<'_, Vec<RdmaFunction>> {
        self.nics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, gpu: usize, field: u64, value: u32) -> io::Result<()> {
        self.library.u32(Library::field(gpu, field), value)
    }

    fn write_system(&self) -> io::Result<()> {
        let version = &self.spec.driver_version;
        self.load_driver(version)?;
        self.library.text(layout::NVML_VERSION, 80, &format!("12.{version}"))?;
        self.library.u32(layout::CUDA_VERSION, 12_080)?;
        self.library.u32(layout::DEVICES, self.gpus.len() as u32)?;
        for (a, (first, _)) in self.gpus.iter().enumerate() {
            let level = |(b, (second, _)): (usize, &(Function, String))| {
                if a == b { 0 } else { plan::level(first, second) as u32 }
            };
            let row: Vec<u8> = self.gpus.iter().enumerate().flat_map(|pair| level(pair).to_ne_bytes()).collect();
            self.library.bytes(layout::LEVELS + 4 * (a * layout::MAX_DEVICES) as u64, &row)?;
        }
        Ok(())
    }

    fn write_gpu(&self, gpu: usize) -> io::Result<()> {
        let (function, uuid) = &self.gpus[gpu];
        let at = |field| Library::field(gpu, field);
        let model = &self.spec.gpu;
        self.library.text(at(device::UUID), 96, uuid)?;
        self.library.text(at(device::NAME), 96, &model.model)?;
        self.library.text(at(device::SERIAL), 32, &format!("16532230{gpu:05}"))?;
        self.library.u64(at(device::MEMORY_BYTES), model.memory_bytes.unwrap_or(0))?;
        for (field, value) in [
            (device::MINOR, gpu as u32),
            (device::DOMAIN, function.at.domain),
            (device::BUS, u32::from(function.at.bus)),
            (device::DEVICE, u32::from(function.at.device)),
            (device::PCI_ID, 0x2330_10de),
            (device::MEMORY_SUPPORTED, u32::from(model.memory_bytes.is_some())),
            (device::CC_MAJOR, model.compute_capability.0),
            (device::CC_MINOR, model.compute_capability.1),
            (device::MIG_MODE, u32::from(model.mig_capable)),
            (device::EVENT_TYPES, (EVENT_XID | EVENT_DOUBLE_BIT_ECC | 1) as u32),
            (device::RECOVERY_SUPPORTED, 1),
            (device::PRESENT, 1),
        ] {
            self.set(gpu, field, value)?;
        }
        fs::write(self.dev_root().join(format!("nvidia{gpu}")), "")?;
        self.write_links(gpu)
    }

    fn write_links(&self, gpu: usize) -> io::Result<()> {
        let peers: Vec<usize> = match self.spec.shape.nvlink() {
            NvLink::None => return Ok(()),
            NvLink::Switched => {
                let switch = |link: usize| (LINK_TO_SWITCH, 0, 0x05 + (link / 5) as u8, 0);
                let links: Vec<_> = (0..layout::MAX_LINKS).map(switch).collect();
                self.fabric(gpu, FABRIC_COMPLETED, 0)?;
                return self.library.links(gpu, &links);
            }
            NvLink::Pairs => vec![gpu ^ 1; 4],
            NvLink::Mesh => {
                (0..self.gpus.len()).filter(|peer| *peer != gpu).flat_map(|peer| std::iter::repeat_n(peer, 6)).collect()
            }
        };
        let at = |peer: &usize| self.gpus[*peer].0.at;
        let links = peers.iter().map(at).map(|remote| (LINK_TO_GPU, remote.domain, remote.bus, remote.device));
        self.library.links(gpu, &links.collect::<Vec<_>>())
    }

    fn write_nics(&self) -> io::Result<()> {
        let nics = self.nics();
        let mut physical: Option<&RdmaFunction> = None;
        let mut rank = 0;
        for nic in nics.iter() {
            if nic.at.device == 0 && nic.at.function == 0 {
                (physical, rank) = (Some(nic), 0);
                self.sysfs
                    .write(&format!("{}/sriov_numvfs", nic.directory), &format!("{}\n", self.spec.vfs_per_nic))?;
            } else if let Some(pf) = physical {
                self.write_vf(nic, pf, rank)?;
                rank += 1;
            }
            nic.write(&self.sysfs, &self.dev_root())?;
        }
        let interfaces: Vec<String> = nics.iter().map(RdmaFunction::interface).collect();
        files::net(&self.proc_root(), interfaces.iter().map(String::as_str))
    }

    fn write_vf(&self, vf: &RdmaFunction, pf: &RdmaFunction, rank: u32) -> io::Result<()> {
        let numa = fs::read_to_string(self.sysfs.root().join(&pf.directory).join("numa_node"))?;
        self.sysfs.write(&format!("{}/numa_node", vf.directory), &numa)?;
        self.sysfs.write(&format!("{}/vendor", vf.directory), "0x15b3\n")?;
        self.sysfs.write(&format!("{}/device", vf.directory), "0x101e\n")?;
        self.sysfs.by_address(&vf.directory, vf.at)?;
        self.sysfs.bind(&vf.directory, vf.at, "mlx5_core")?;
        self.sysfs.link(&format!("{}/physfn", vf.directory), &format!("../{}", pf.at))?;
        self.sysfs.link(&format!("{}/virtfn{rank}", pf.directory), &format!("../{}", vf.at))
    }
}

/// A value that NVML answers about a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuValue {
    /// Number of the device node.
    Minor(u32),
    /// UUID.
    Uuid(String),
    /// Product name.
    Name(String),
    /// Memory in bytes.
    Memory(u64),
    /// CUDA compute capability.
    Capability(u32, u32),
    /// PCI domain, bus and device.
    Address(u32, u32, u32),
}

/// Physical functions, each followed by its virtual ones on the same bus.
fn rdma_functions(nics: &[Function], vfs: u32, random: &mut fastrand::Rng) -> Vec<RdmaFunction> {
    let mut functions = Vec::new();
    for nic in nics {
        for index in 0..=vfs {
            let at = Address { device: (index / 8) as u8, function: (index % 8) as u8, ..nic.at };
            let directory = Function { at, ..nic.clone() }.directory();
            let number = functions.len() as u32;
            let guid = 0x0c42_a103_0000_0000 | random.u64(..) & 0xffff_ffff;
            functions.push(RdmaFunction { directory, at, ibdev: format!("mlx5_{number}"), number, guid });
        }
    }
    functions
}

fn seed(spec: &NodeSpec) -> u64 {
    // FNV-1a over the name.
    let name = spec
        .name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, b| (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    name ^ spec.seed.rotate_left(32)
}

/// A random (version 4) UUID.
fn uuid(random: &mut fastrand::Rng) -> String {
    let bits = random.u128(..) & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    [&hex[0..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..32]].join("-")
}
