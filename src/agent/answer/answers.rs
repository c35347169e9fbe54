//! The answer to Allocate: how the devices of a grant reach the container.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::Mutex;

use super::table::{DeviceNodes, DeviceTable, SHARED};
use crate::options::AgentOptions;
use crate::options::{DeviceIdStrategy, DeviceListStrategy};
use crate::removal;
use crate::shares::{self, ShareStart};
use baton_contract::deviceplugin::{CdiDevice, ContainerAllocateResponse, DeviceSpec, Mount};
use baton_contract::{DeviceEntry, DeviceId, DeviceType, PodRef, ShareIsolation, key};
use baton_decide::health::Blame;
use baton_hardware::Bdf;

/// The devices of one container for one call. Everything in it has been validated against the inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerGrant {
    /// Resource name whose socket was called; it is the one that delivers.
    pub resource: Box<str>,
    /// The pod.
    pub pod: PodRef,
    /// Its container.
    pub container: Box<str>,
    /// Devices, in the order of the assignment; all of the type that `resource` stands for.
    pub entries: Vec<(DeviceType, DeviceEntry)>,
    /// `true` when the entries are parts of devices and not whole ones.
    pub shares: bool,
}

/// Builds the answer of a grant. Called within Allocate: no NVML call, no API call, no waiting.
pub trait Answerer: Send + Sync {
    /// The answer for one container. The kubelet replays it on every restart of the container, so whatever it names must
    /// stay valid for the pod's life.
    fn answer(&self, grant: &ContainerGrant) -> Result<ContainerAllocateResponse, AnswerError>;

    /// Why a container with these devices may not start with an answer that the kubelet has `stored`.
    fn still_names(
        &self,
        _stored: &ContainerAllocateResponse,
        _entries: &[(DeviceType, DeviceEntry)],
    ) -> Result<(), String> {
        Ok(())
    }

    /// Why a container with a share, by pod uid and name, may not start now although it was served. Where it begins anew, what its
    /// processes counted before goes.
    fn may_start_with_share(&self, _uid: &str, _container: &str, _start: ShareStart) -> Result<(), String> {
        Ok(())
    }

    /// Containers that hold devices, by pod uid and name: what was made for all others goes.
    fn retain(&self, _holds: &dyn Fn(&str, &str) -> bool) {}
}

/// Why a grant could not be turned into an answer. The text ends in the pod's status message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct AnswerError {
    /// What failed, and what to do.
    pub why: String,
    /// What of the machine is to blame; `None` where nothing is.
    pub blame: Option<Blame>,
}

/// Answers from the table of the moment.
pub struct AllocateAnswers {
    options: Arc<AgentOptions>,
    table: ArcSwap<DeviceTable>,
    /// One clean-up at a time: a tenant may have left millions of files, and there are few threads.
    cleaning: Arc<Mutex<()>>,
}

impl AllocateAnswers {
    /// Answers by `options`, from an empty table.
    pub fn new(options: Arc<AgentOptions>) -> Self {
        Self { options, table: ArcSwap::default(), cleaning: Arc::default() }
    }

    /// The hardware changed.
    pub fn replace(&self, table: Arc<DeviceTable>) {
        self.table.store(table);
    }
}

