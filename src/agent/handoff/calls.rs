//! The kubelet's calls beside Allocate: GetPreferredAllocation, which steers the kubelet to the assigned devices, and the barrier
//! before a container starts.

use std::sync::Arc;
use std::time::Duration;

use tonic::Status;

use super::service::{CallReads, HandoffService, LastPreference, MAX_ROUNDS, RESERVE};
use baton_contract::ShareIsolation;
use baton_contract::deviceplugin::{
    ContainerPreferredAllocationResponse, PreStartContainerRequest, PreferredAllocationRequest,
    PreferredAllocationResponse,
};
use baton_decide::handoff::prefer::{self, Preference, PreferenceOrder};
use baton_decide::handoff::verify::{may_start, share_to_start};
use baton_decide::handoff::{AllocateCall, EntryKey, PodResources};
use baton_runtime::clock;

impl HandoffService {
    /// Steers the kubelet to the assigned devices. Never fails: what is not known is filled with available ids.
    pub(super) async fn prefer(
        &self,
        resource: &str,
        request: PreferredAllocationRequest,
    ) -> PreferredAllocationResponse {
        let deadline = clock::mono() + self.settings.budget.saturating_sub(RESERVE) / 2;
        let mut response = PreferredAllocationResponse::default();
        let single = request.container_requests.len() == 1;
        for asked in &request.container_requests {
            let size = usize::try_from(asked.allocation_size).unwrap_or(0);
            let left = deadline.saturating_sub(clock::mono());
            let prepared = self.prepare(resource, asked.allocation_size, deadline);
            let (order, found) = tokio::time::timeout(left, prepared).await.ok().flatten().unwrap_or_default();
            let ids = prefer::pick(&order, &asked.available_device_i_ds, &asked.must_include_device_i_ds, size);
            if let (true, Some((key, resources)), Ok(mut state)) = (single, found, self.state.try_lock())
                && let Some(state) = state.as_mut()
            {
                let ids = ids.iter().cloned().collect();
                let at = clock::mono();
                state.preference = Some(LastPreference { resource: resource.into(), ids, at, key, resources });
            }
            response.container_responses.push(ContainerPreferredAllocationResponse { device_i_ds: ids });
        }
        response
    }

    async fn prepare(
        &self,
        resource: &str,
        count: i32,
        deadline: Duration,
    ) -> Option<(PreferenceOrder, Option<(EntryKey, Arc<PodResources>)>)> {
        self.is_ready_before(resource, deadline).await.ok()?;
        let mut guard = self.state.lock().await;
        let state = guard.as_mut()?;
        self.reconcile_restarts(state);
        let call = AllocateCall { resource, count: i64::from(count), ids: &[] };
        let resources = Arc::new(self.list(state, deadline).await);
        let mut reads = CallReads::new("GetPreferredAllocation", deadline, &self.context.view);
        while reads.rounds < MAX_ROUNDS {
            match self.with_context(state, &resources, &reads.fresh, |context| prefer::preference(context, &call)) {
                Preference::Order(order, key) => return Some((order, key.map(|key| (key, resources)))),
                Preference::NeedLive(wanted) => self.learn_more(&mut reads, wanted, resource).await.ok()?,
            }
        }
        None
    }

    /// Refuses a start of a container whose GPU share would not be limited, and with the start barrier on one whose committed devices
    /// are not the assignment; the kubelet tries again.
    pub(super) async fn verify_start(&self, resource: &str, request: PreStartContainerRequest) -> Result<(), Status> {
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
        if let Some(share) = share_to_start(resource, &request.devices_ids, &state.ledger).filter(|_| limits_shares) {
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
        may_start(resource, &request.devices_ids, &state.ledger, &seen.pods).map_err(Status::failed_precondition)
    }
}
