//! `--evict-on-fault`: what [`FaultEvictions`] decides is performed by the Eviction API.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::sync::mpsc;

use super::executor::Executor;
use baton_cluster::client::said;
use baton_cluster::cordon::{Eviction, evict};
use baton_cluster::notice::{Notice, Subject};
use baton_contract::{EventReason, PodRef, PodUid};
use baton_decide::health::{FaultAnswer, FaultEvictions, FaultStep};
use baton_decide::scheduler::Scheduler;
use baton_decide::world::WorldEvent;
use baton_runtime::clock;

/// Faults are looked at this often.
const LOOK: Duration = Duration::from_secs(1);

/// The decisions, and the way of the answers back to them.
pub struct FaultEvictor {
    decisions: FaultEvictions,
    client: Client,
    answers: mpsc::UnboundedReceiver<(PodUid, FaultAnswer)>,
    out: mpsc::UnboundedSender<(PodUid, FaultAnswer)>,
    looked: Duration,
}

impl FaultEvictor {
    /// Evicts after `grace`.
    pub fn new(client: Client, grace: Duration) -> Self {
        let (out, answers) = mpsc::unbounded_channel();
        Self { decisions: FaultEvictions::new(grace), client, answers, out, looked: Duration::ZERO }
    }

    /// Reads what concerns it of an event.
    pub fn see(&mut self, event: &WorldEvent) {
        match event {
            WorldEvent::Devices(object) => self.decisions.see(object, clock::mono()),
            WorldEvent::DevicesGone(node) => self.decisions.forget(node),
            _ => {}
        }
    }

    /// Does what is due.
    pub fn look(&mut self, scheduler: &Scheduler, executor: &Arc<Executor>) {
        let now = clock::mono();
        while let Ok((pod, answer)) = self.answers.try_recv() {
            self.decisions.answered(&pod, &answer, now);
        }
        if !scheduler.is_leading() {
            self.decisions.rest();
        } else if now >= self.looked + LOOK {
            self.looked = now;
            for step in self.decisions.next(scheduler.world(), now) {
                match step {
                    FaultStep::Spare(pod, why) => tell(executor, pod, why),
                    FaultStep::Evict(pod, why) => self.evict(executor, pod, why),
                }
            }
        }
    }

    fn evict(&self, executor: &Arc<Executor>, pod: PodRef, why: String) {
        let (client, out, executor) = (self.client.clone(), self.out.clone(), executor.clone());
        tokio::spawn(async move {
            // A leader that loses its Lease stops writing before the Lease ends.
            let answered = match executor.leadership.leads(clock::mono()) {
                true => tokio::time::timeout(executor.limit, evict(&client, &pod)).await,
                false => return drop(out.send((pod.uid, FaultAnswer::PutOff))),
            };
            let answer = match answered {
                Ok(Ok(Eviction::Done)) => {
                    tracing::warn!(pod = %pod.key, uid = %pod.uid, why, "evicted");
                    tell(&executor, pod.clone(), format!("evicted: {why}"));
                    FaultAnswer::Done
                }
                Ok(Ok(Eviction::Later(budget))) => {
                    tracing::info!(pod = %pod.key, budget, "an eviction is put off");
                    tell(&executor, pod.clone(), format!("{why}; its eviction is put off: {budget}"));
                    FaultAnswer::PutOff
                }
                Ok(Err(error)) => {
                    tracing::warn!(pod = %pod.key, error = %said(&error), "a pod cannot be evicted");
                    FaultAnswer::PutOff
                }
                Err(_) => FaultAnswer::PutOff,
            };
            // The receiver is gone only when the process ends.
            drop(out.send((pod.uid, answer)));
        });
    }
}

fn tell(executor: &Executor, pod: PodRef, message: String) {
    let (subject, reason) = (Subject::Pod(pod), EventReason::EvictOnFault);
    executor.notices.post(Notice { subject, warning: true, reason, action: "Evicting", message });
}