impl Answerer for AllocateAnswers {
    fn answer(&self, grant: &ContainerGrant) -> Result<ContainerAllocateResponse, AnswerError> {
        let table = self.table.load();
        let mut answer = ContainerAllocateResponse::default();
        let of = |kind: &DeviceType| -> Vec<&DeviceEntry> {
            grant.entries.iter().filter(|(of, _)| of == kind).map(|(_, entry)| entry).collect()
        };
        let (gpus, nics) = (of(&DeviceType::Gpu), of(&DeviceType::Rdma));
        if let Some((kind, why)) = grant.entries.iter().find_map(|(kind, _)| table.unwritten.get_key_value(kind)) {
            // The container runtime would find no device of that name, and the container would never start.
            return Err(AnswerError { why: why.clone(), blame: Some(Blame::Node(kind.clone())) });
        }
        if !gpus.is_empty() {
            let find_gpu = if self.options.names_gpu_nodes() { find_node } else { find };
            let parts = gpus.iter().map(|entry| find_gpu(&table, &entry.id, &DeviceType::Gpu));
            let parts = parts.collect::<Result<Vec<_>, _>>()?;
            add_gpus(&mut answer, &parts, &table, &self.options);
            if grant.shares {
                let mut in_container: Vec<_> =
                    gpus.iter().zip(&parts).map(|(entry, (_, of))| (of.bdf, *entry)).collect();
                in_container.sort_by_key(|(bdf, _)| *bdf);
                let in_container: Vec<&DeviceEntry> = in_container.into_iter().map(|(_, entry)| entry).collect();
                answer.envs.extend(share_env(&in_container, self.options.share_isolation));
                match self.options.share_isolation {
                    ShareIsolation::None => {}
                    ShareIsolation::Mps => reach_mps(&mut answer, &self.options.mps_root),
                    ShareIsolation::HamiCore => preload(&mut answer, grant, &self.options)?,
                }
            }
        }
        if !nics.is_empty() {
            let ids = nics.iter().flat_map(|entry| given(entry));
            let parts = ids.map(|id| find_node(&table, id, &DeviceType::Rdma));
            let apart = *grant.resource == *self.options.rdma_vf_resource;
            add_nics(&mut answer, (&parts.collect::<Result<Vec<_>, _>>()?, apart), &table, &self.options);
        }
        Ok(answer)
    }

    /// An answer names devices by numbers where it names device nodes or indexes, and a reboot may give a number to another
    /// device. What the answer names beside, such as control nodes, is no device's own.
    fn still_names(
        &self,
        stored: &ContainerAllocateResponse,
        entries: &[(DeviceType, DeviceEntry)],
    ) -> Result<(), String> {
        let table = self.table.load();
        let paths: BTreeSet<&str> = stored.devices.iter().map(|spec| &*spec.container_path).collect();
        let indexes: BTreeSet<&str> = words(stored).filter(|word| is_index(word)).collect();
        let moved = |id: &DeviceId| {
            format!(
                "{id} does not have the number any more by which the kubelet gives it to this container, as after a reboot; the container is \
                 not started. Delete the pod, so that a new one is given its devices"
            )
        };
        let ids: Vec<&DeviceId> = entries.iter().flat_map(|(_, entry)| given(entry)).collect();
        let mut own = BTreeSet::new();
        for id in &ids {
            let parts = table.devices.get(*id);
            let nodes: BTreeSet<String> =
                parts.into_iter().flat_map(|parts| &parts.nodes).map(|node| text(node)).collect();
            let has_index = |parts: &DeviceNodes| indexes.contains(&*parts.index);
            let is_named = |node: &String| !node.ends_with(SHARED) && paths.contains(&**node);
            let by_node = paths.is_empty() || nodes.iter().any(is_named);
            if !by_node || !indexes.is_empty() && !parts.is_some_and(has_index) {
                return Err(moved(id));
            }
            own.extend(nodes);
        }
        let others = table.devices.iter().filter(|(id, _)| !ids.contains(id));
        let mut of_others = others.flat_map(|(_, parts)| &parts.nodes).map(|node| text(node));
        let foreign = of_others.find(|node| paths.contains(&**node) && !own.contains(node));
        let id = ids.first().filter(|_| foreign.is_some() || !indexes.is_empty() && indexes.len() != ids.len());
        id.map_or(Ok(()), |id| Err(moved(id)))
    }

    fn may_start_with_share(&self, uid: &str, container: &str, start: ShareStart) -> Result<(), String> {
        shares::may_start(&self.options, uid, container, start)
    }

    fn retain(&self, holds: &dyn Fn(&str, &str) -> bool) {
        // Also where shares are not limited any more.
        let left = shares::left_behind(&self.options, holds);
        if left.is_empty() {
            return;
        }
        let turn = self.cleaning.clone();
        tokio::spawn(async move {
            let _turn = turn.lock().await;
            // Files may be missing in the end, and no daemon ends for that.
            let _ = tokio::task::spawn_blocking(move || left.iter().for_each(|directory| remove(directory))).await;
        });
    }
}

fn remove(directory: &Path) {
    if let Err(error) = removal::remove(directory) {
        tracing::warn!(directory = %directory.display(), %error, "what an ended container left cannot be removed");
    }
}

