//! NICs in an answer: their character devices, and their addresses in the environment.

use super::gpu::add_nodes;
use super::table::{Parts, Table};
use crate::agent::choice::DeviceListStrategy;
use crate::agent::options::Options;
use crate::contract::DeviceId;
use crate::contract::deviceplugin::{CdiDevice, ContainerAllocateResponse};

/// CDI kind of NICs.
pub const KIND: &str = "koordinator.sh/rdma";
/// The variable that lists the PCI addresses of the container's NICs.
pub const ADDRESSES: &str = "PCIDEVICE_KOORDINATOR_SH_RDMA";
/// Annotation under which older runtimes look for CDI names; another key than the GPUs', because the kubelet keeps one.
pub const ANNOTATION: &str = "cdi.k8s.io/baton_rdma";

/// Adds `nics` to `answer`. Where no CDI strategy is chosen, the device nodes go into the answer themselves: the other
/// strategies are the NVIDIA runtime's and know no NICs.
pub fn add(answer: &mut ContainerAllocateResponse, nics: &[(&DeviceId, &Parts)], table: &Table, options: &Options) {
    let names = || nics.iter().map(|(id, _)| format!("{KIND}={id}"));
    let addresses: Vec<&str> = nics.iter().map(|(id, _)| id.as_str()).collect();
    answer.envs.insert(ADDRESSES.to_owned(), addresses.join(","));
    let chosen = |strategy| options.device_list_strategy.contains(&strategy);
    if chosen(DeviceListStrategy::CdiCri) {
        answer.cdi_devices.extend(names().map(|name| CdiDevice { name }));
    }
    if chosen(DeviceListStrategy::CdiAnnotations) {
        answer.annotations.insert(ANNOTATION.to_owned(), names().collect::<Vec<_>>().join(","));
    }
    let by_cdi = chosen(DeviceListStrategy::CdiCri) || chosen(DeviceListStrategy::CdiAnnotations);
    if options.pass_device_specs || !by_cdi {
        add_nodes(answer, nics.iter().flat_map(|(_, parts)| &parts.nodes), table);
    }
}
