//! The kubelet's calls beside Allocate: GetPreferredAllocation, which steers the kubelet to the assigned devices, and the gate before a
//! container starts: its devices may still be used by processes of a pod that has left.

use std::collections::BTreeSet;
use std::time::Duration;

use tonic::Status;

use super::service::{Asks, HandoffService, HandoffState};
use baton_contract::deviceplugin::{
    ContainerPreferredAllocationResponse, PreStartContainerRequest, PreferredAllocationRequest,
    PreferredAllocationResponse,
};
use baton_contract::{DeviceId, EventReason, PodRef, PodUid, ShareIsolation};
use baton_decide::handoff::leaving::held_start;
use baton_decide::handoff::verify::{may_start, share_to_start};
use baton_decide::handoff::{Hold, LedgerEntry, PodNotice};
use baton_decide::node::{CallEffect, Preferring, Time, Wish};
use baton_decide::world::still_used;
use baton_runtime::clock;

/// A start is refused after waiting for so long: the kubelet gives up after 30 s.
const GATE: Duration = Duration::from_secs(20);
/// Between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// What waits longer is reported.
const SAID: Duration = Duration::from_secs(2);

/// What a pod's owner reads while its container waits.
fn why_held(device: &DeviceId, user: &LedgerEntry) -> String {
    let used = user.left().map_or_else(|| format!("used by processes of {}", user.pod.key), |pod| still_used(&pod));
    format!("{device} is {used}: the container starts once they have ended")
}

impl HandoffService {
    /// Steers the kubelet to the assigned devices. Never fails: what is not known is filled with available ids.
    pub(super) async fn prefer(
        &self,
        resource: &str,
        request: PreferredAllocationRequest,
    ) -> PreferredAllocationResponse {
        let began = clock::mono();
        let time = Time::new(began, self.settings.budget).half(began);
        let mut response = PreferredAllocationResponse::default();
        let single = request.container_requests.len() == 1;
        for asked in request.container_requests {
            let size = usize::try_from(asked.allocation_size).unwrap_or(0);
            let wish = Wish { available: asked.available_device_i_ds, must: asked.must_include_device_i_ds, size };
            let mut call = Preferring::new(resource, wish, time, single);
            let left = time.deadline.saturating_sub(clock::mono());
            let preferred = tokio::time::timeout(left, self.prefer_before(resource, &mut call, time.deadline)).await;
            let ids = preferred.ok().flatten().unwrap_or_else(|| call.unknown());
            response.container_responses.push(ContainerPreferredAllocationResponse { device_i_ds: ids });
        }
        response
    }

    async fn prefer_before(&self, resource: &str, call: &mut Preferring, deadline: Duration) -> Option<Vec<String>> {
        self.is_ready_before(resource, deadline).await.ok()?;
        let mut guard = self.state.lock().await;
        let state = guard.as_mut()?;
        self.deliver_events(state);
        let mut effects = self.with_facts(|facts| call.begin(facts)).into_iter();
        let mut asks = Asks { call: "GetPreferredAllocation", deadline };
        loop {
            let effect = effects.next()?;
            if let CallEffect::Prefer(ids) = effect {
                return Some(ids);
            }
            if let Some(report) = self.perform(effect, &mut asks).await {
                effects = self.with_facts(|facts| call.report(report, &mut state.hand_off, facts)).into_iter();
            }
        }
    }

    /// Waits until no other pod's processes use the devices of the container that the kubelet is about to start. The kubelet starts other
    /// pods meanwhile, and tries again what is refused.
    async fn devices_vacated(&self, resource: &str, ids: &[String]) -> Result<(), Status> {
        let began = clock::mono();
        let mut reported = false;
        loop {
            let held = {
                let mut state = self.state.lock().await;
                let Some(state) = state.as_mut() else {
                    let why = "the ledger is not known yet; the start is tried again";
                    return Err(Status::unavailable(format!("{resource}: {why}")));
                };
                self.held_start(state, resource, ids)
            };
            let Some((why, pod)) = held else { return Ok(()) };
            let waited = clock::mono().saturating_sub(began);
            if waited >= SAID && !reported {
                reported = true;
                tracing::info!(resource, why, "a container's start waits");
                pod.into_iter().for_each(|pod| {
                    self.context.api.report(PodNotice::new(pod, EventReason::DevicesStillUsed, why.clone()));
                });
            }
            if waited >= GATE {
                return Err(Status::unavailable(why));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Why the container must wait, and its pod.
    fn held_start(&self, state: &mut HandoffState, resource: &str, ids: &[String]) -> Option<(String, Option<PodRef>)> {
        let inventory = self.context.inventory.load();
        let (ledger, processes) = state.hand_off.parts();
        // In the usual case no cgroup has to be looked at. Each round shows pods that are gone, until one is not or none is left.
        let mut looked = BTreeSet::new();
        loop {
            let now = clock::mono();
            let gone = |entry: &LedgerEntry| processes.hold(entry, now) != Hold::Held;
            let held = held_start(resource, ids, ledger, &inventory, gone, |uid| processes.is_found(uid))?;
            let new: Vec<PodUid> = held.users.iter().filter(|uid| looked.insert((*uid).clone())).cloned().collect();
            for uid in &new {
                processes.saw(uid, self.context.cgroups.look(uid), false, now);
            }
            if new.is_empty() {
                // Shares that wait themselves are no reason.
                let users = held.users.iter().filter_map(|uid| ledger.of_pod(uid).next());
                let user = users.max_by_key(|entry| entry.leaving().is_some())?;
                return Some((why_held(&held.device, user), held.pod));
            }
        }
    }

    /// Refuses a start of a container whose GPU share would not be limited, and with the start barrier on one whose committed devices
    /// are not the assignment; the kubelet tries again.
    pub(super) async fn verify_start(&self, resource: &str, request: PreStartContainerRequest) -> Result<(), Status> {
        self.devices_vacated(resource, &request.devices_ids).await?;
        let offer = self.context.inventory.load().shares.clone();
        let limits_shares = offer.isolation != ShareIsolation::None;
        if !self.settings.verify_before_start && !limits_shares {
            return Ok(());
        }
        let state = self.state.lock().await;
        let Some(state) = state.as_ref() else {
            return Err(Status::unavailable(format!(
                "{resource}: the ledger is not known yet; the start is tried again"
            )));
        };
        if let Some(share) =
            share_to_start(resource, &request.devices_ids, state.hand_off.ledger()).filter(|_| limits_shares)
        {
            let lasts: Result<(), String> = offer.unavailable.map_or(Ok(()), |why| Err(why.into()));
            let may = lasts
                .and_then(|()| self.context.answerer.may_start_with_share(share.pod.uid.as_str(), &share.container));
            may.map_err(|why| {
                let why =
                    format!("{resource}: the limits of its GPU share cannot be enforced now: {why}; it is not started");
                Status::failed_precondition(why)
            })?;
        }
        if !self.settings.verify_before_start {
            return Ok(());
        }
        let seen = self.context.view.seen();
        may_start(resource, &request.devices_ids, state.hand_off.ledger(), &seen.pods)
            .map_err(Status::failed_precondition)
    }
}
