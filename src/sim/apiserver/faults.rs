//! Faults on command. A rule says which requests it hits and what happens to them; rules are tried in the order they
//! were added and the first that fires wins.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::request::Request;

/// What happens to a request that a rule hits.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Answered with this status (and `Retry-After` in seconds) without being applied.
    Answer(u16, Option<u32>),
    /// Served after a pause.
    Delay(Duration),
    /// The connection is closed and nothing was applied.
    DropBefore,
    /// The request is applied and then the connection is closed: the answer is lost.
    DropAfter,
    /// Neither applied nor ever answered.
    Hang,
    /// Applied, and never answered: the caller can be stopped between the two.
    HangAfter,
    /// A watch is accepted but never says anything.
    SilentWatch,
}

/// Which requests a rule hits; empty texts match everything.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FaultRule {
    /// e.g. `patch`.
    pub verb: String,
    /// Plural.
    pub resource: String,
    /// Subresource; `-` means none.
    pub subresource: String,
    /// Object name.
    pub name: String,
    /// User name.
    pub user: String,
    /// Part of the user agent.
    pub agent: String,
    /// The first so many matching requests are let through.
    pub skip: u64,
    /// At most so many matching requests are hit; 0 means any number.
    pub times: u64,
    /// Of the remaining, this share is hit, drawn from the seeded generator; 0.0 means all.
    pub probability: f64,
}

/// Names a rule, to remove it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleId(u64);

/// How connections are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Blackout {
    /// Served.
    #[default]
    None,
    /// New connections are refused or closed at once, open ones are cut.
    Refuse,
    /// Connections are accepted and requests never answered.
    Hang,
}

#[derive(Debug)]
struct Armed {
    id: u64,
    rule: FaultRule,
    effect: Effect,
    seen: u64,
    fired: u64,
}

#[derive(Debug)]
struct FaultState {
    rules: Vec<Armed>,
    next: u64,
    random: fastrand::Rng,
}

/// The faults of one server.
#[derive(Debug)]
pub struct Faults {
    state: Mutex<FaultState>,
    watches: watch::Sender<u64>,
    blackout: watch::Sender<Blackout>,
}

impl FaultRule {
    /// Requests with this verb on this resource.
    pub fn on(verb: &str, resource: &str) -> Self {
        Self { verb: verb.to_owned(), resource: resource.to_owned(), ..Self::default() }
    }

    /// Narrowed to a subresource (`-`: none).
    #[must_use]
    pub fn below(mut self, subresource: &str) -> Self {
        subresource.clone_into(&mut self.subresource);
        self
    }

    /// Narrowed to an object name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Hits at most `times` requests.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    /// Lets the first `skip` requests through.
    #[must_use]
    pub fn after(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
    }

    /// Hits this share of the requests.
    #[must_use]
    pub fn with_probability(mut self, probability: f64) -> Self {
        self.probability = probability;
        self
    }

    fn matches(&self, request: &Request) -> bool {
        let target = &request.target;
        let is = |wanted: &str, found: &str| wanted.is_empty() || wanted == found;
        is(&self.verb, &target.verb)
            && is(&self.resource, &target.resource)
            && (is(&self.subresource, &target.subresource)
                || (self.subresource == "-" && target.subresource.is_empty()))
            && is(&self.name, &target.name)
            && is(&self.user, &request.user.name)
            && request.agent.contains(&self.agent)
    }
}

impl Faults {
    pub(super) fn new(seed: u64) -> Self {
        let state = FaultState { rules: Vec::new(), next: 0, random: fastrand::Rng::with_seed(seed) };
        Self { state: Mutex::new(state), watches: watch::Sender::new(0), blackout: watch::Sender::default() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, FaultState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Arms a rule.
    pub fn add(&self, rule: FaultRule, effect: Effect) -> RuleId {
        let mut state = self.lock();
        state.next += 1;
        let id = state.next;
        state.rules.push(Armed { id, rule, effect, seen: 0, fired: 0 });
        RuleId(id)
    }

    /// Disarms a rule; answers how often it fired.
    pub fn remove(&self, id: RuleId) -> u64 {
        let mut state = self.lock();
        let fired = state.rules.iter().find(|r| r.id == id.0).map_or(0, |r| r.fired);
        state.rules.retain(|r| r.id != id.0);
        fired
    }

    /// How often a rule has fired.
    pub fn fired(&self, id: RuleId) -> u64 {
        self.lock().rules.iter().find(|r| r.id == id.0).map_or(0, |r| r.fired)
    }

    /// Disarms all rules and ends a blackout.
    pub fn clear(&self) {
        self.lock().rules.clear();
        self.blackout.send_replace(Blackout::None);
    }

    /// Cuts every open watch; the connections end in the middle of the stream.
    pub fn break_watches(&self) {
        self.watches.send_modify(|n| *n += 1);
    }

    /// Starts or ends a blackout.
    pub fn blackout(&self, mode: Blackout) {
        self.blackout.send_replace(mode);
    }

    pub(super) fn watch_breaks(&self) -> watch::Receiver<u64> {
        let mut breaks = self.watches.subscribe();
        breaks.mark_unchanged();
        breaks
    }

    pub(super) fn blackouts(&self) -> watch::Receiver<Blackout> {
        self.blackout.subscribe()
    }

    /// The effect on this request, if any rule fires.
    pub(super) fn hit(&self, request: &Request) -> Option<Effect> {
        let mut state = self.lock();
        let FaultState { rules, random, .. } = &mut *state;
        for armed in rules.iter_mut().filter(|r| r.rule.matches(request)) {
            armed.seen += 1;
            let rule = &armed.rule;
            let due = armed.seen > rule.skip && (rule.times == 0 || armed.fired < rule.times);
            if due && (rule.probability <= 0.0 || random.f64() < rule.probability) {
                armed.fired += 1;
                return Some(armed.effect.clone());
            }
        }
        None
    }
}