/// The devices that a container gets of an entry: a NIC that is given as virtual functions is not given itself.
fn given(entry: &DeviceEntry) -> Vec<&DeviceId> {
    match entry.vfs() {
        [] => vec![&entry.id],
        vfs => vfs.iter().map(|vf| &vf.bus_id).collect(),
    }
}

/// The device as this machine knows it: what an assignment says is only ever looked up, never used as a name.
fn find<'a>(
    table: &'a DeviceTable,
    id: &DeviceId,
    kind: &DeviceType,
) -> Result<(&'a DeviceId, &'a DeviceNodes), AnswerError> {
    let found = table.devices.get_key_value(id).filter(|(_, parts)| parts.kind == *kind);
    found.ok_or_else(|| AnswerError { why: format!("{kind} {id} is not in this machine"), blame: None })
}

/// The same for an answer that is made of device nodes: a device without one is no answer.
fn find_node<'a>(
    table: &'a DeviceTable,
    id: &DeviceId,
    kind: &DeviceType,
) -> Result<(&'a DeviceId, &'a DeviceNodes), AnswerError> {
    let (id, parts) = find(table, id, kind)?;
    if parts.nodes.is_empty() {
        let why = parts.missing.as_deref().unwrap_or("check the driver there");
        let why = format!("{kind} {id} has no device node on this node: {why}");
        return Err(AnswerError { why, blame: Some(Blame::Device(id.clone())) });
    }
    Ok((id, parts))
}

/// The variable that the NVIDIA runtime reads.
const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
/// Its value for NVIDIA's runtime to add none.
const NO_MORE: &str = "void";
/// Annotation under which older runtimes look for CDI names.
const GPU_ANNOTATION: &str = "cdi.k8s.io/baton_gpu";
/// Directory in the container whose mounts name the GPUs.
const MOUNTED: &str = "/var/run/nvidia-container-devices";

/// Adds GPUs to `answer`, by each of the strategies.
fn add_gpus(
    answer: &mut ContainerAllocateResponse,
    gpus: &[(&DeviceId, &DeviceNodes)],
    table: &DeviceTable,
    options: &AgentOptions,
) {
    let names = || gpus.iter().map(|(id, _)| format!("{}={id}", options.cdi_kind));
    let ids = || {
        gpus.iter().map(|(id, parts)| match options.device_id_strategy {
            DeviceIdStrategy::Uuid => id.to_string(),
            DeviceIdStrategy::Index => parts.index.clone(),
        })
    };
    for strategy in &options.device_list_strategy {
        match strategy {
            DeviceListStrategy::CdiCri => answer.cdi_devices.extend(names().map(|name| CdiDevice { name })),
            DeviceListStrategy::CdiAnnotations => {
                answer.annotations.insert(GPU_ANNOTATION.to_owned(), names().collect::<Vec<_>>().join(","));
            }
            DeviceListStrategy::Envvar => {
                answer.envs.insert(VISIBLE.to_owned(), ids().collect::<Vec<_>>().join(","));
            }
            DeviceListStrategy::VolumeMounts => {
                answer.envs.insert(VISIBLE.to_owned(), MOUNTED.to_owned());
                answer.mounts.extend(ids().map(|id| Mount {
                    container_path: format!("{MOUNTED}/{id}"),
                    host_path: "/dev/null".to_owned(),
                    read_only: true,
                }));
            }
        }
    }
    // CRI-O before 1.34 lets an image's `all` win over the `void` of the CDI file, and NVIDIA's hook adds every GPU then. What the kubelet
    // adds comes after the image's own.
    if !answer.envs.contains_key(VISIBLE) && (!answer.cdi_devices.is_empty() || !answer.annotations.is_empty()) {
        answer.envs.insert(VISIBLE.to_owned(), NO_MORE.to_owned());
    }
    if options.pass_device_specs {
        let own = gpus.iter().flat_map(|(_, parts)| &parts.nodes);
        add_nodes(answer, own.chain(&table.control), table);
    }
}

