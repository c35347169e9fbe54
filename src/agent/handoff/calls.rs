//! The kubelet's calls beside Allocate: GetPreferredAllocation, which steers the kubelet to the assigned devices, and the gate before a
//! container starts: its devices may still be used by processes of a pod that has left.

use std::time::Duration;

use prost::Message as _;
use tonic::Status;

use super::checkpoint::stored_answers;
use super::service::{Asks, HandoffService};
use crate::shares::ShareStart;
use baton_contract::deviceplugin::{
    ContainerAllocateResponse, ContainerPreferredAllocationResponse, PreStartContainerRequest,
    PreferredAllocationRequest, PreferredAllocationResponse,
};
use baton_contract::{PodUid, ShareIsolation};
use baton_decide::handoff::CgroupLook;
use baton_decide::handoff::verify::{may_start, none_runs, shares_to_start, to_start};
use baton_decide::node::{CallEffect, Preferring, StartEffect, Starting, Time, Wish};
use baton_runtime::clock;

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
        let mut starting = Starting::new(resource, ids.to_vec(), clock::mono());
        loop {
            let pause = self.look_before_start(&mut starting).await?;
            let Some(pause) = pause else { return Ok(()) };
            tokio::time::sleep(pause).await;
        }
    }

    /// `None` where nothing is in the way, else when to look again.
    async fn look_before_start(&self, starting: &mut Starting) -> Result<Option<Duration>, Status> {
        let mut state = self.state.lock().await;
        let mut of = state.as_mut().map(|state| &mut state.hand_off);
        let mut effects = self.with_facts(|facts| starting.look(of.as_deref(), facts));
        loop {
            let mut looks = Vec::new();
            for effect in std::mem::take(&mut effects) {
                match effect {
                    StartEffect::Look(uids) => looks = self.looks(uids),
                    StartEffect::Waits { why, notice } => {
                        tracing::info!(why, "a container's start waits");
                        notice.into_iter().for_each(|notice| self.context.api.report(notice));
                    }
                    StartEffect::Start => return Ok(None),
                    StartEffect::Wait(pause) => return Ok(Some(pause)),
                    StartEffect::Refuse(why) => return Err(Status::unavailable(why)),
                }
            }
            let Some(of) = of.as_deref_mut() else { return Ok(None) };
            effects = self.with_facts(|facts| starting.looked(&looks, of, facts));
        }
    }

    /// Refuses a start where what the kubelet has stored names devices by numbers that are other devices' now: it asks once for each
    /// container, and gives that answer each time that the container starts.
    async fn answer_still_names(&self, resource: &str, ids: &[String]) -> Result<(), Status> {
        let state = self.state.lock().await;
        let Some(state) = state.as_ref() else { return Ok(()) };
        let entries = to_start(resource, ids, state.hand_off.ledger()).filter(|entry| entry.leaving().is_none());
        let judged = entries.map(|entry| {
            // A rebuilt entry has no answer where that does not name its devices by their ids.
            let kept = || stored_answers(&self.settings.kubelet_dir).remove(&entry.key()).map(|stored| stored.encoded);
            let stored = entry.answer.clone().or_else(kept).unwrap_or_default();
            let stored = ContainerAllocateResponse::decode(&*stored).unwrap_or_default();
            let given: Vec<_> = entry.to_answer().cloned().collect();
            self.context.answerer.still_names(&stored, &given)
        });
        let judged: Vec<Result<(), String>> = judged.collect();
        // One of them is the container's.
        match judged.into_iter().reduce(Result::or) {
            Some(Err(why)) => Err(Status::failed_precondition(format!("{resource}: {why}"))),
            _ => Ok(()),
        }
    }

    /// What the cgroups of these pods show.
    pub(super) fn looks(&self, uids: Vec<PodUid>) -> Vec<(PodUid, CgroupLook)> {
        uids.into_iter().map(|uid| (uid.clone(), self.context.cgroups.look(&uid))).collect()
    }

    /// Refuses a start of a container whose GPU share would not be limited, and with the start barrier on one whose committed devices
    /// are not the assignment; the kubelet tries again.
    pub(super) async fn verify_start(&self, resource: &str, request: PreStartContainerRequest) -> Result<(), Status> {
        self.devices_vacated(resource, &request.devices_ids).await?;
        self.answer_still_names(resource, &request.devices_ids).await?;
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
        let shares = shares_to_start(resource, &request.devices_ids, state.hand_off.ledger());
        if limits_shares && !shares.is_empty() {
            let lasts: Result<(), String> = offer.unavailable.map_or(Ok(()), |why| Err(why.into()));
            let start = if none_runs(&shares) { ShareStart::Anew } else { ShareStart::Beside };
            let may = lasts.and_then(|()| {
                let answerer = &self.context.answerer;
                let mut named = shares.iter().map(|share| (share.pod.uid.as_str(), &*share.container));
                named.try_for_each(|(uid, container)| answerer.may_start_with_share(uid, container, start))
            });
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
