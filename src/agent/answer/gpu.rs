//! GPUs in an answer, by each of the strategies.

use std::path::Path;

use super::table::{Parts, Table};
use crate::agent::choice::{DeviceIdStrategy, DeviceListStrategy};
use crate::agent::options::Options;
use crate::contract::DeviceId;
use crate::contract::deviceplugin::{CdiDevice, ContainerAllocateResponse, DeviceSpec, Mount};

/// The variable that the NVIDIA runtime reads.
pub const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
/// Annotation under which older runtimes look for CDI names.
pub const ANNOTATION: &str = "cdi.k8s.io/baton_gpu";
/// Directory in the container whose mounts name the GPUs.
const MOUNTED: &str = "/var/run/nvidia-container-devices";

/// Adds `gpus` to `answer`.
pub fn add(answer: &mut ContainerAllocateResponse, gpus: &[(&DeviceId, &Parts)], table: &Table, options: &Options) {
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
                answer.annotations.insert(ANNOTATION.to_owned(), names().collect::<Vec<_>>().join(","));
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
    if options.pass_device_specs {
        let own = gpus.iter().flat_map(|(_, parts)| &parts.nodes);
        add_nodes(answer, own.chain(&table.control), table);
    }
}

/// Adds device nodes, each once.
pub fn add_nodes<'a>(
    answer: &mut ContainerAllocateResponse,
    nodes: impl Iterator<Item = &'a std::path::PathBuf>,
    table: &Table,
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
