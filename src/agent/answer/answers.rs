//! Turns a grant into the kubelet's words.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::table::{Parts, Table};
use super::{gpu, rdma, share};
use crate::agent::grant::{AnswerError, Answerer, Grant};
use crate::agent::options::Options;
use crate::contract::deviceplugin::ContainerAllocateResponse;
use crate::contract::{DeviceEntry, DeviceId, DeviceType};

/// Answers from the table of the moment.
pub struct Answers {
    options: Arc<Options>,
    table: ArcSwap<Table>,
}

impl Answers {
    /// Answers by `options`, from an empty table.
    pub fn new(options: Arc<Options>) -> Self {
        Self { options, table: ArcSwap::default() }
    }

    /// The hardware changed.
    pub fn replace(&self, table: Arc<Table>) {
        self.table.store(table);
    }
}

impl Answerer for Answers {
    fn answer(&self, grant: &Grant) -> Result<ContainerAllocateResponse, AnswerError> {
        let table = self.table.load();
        let mut answer = ContainerAllocateResponse::default();
        let of = |kind: &DeviceType| -> Vec<&DeviceEntry> {
            grant.entries.iter().filter(|(of, _)| of == kind).map(|(_, entry)| entry).collect()
        };
        let (gpus, nics) = (of(&DeviceType::Gpu), of(&DeviceType::Rdma));
        if !gpus.is_empty() {
            let parts =
                gpus.iter().map(|entry| find(&table, &entry.id, &DeviceType::Gpu, self.options.names_gpu_nodes()));
            let parts = parts.collect::<Result<Vec<_>, _>>()?;
            gpu::add(&mut answer, &parts, &table, &self.options);
            if grant.shares {
                let mut in_container: Vec<_> =
                    gpus.iter().zip(&parts).map(|(entry, (_, of))| (of.bdf, *entry)).collect();
                in_container.sort_by_key(|(bdf, _)| *bdf);
                let in_container: Vec<&DeviceEntry> = in_container.into_iter().map(|(_, entry)| entry).collect();
                answer.envs.extend(share::env(&in_container, self.options.mps));
                if self.options.mps {
                    share::reach_mps(&mut answer, &self.options.mps_root);
                }
            }
        }
        if !nics.is_empty() {
            // A NIC that is given as virtual functions is not given itself.
            let ids = nics.iter().flat_map(|entry| match &entry.extension {
                Some(extension) if !extension.vfs.is_empty() => extension.vfs.iter().map(|vf| &vf.bus_id).collect(),
                _ => vec![&entry.id],
            });
            let parts = ids.map(|id| find(&table, id, &DeviceType::Rdma, true));
            rdma::add(&mut answer, &parts.collect::<Result<Vec<_>, _>>()?, &table, &self.options);
        }
        Ok(answer)
    }
}

/// The device as this machine knows it: what an assignment says is only ever looked up, never used as a name. Where the
/// answer is made of device nodes, one without a node is no answer.
fn find<'a>(
    table: &'a Table,
    id: &DeviceId,
    kind: &DeviceType,
    by_node: bool,
) -> Result<(&'a DeviceId, &'a Parts), AnswerError> {
    let found = table.devices.get_key_value(id).filter(|(_, parts)| parts.kind == *kind);
    let (id, parts) = found.ok_or_else(|| AnswerError(format!("{kind} {id} is not in this machine")))?;
    if by_node && parts.nodes.is_empty() {
        return Err(AnswerError(format!("{kind} {id} has no device node on this node; check the driver there")));
    }
    Ok((id, parts))
}

#[cfg(test)]
#[path = "answers_tests.rs"]
mod tests;
