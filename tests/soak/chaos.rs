//! What goes wrong and when: kills by the clock, kubelet restarts and blackouts by progress. Choices come from the seed.

use std::time::Duration;

use baton::sim::apiserver::{ApiServer, Blackout};

use crate::harness::ClusterNode;
use crate::harness::daemon::Daemon;

#[derive(Debug, Default, Clone, Copy)]
pub struct Done {
    pub agent_kills: u64,
    pub scheduler_kills: u64,
    pub kubelet_restarts: u64,
    pub blackouts: u64,
}

/// The one who breaks things.
pub struct Chaos {
    random: fastrand::Rng,
    kill_every: Duration,
    next_kill: Duration,
    /// 0: as long as the run lasts.
    kills: u64,
    restarts: u64,
    blackouts: u64,
    dark_until: Option<Duration>,
    pub done: Done,
}

impl Chaos {
    pub fn new(random: fastrand::Rng, plan: &crate::run::Plan, now: Duration) -> Self {
        Self {
            random,
            kill_every: plan.kill_every,
            next_kill: now + plan.kill_every,
            kills: plan.kills,
            restarts: plan.kubelet_restarts,
            blackouts: plan.blackouts,
            dark_until: None,
            done: Done::default(),
        }
    }

    /// `true` while the API server is away.
    pub fn is_dark(&self) -> bool {
        self.dark_until.is_some()
    }

    /// `true` when nothing that was planned by number is left to do.
    pub fn is_over(&self) -> bool {
        let kills = self.done.agent_kills + self.done.scheduler_kills;
        kills >= self.kills
            && self.done.kubelet_restarts >= self.restarts
            && self.done.blackouts >= self.blackouts
            && !self.is_dark()
    }

    /// Kills with -9 and starts again: an agent or a scheduler. The first node's agent is spared, so that one process
    /// lives through the whole run and would show what leaks.
    pub fn kill(&mut self, nodes: &mut [ClusterNode], schedulers: [&mut Daemon; 2], now: Duration) {
        let kills = self.done.agent_kills + self.done.scheduler_kills;
        if now < self.next_kill || (self.kills > 0 && kills >= self.kills) {
            return;
        }
        self.next_kill = now + self.kill_every;
        if self.random.bool() {
            let victim = self.random.usize(1..nodes.len());
            nodes[victim].agent.restart();
            self.done.agent_kills += 1;
        } else {
            let [a, b] = schedulers;
            if self.random.bool() { a } else { b }.restart();
            self.done.scheduler_kills += 1;
        }
    }

    /// Restarts a kubelet when the run has got that far; `progress` is from 0 to 1.
    pub async fn restart_kubelet(&mut self, nodes: &[ClusterNode], progress: f64) {
        let due = (self.done.kubelet_restarts as f64 + 0.5) / self.restarts as f64;
        if self.done.kubelet_restarts < self.restarts && progress >= due {
            let node = &nodes[self.random.usize(..nodes.len())];
            node.kubelet.restart().await.expect("kubelet restarts");
            self.done.kubelet_restarts += 1;
        }
    }

    /// Takes the API server away for some seconds when the run has got that far, and gives it back.
    pub fn darken(&mut self, server: &ApiServer, progress: f64, now: Duration) {
        if let Some(until) = self.dark_until {
            if now >= until {
                if self.random.bool() {
                    server.compact(); // watches cannot go on where they stopped
                }
                server.faults().blackout(Blackout::None);
                self.dark_until = None;
            }
            return;
        }
        let due = (self.done.blackouts as f64 + 0.3) / self.blackouts as f64;
        if self.done.blackouts < self.blackouts && progress >= due {
            let mode = if self.random.bool() { Blackout::Refuse } else { Blackout::Hang };
            server.faults().blackout(mode);
            self.dark_until = Some(now + Duration::from_millis(self.random.u64(2_000..6_000)));
            self.done.blackouts += 1;
        }
    }
}
