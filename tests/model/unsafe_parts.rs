//! Parts of the negative models that the shipping functions keep to themselves.

use baton::decide::handoff::identify::Caller;
use baton::decide::handoff::ledger::ContainerSlot;
use baton::decide::handoff::validate::ServedDevices;
use baton::decide::handoff::{AllocateCall, GrantState, LedgerEntry, NewGrant};

/// A grant of `devices`, as the decision would record it.
pub fn serving(call: &AllocateCall<'_>, caller: &Caller<'_>, devices: ServedDevices) -> NewGrant {
    let entry = LedgerEntry {
        pod: caller.pod.pod.clone(),
        container: caller.container.name.clone(),
        resource: call.resource.into(),
        slot: ContainerSlot::of(caller.pod, &caller.container.name),
        ids: call.ids.iter().map(|id| id.as_str().into()).collect(),
        served: devices.served,
        answer: None,
        state: GrantState::Intent,
        asked: 1,
        seq: 0,
        assigned: devices.assigned,
        grace_seconds: 30,
    };
    NewGrant { entry, how: caller.how, shares: devices.shares, mismatch: devices.mismatch, notices: Vec::new() }
}
