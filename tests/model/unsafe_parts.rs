//! Parts of the negative models that the shipping functions keep to themselves.

use baton::decide::handoff::identify::Caller;
use baton::decide::handoff::ledger::Slot;
use baton::decide::handoff::validate::Devices;
use baton::decide::handoff::{Call, Entry, Serving, State};

/// A grant of `devices`, as the decision would record it.
pub fn serving(call: &Call<'_>, caller: &Caller<'_>, devices: Devices) -> Serving {
    let entry = Entry {
        pod: caller.pod.pod.clone(),
        container: caller.container.name.clone(),
        resource: call.resource.into(),
        slot: Slot::of(caller.pod, &caller.container.name),
        ids: call.ids.iter().map(|id| id.as_str().into()).collect(),
        served: devices.served,
        answer: None,
        state: State::Intent,
        asked: 1,
        seq: 0,
        assigned: devices.assigned,
    };
    Serving { entry, how: caller.how, shares: devices.shares, mismatch: devices.mismatch, notices: Vec::new() }
}
