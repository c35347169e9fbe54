//! The leader: made when there is a place, watched while it lives, and the end of an attempt when it is lost.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::draft::{Draft, clear, set};
use super::effect::{JobEffect, PodEffect};
use super::pod::{overridden_env, pod_of};
use super::restarts::is_spent;
use super::view::{CreateFailure, ImageWait, NodeReachability, PodView};
use crate::pod::Phase;
use baton_contract::tyjob::{ScheduleState, Stage, TyJobSpec, condition};
use baton_contract::{ConditionReason, EventReason};

/// An image that cannot be pulled is tried for this long.
const IMAGE_PATIENCE: SignedDuration = SignedDuration::from_secs(5 * 60);

impl Draft<'_> {
    /// Pending or Rescheduling: makes the leader where the scheduler placed it.
    pub(super) fn wait_for_place(&mut self) {
        let leader = self.spec.leader_pod(self.name);
        let state = self.status.schedule_state;
        // Made before and not written as started: the pod's own state counts, whether its place still stands or not.
        let made = self.pods_by_name().get(leader.as_str()).copied();
        if let Some(pod) = made.filter(|pod| pod.phase == Phase::Succeeded) {
            return self.start(pod);
        }
        if state == Some(ScheduleState::ScheduledFailed) {
            let why = self.status.condition(condition::SCHEDULED).map_or("", |found| found.message.as_str());
            return self.end(Stage::Failed, format!("the job does not fit into the cluster: {why}"));
        }
        if let Some(pod) = made.filter(|pod| pod.deleting.is_none()) {
            return self.start(pod);
        }
        let placed = matches!(state, Some(ScheduleState::ScheduledSucceed | ScheduleState::ScheduledPartly));
        let Some(place) = self.allocation(&leader).filter(|_| placed).cloned() else {
            self.status.message = Some(format!("attempt {} waits for a place", self.status.attempt));
            return;
        };
        match self.holder(&leader) {
            None => {
                // Written before the pod is made: what is edited from then on comes after the start.
                self.accept();
                let member = self.spec.leader_member(self.name);
                let body = pod_of(self.view, &self.spec, &member, &place, None);
                self.status.message = Some(match self.view.trouble.and_then(|trouble| trouble.get(&leader)) {
                    None => format!("the leader {leader} is being made for {}", place.node),
                    Some(CreateFailure::Foreign(whose)) => {
                        format!("the leader cannot be made: the name {leader} is taken: {whose}")
                    }
                    Some(CreateFailure::Refused(why) | CreateFailure::Invalid(why)) => {
                        format!("the leader {leader} cannot be made: the API server refuses it: {why}")
                    }
                });
                self.effects.push(JobEffect::Pod(PodEffect::Create { name: leader, body }));
            }
            // The job's own pod of another attempt, or terminating: its name is not free yet.
            Some(_) => self.status.message = Some(format!("the former pod {leader} is not gone yet")),
        }
    }

    fn start(&mut self, leader: &PodView) {
        self.status.stage = Some(Stage::Starting);
        self.status.start_time.get_or_insert(Time(self.now));
        self.spec = self.view.job.spec_at_start(&self.spec);
        self.accept();
        self.status.message = Some(format!("the leader {} is made and has no address yet", leader.name));
        self.report_overridden(None);
    }

    /// Variables that templates set themselves, of parts that `former` does not have.
    pub(super) fn report_overridden(&mut self, former: Option<&TyJobSpec>) {
        for (place, name) in overridden_env(&self.spec, former) {
            self.warning(EventReason::EnvOverridden, format!("{place} sets {name} itself: its value is kept"));
        }
    }

    /// Starting or Running.
    pub(super) fn work(&mut self) {
        let name = self.spec.leader_pod(self.name);
        let leader = self.pods_by_name().get(name.as_str()).copied();
        if leader.is_some_and(|pod| pod.phase == Phase::Succeeded) {
            self.count_workers();
            return self.end(Stage::Succeeded, format!("the leader {name} succeeded"));
        }
        let known = self.status.leader_address.as_deref();
        let alive = leader.filter(|pod| !pod.phase.is_terminal());
        let moved = alive.and_then(|pod| pod.ip.as_deref()).filter(|ip| known.is_some_and(|known| known != *ip));
        let lost = match leader {
            None => Some("is gone".to_owned()),
            Some(pod) if pod.phase == Phase::Failed => {
                Some(format!("failed: {}", pod.failure.as_deref().unwrap_or("no reason given")))
            }
            Some(pod) if pod.deleting.is_some() => Some("is being deleted".to_owned()),
            Some(pod) if pod.reachability == NodeReachability::Gone => {
                Some(format!("has lost its node {}", pod.node.as_deref().unwrap_or_default()))
            }
            Some(_) if moved.is_some() => {
                Some(format!("has the address {} now, which its workers do not know", moved.unwrap_or_default()))
            }
            Some(pod) if is_spent(&self.restarted, pod, self.status.restarts, self.spec.restart_limit) => {
                Some("has a container that ends again and again".to_owned())
            }
            Some(_) => None,
        };
        // An address changes with the sandbox, and the restart of its containers may be counted already.
        let counted = if moved.is_some() { self.status.attempt } else { self.status.restarts };
        let restarts = self.status.restarts.max(counted.saturating_add(1));
        match (lost, leader) {
            (None, Some(pod)) => self.follow(pod),
            (why, _) => self.lose_leader(&format!("the leader {name} {}", why.unwrap_or_default()), restarts),
        }
    }

    /// The attempt is over, and the next one has this number of restarts. Its pods go with the next sweep, as pods of another attempt
    /// than the present one.
    fn lose_leader(&mut self, why: &str, restarts: i32) {
        let status = &mut self.status;
        let limit = self.spec.restart_limit;
        status.ready_workers = 0;
        if restarts > limit {
            let message = format!("{why}, and was restarted {} times: restartLimit is {limit}", status.restarts);
            return self.end(Stage::Failed, message);
        }
        status.restarts = restarts;
        status.attempt = status.restarts;
        status.stage = Some(Stage::Rescheduling);
        status.leader_address = None;
        status.replaced.clear();
        status.ended_workers.clear();
        clear(status, condition::IMAGE_PULL, ConditionReason::LeaderLost, "the leader is made again", self.now);
        status.message = Some(format!("{why}: restart {restarts} of {limit}"));
    }

    /// A leader that lives.
    fn follow(&mut self, leader: &PodView) {
        if self.status.stage == Some(Stage::Starting) && self.image_hopeless(leader) {
            return;
        }
        if leader.ip.is_some() {
            self.status.leader_address.clone_from(&leader.ip);
        }
        let moved = self.tend(leader, self.allocation(&leader.name));
        self.effects.extend(moved);
        self.workers(leader);
    }

    /// Ends the job when the leader's image cannot be had.
    fn image_hopeless(&mut self, leader: &PodView) -> bool {
        let Some(ImageWait { reason, message }) = &leader.image else {
            // Between two tries the kubelet shows other reasons, too: only a container that starts ends the wait.
            if leader.phase != Phase::Pending {
                clear(
                    &mut self.status,
                    condition::IMAGE_PULL,
                    ConditionReason::Pulled,
                    "the leader's image is there",
                    self.now,
                );
            }
            return false;
        };
        let text = format!("{}: {reason}: {message}", leader.name);
        set(&mut self.status, condition::IMAGE_PULL, ConditionReason::LeaderImage, &text, self.now);
        let never = matches!(reason.as_str(), "InvalidImageName" | "ErrImageNeverPull");
        let since = self.status.condition(condition::IMAGE_PULL).map_or(self.now, |found| found.last_transition_time.0);
        let until = since.saturating_add(IMAGE_PATIENCE).unwrap_or(Timestamp::MAX);
        if never || self.now > until {
            let how_long = if never { "" } else { " for over 5 minutes" };
            self.end(Stage::Failed, format!("the leader's image cannot be pulled{how_long}: {text}"));
            return true;
        }
        // One second later: "over" is more than.
        let at = until.saturating_add(SignedDuration::from_secs(1)).unwrap_or(until);
        self.effects.push(JobEffect::Wake { at });
        false
    }
}
