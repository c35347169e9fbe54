//! The event loop's side: takes questions to the engine and brings its answers back.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::oneshot;

use super::ask::Ask;
use crate::decide::scheduler::{AskId, BindVerdict, Effects, Engine, Moment};
use crate::decide::world::WorldEvent;

/// Whoever waits for a bind.
pub struct Desk {
    wait: Duration,
    waiting: BTreeMap<AskId, oneshot::Sender<BindVerdict>>,
}

const NOT_YET: &str = "this scheduler does not lead, or does not know the whole cluster yet: ask again";

impl Desk {
    /// A bind waits for its node's lock for at most `wait`.
    pub fn new(wait: Duration) -> Self {
        Self { wait, waiting: BTreeMap::new() }
    }

    /// Takes one question to the engine.
    pub fn take(&mut self, ask: Ask, engine: &mut Engine, now: Moment) -> Effects {
        // Only the leader knows what is assumed; another one's answer would send pods to devices that are spoken for.
        let leads = engine.is_leading();
        // Whoever asked may have left.
        match ask {
            Ask::Fit(pod, nodes, answer) => {
                let fits = if leads { Ok(engine.fit_devices(&pod, &nodes, now)) } else { Err(NOT_YET.to_owned()) };
                drop(answer.send(fits));
            }
            Ask::Rate(pod, nodes, answer) => {
                let rated = if leads { Ok(engine.rate_devices(&pod, &nodes, now)) } else { Err(NOT_YET.to_owned()) };
                drop(answer.send(rated));
            }
            Ask::Room(pod, victims, answer) => {
                let room = if leads { Ok(engine.make_room(&pod, &victims, now)) } else { Err(NOT_YET.to_owned()) };
                drop(answer.send(room));
            }
            Ask::Bind { ask, pod, node, found, answer } => {
                let mut effects = found.map_or_else(Effects::new, |pod| engine.event(WorldEvent::Pod(pod), now));
                self.waiting.insert(ask, answer);
                effects.extend(engine.ask_bind(ask, &pod, &node, self.wait, now));
                return effects;
            }
            Ask::Leave(ask) => {
                if self.waiting.remove(&ask).is_some() {
                    return engine.leave(ask, now);
                }
            }
        }
        Effects::new()
    }

    /// Brings the engine's answers to those who wait for them.
    pub fn deliver(&mut self, engine: &mut Engine) {
        for answer in engine.take_answers() {
            if let Some(waiting) = self.waiting.remove(&answer.ask) {
                drop(waiting.send(answer.verdict));
            }
        }
    }
}
