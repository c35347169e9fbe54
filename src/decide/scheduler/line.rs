//! Pods that stand in line for a node's lock: after a while the line says so, in the pods' conditions and events.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::contract::LockRead;
use crate::decide::lock::{ExpiredHolder, Intent, WaitReason};
use crate::decide::world::{Node, NodeId, PodId};

use super::effect::Effects;
use super::engine::{Engine, Timer};
use super::flight::{Flight, Stage};
use super::settings::Moment;

/// A line is looked over this often. Who waits for less, or for a lock that changed hands within this time, is not told of: a line
/// that moves costs no write.
const LOOK: Duration = Duration::from_secs(5);
/// Whoever waits for longer is told of even if the line moves.
const SLOW: Duration = Duration::from_secs(30);
/// Reason of the condition and of the event.
const REASON: &str = "WaitingForNodeLock";

/// What was last said of a lock, so that the times in it stay the same while it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaidOfLock {
    of: (Box<str>, Outlook),
    text: Arc<str>,
}

/// What is to be expected of a lock that stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outlook {
    /// Its holder is being served; it counts as expired at some time.
    Held,
    /// It names no pod; it is taken over at some time.
    Unknown,
    /// It has expired, and nobody is there who could say whether the holder was served.
    AgentAway,
    /// It has expired, and the settings say that people decide.
    Operator,
    /// It is about to go: its holder is looked for, or being deleted.
    Ending,
}

impl Engine {
    /// A line in which somebody waits is looked over after a while.
    pub(in crate::decide) fn watch_line(&mut self, node: NodeId, now: Moment) {
        let Some(line) = self.lines.get_mut(&node).filter(|line| line.look_at.is_none()) else { return };
        if line.waiting.is_empty() {
            return;
        }
        line.look_at = Some(now.mono + LOOK);
        self.timers.insert((now.mono + LOOK, Timer::Line(node)));
    }

    /// Says to those who have waited for a while in the line of a node that they do.
    pub(in crate::decide) fn look_over_line(&mut self, node_id: NodeId, now: Moment, effects: &mut Effects) {
        let due = |at: Duration| at <= now.mono;
        let Some(line) = self.lines.get_mut(&node_id).filter(|line| line.look_at.is_some_and(due)) else { return };
        line.look_at = None;
        let waiting: Vec<PodId> = line.waiting.iter().map(|(.., id)| *id).collect();
        let Some(node) = self.world.node(node_id) else { return };
        let stands = node.lock.read != LockRead::Free && due(node.lock.first_seen + LOOK);
        let late = |id: &PodId| {
            let after = if stands { LOOK } else { SLOW };
            // Whoever asked for a bind tells people itself.
            self.flights.get(id).is_some_and(|flight| due(flight.in_line + after)) && !self.errands.contains_key(id)
        };
        let late: Vec<PodId> = waiting.into_iter().filter(late).collect();
        if let Some(flight) = late.first().and_then(|id| self.flights.get(id)) {
            let text = match self.said_of_lock(node, flight, now).filter(|_| stands) {
                Some(said) => {
                    let text = said.text.clone();
                    if let Some(line) = self.lines.get_mut(&node_id) {
                        line.said = Some(said);
                    }
                    text
                }
                None => format!(
                    "goes to node {} and waits for its turn there: devices are handed out to one pod after the other",
                    node.name
                )
                .into(),
            };
            for id in late {
                if self.told.get(&id).is_none_or(|told| told.reason != REASON) {
                    self.notice(id, false, REASON, text.as_ref().to_owned(), effects);
                }
                self.tell_quietly(id, REASON, &text, now, effects);
            }
        }
        self.watch_line(node_id, now);
    }

    /// Whose lock it is that stands there, since when, and when it ends.
    fn said_of_lock(&self, node: &Node, flight: &Flight, now: Moment) -> Option<SaidOfLock> {
        let raw = node.lock.read.raw()?;
        let intent = self.intent(node, &flight.claim(), now);
        let (outlook, at) = match &intent {
            Intent::Wait { reason, recheck } => {
                let outlook = match reason {
                    WaitReason::Contended(_) => Outlook::Held,
                    WaitReason::UnknownHolder => Outlook::Unknown,
                    WaitReason::AgentNotSettled(_) => Outlook::AgentAway,
                    WaitReason::Operator(_) => Outlook::Operator,
                };
                (outlook, *recheck)
            }
            Intent::Set | Intent::Own { .. } | Intent::TakeOver { .. } | Intent::Fence { .. } => {
                (Outlook::Ending, None)
            }
        };
        let known = self.lines.get(&flight.node).and_then(|line| line.said.as_ref());
        if let Some(said) = known.filter(|said| said.of.1 == outlook && *said.of.0 == *raw) {
            return Some(said.clone());
        }
        let then = at.map_or_else(String::new, |at| second(now.wall + at.saturating_sub(now.mono)));
        let seen = second(now.wall - now.mono.saturating_sub(node.lock.first_seen));
        let whose = match &node.lock.read {
            LockRead::Held { value, .. } => {
                let since = second(value.time);
                match &value.holder {
                    Some(holder) => format!("its lock, held by pod {} since {since}", holder.pod),
                    None => format!("its lock of {since}, which names no pod"),
                }
            }
            LockRead::Malformed { .. } => format!("its lock, which cannot be read and was there at {seen}"),
            LockRead::Free => return None,
        };
        let expired = match self.config.lock_policy.expired_holder {
            ExpiredHolder::Evict => "is deleted",
            ExpiredHolder::Wait => "is left to you: `baton get locks`",
        };
        let end = match outlook {
            Outlook::Held => {
                format!("it goes when that pod has its devices; if it still stands at {then}, that pod {expired}")
            }
            Outlook::Unknown => format!("if it still stands at {then}, it is taken over"),
            Outlook::AgentAway => "it has expired, but only the node's daemon, which is silent or has just come back, \
                                   knows whether that pod was served"
                .to_owned(),
            Outlook::Operator => {
                "it has expired, and --expired-holder=wait leaves it to you: `baton get locks`".to_owned()
            }
            Outlook::Ending => "that pod is gone or is being deleted, and the lock is about to go".to_owned(),
        };
        let text = format!("goes to node {} and waits for {whose}: {end}", node.name);
        Some(SaidOfLock { of: (raw.into(), outlook), text: text.into() })
    }

    /// `true` while nothing that is said of a wait may be written: the pod is on its way out of the line.
    pub(in crate::decide) fn has_left_line(&self, id: PodId) -> bool {
        self.flights.get(&id).is_some_and(|flight| flight.stage != Stage::Line)
    }
}

fn second(at: Timestamp) -> String {
    format!("{at:.0}")
}