/// Adds device nodes, each once.
fn add_nodes<'a>(
    answer: &mut ContainerAllocateResponse,
    nodes: impl Iterator<Item = &'a PathBuf>,
    table: &DeviceTable,
) {
    for node in nodes {
        let path = text(node);
        if answer.devices.iter().all(|spec| spec.container_path != path) {
            answer.devices.push(DeviceSpec {
                container_path: path,
                host_path: text(&table.on_host(node)),
                permissions: "rw".to_owned(),
            });
        }
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// CDI kind of NICs.
pub const RDMA_KIND: &str = "koordinator.sh/rdma";
/// The variable that lists the PCI addresses of the container's NICs.
const ADDRESSES: &str = "PCIDEVICE_KOORDINATOR_SH_RDMA";
/// Annotation under which older runtimes look for CDI names; another key than the GPUs', because the kubelet keeps one.
const RDMA_ANNOTATION: &str = "cdi.k8s.io/baton_rdma";

/// The same two for virtual functions under a name of their own: a container may have a NIC beside them. The variable's name is the one
/// that the SR-IOV device plugin makes of a resource's.
const FUNCTIONS_ANNOTATION: &str = "cdi.k8s.io/baton_rdma_vf";
fn functions_variable(resource: &str) -> String {
    let name: String =
        resource.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
    format!("PCIDEVICE_{name}")
}

/// Adds NICs, or virtual functions that are a resource apart, to `answer`. Where no CDI strategy is chosen, the device nodes go into the answer themselves: the other
/// strategies are the NVIDIA runtime's and know no NICs.
fn add_nics(
    answer: &mut ContainerAllocateResponse,
    (nics, apart): (&[(&DeviceId, &DeviceNodes)], bool),
    table: &DeviceTable,
    options: &AgentOptions,
) {
    let (variable, annotation) = if apart {
        (functions_variable(&options.rdma_vf_resource), FUNCTIONS_ANNOTATION)
    } else {
        (ADDRESSES.to_owned(), RDMA_ANNOTATION)
    };
    let names = || nics.iter().map(|(id, _)| format!("{RDMA_KIND}={id}"));
    let addresses: Vec<&str> = nics.iter().map(|(id, _)| id.as_str()).collect();
    answer.envs.insert(variable, addresses.join(","));
    let chosen = |strategy| options.device_list_strategy.contains(&strategy);
    if chosen(DeviceListStrategy::CdiCri) {
        answer.cdi_devices.extend(names().map(|name| CdiDevice { name }));
    }
    if chosen(DeviceListStrategy::CdiAnnotations) {
        answer.annotations.insert(annotation.to_owned(), names().collect::<Vec<_>>().join(","));
    }
    let by_cdi = chosen(DeviceListStrategy::CdiCri) || chosen(DeviceListStrategy::CdiAnnotations);
    if options.pass_device_specs || !by_cdi {
        add_nodes(answer, nics.iter().flat_map(|(_, parts)| &parts.nodes), table);
    }
}

/// Devices that an answer names, by whichever strategies it was built. Empty where it names some other than by their ids.
pub fn named(answer: &ContainerAllocateResponse) -> BTreeSet<DeviceId> {
    let lists = [GPU_ANNOTATION, RDMA_ANNOTATION].into_iter().filter_map(|key| answer.annotations.get(key));
    let cdi = answer.cdi_devices.iter().map(|device| &*device.name).chain(lists.flat_map(|list| list.split(',')));
    let cdi = cdi.filter(|name| !name.starts_with(shares::SHARE_KIND));
    let of_cdi = cdi.filter_map(|name| name.split_once('=').map(|(_, id)| id));
    let ids = of_cdi.chain(words(answer)).map(|word| {
        let is_id = word.starts_with("GPU-") || word.starts_with("MIG-") || word.parse::<Bdf>().is_ok();
        DeviceId::parse(word).ok().filter(|_| is_id)
    });
    ids.collect::<Option<_>>().unwrap_or_default()
}

/// What an answer names beside CDI names: ids, or indexes.
fn words(answer: &ContainerAllocateResponse) -> impl Iterator<Item = &str> {
    let variables = [VISIBLE, ADDRESSES].into_iter().filter_map(|key| answer.envs.get(key));
    let mounts = answer.mounts.iter().filter_map(|mount| mount.container_path.strip_prefix(MOUNTED)?.strip_prefix('/'));
    // `/var/run/nvidia-container-devices` stands for the mounts.
    let words = variables.flat_map(|list| list.split(',')).chain(mounts);
    words.filter(|word| !word.is_empty() && !word.starts_with('/') && *word != NO_MORE)
}

/// `3`, or `3:0` for a MIG device.
fn is_index(word: &str) -> bool {
    word.split(':').all(|number| number.parse::<u32>().is_ok()) && word.split(':').count() < 3
}

const MIB: i64 = 1 << 20;
/// Where NVIDIA's plugin puts the MPS control daemon's pipe in a container: below `/mps`, by resource name.
const MPS_PIPE: &str = "/mps/nvidia.com/gpu/pipe";

/// Variables of a share over `entries`, in the order of the container's devices: by PCI address, as NVML counts them. CUDA does so
/// only where `CUDA_DEVICE_ORDER` is `PCI_BUS_ID`; by default it puts the fastest first (CUDA programming guide, "CUDA environment
/// variables"). So where the limits differ, and a mistaken number would matter, the order is said too.
fn share_env(entries: &[&DeviceEntry], isolation: ShareIsolation) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    // One number for all devices of the container: the smallest, so that no device is overused.
    let core = entries.iter().map(|entry| entry.amount(key::GPU_CORE)).filter(|core| *core > 0).min();
    let memory: Vec<(usize, i64)> = entries
        .iter()
        .enumerate()
        .map(|(at, entry)| (at, entry.amount(key::GPU_MEMORY) / MIB))
        .filter(|(_, mib)| *mib > 0)
        .collect();
    for (at, mib) in &memory {
        env.insert(format!("CUDA_DEVICE_MEMORY_LIMIT_{at}"), format!("{mib}m"));
    }
    if memory.windows(2).any(|pair| pair[0].1 != pair[1].1) {
        env.insert("CUDA_DEVICE_ORDER".to_owned(), "PCI_BUS_ID".to_owned());
    }
    if let Some(core) = core {
        env.insert("CUDA_DEVICE_SM_LIMIT".to_owned(), core.to_string());
    }
    if isolation == ShareIsolation::Mps {
        if let Some(core) = core {
            env.insert("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".to_owned(), core.to_string());
        }
        if !memory.is_empty() {
            let limits: Vec<String> = memory.iter().map(|(at, mib)| format!("{at}={mib}M")).collect();
            env.insert("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT".to_owned(), limits.join(","));
        }
    }
    env
}

/// The way to the MPS control daemon whose files lie below `root` on the host, as NVIDIA's plugin gives it: the pipe's
/// directory, named in the environment, and the shared memory that client and server meet in.
fn reach_mps(answer: &mut ContainerAllocateResponse, root: &Path) {
    answer.envs.insert("CUDA_MPS_PIPE_DIRECTORY".to_owned(), MPS_PIPE.to_owned());
    for (container_path, below) in [(MPS_PIPE, "nvidia.com/gpu/pipe"), ("/dev/shm", "shm")] {
        let host_path = root.join(below).to_string_lossy().into_owned();
        answer.mounts.push(Mount { container_path: container_path.to_owned(), host_path, read_only: false });
    }
}

/// Has HAMi-core loaded into every process of the container.
fn preload(
    answer: &mut ContainerAllocateResponse,
    grant: &ContainerGrant,
    options: &AgentOptions,
) -> Result<(), AnswerError> {
    // SharesUnavailable takes shares alone out of service; a suspect node would lose its whole GPUs, too.
    let refused = |why| AnswerError { why, blame: None };
    shares::mount_own(answer, options, grant.pod.uid.as_str(), &grant.container).map_err(refused)?;
    let chosen = |strategy| options.device_list_strategy.contains(&strategy);
    if chosen(DeviceListStrategy::CdiCri) {
        answer.cdi_devices.push(CdiDevice { name: shares::cdi_name() });
    }
    if let Some(names) = answer.annotations.get_mut(GPU_ANNOTATION) {
        names.extend([",", &*shares::cdi_name()]);
    }
    if !options.by_cdi() {
        shares::mount_common(answer, options);
    }
    Ok(())
}

#[cfg(test)]
#[path = "answers_tests.rs"]
mod tests;
