//! Parts of the negative models that the shipping functions keep to themselves.

use baton::decide::handoff::identify::Caller;
use baton::decide::handoff::ledger::ContainerSlot;
use baton::decide::handoff::validate::ServedDevices;
use baton::decide::handoff::{AllocateCall, CallState, LedgerEntry, NewGrant};

/// A grant of `devices`, as the decision would record it.
pub fn serving(call: &AllocateCall<'_>, caller: &Caller<'_>, devices: ServedDevices) -> NewGrant {
    let (pod, container) = (&caller.pod.pod, &caller.container.name);
    let slot = ContainerSlot::of(caller.pod, container);
    let ids = call.ids.iter().map(|id| id.as_str().into()).collect();
    let entry = LedgerEntry::new(pod, container, call.resource, slot, ids, devices.served, CallState::Answered);
    let entry = LedgerEntry { assigned: devices.assigned, ..entry };
    NewGrant { entry, how: caller.how, shares: devices.shares, mismatch: devices.mismatch, notices: Vec::new() }
}
