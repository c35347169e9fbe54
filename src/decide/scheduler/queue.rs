//! Items that wait to be placed: active, backing off, or parked until an event that the refusing rules named.
//!
//! ```text
//!            pop                    fail
//!   active ─────▶ taken ──▶ back-off ──time──▶ active
//!     ▲             │ park
//!     └──useful event── parked (costs nothing)
//! ```
//!
//! A failed item keeps its place in the order, so two rules keep items behind it from starving. Items are tried in *rounds*: an item
//! that was tried in this round and is woken waits for the next one. And the older item still goes first: an item whose turn comes
//! while an older one waits for the next round, or while an older group rests, waits for that one, once per try of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::timers::Moment;
use crate::scheduler::rules::{QueueSort, Queued, SortKey};
use crate::world::gangs::GroupId;
use crate::world::{PodId, Wake};

/// A unit of scheduling.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Item {
    /// A pod by itself.
    Pod(PodId),
    /// Gangs that start together.
    Group(GroupId),
    /// All waiting TYJobs, in their own order.
    Jobs,
}

impl From<PodId> for Item {
    fn from(id: PodId) -> Self {
        Self::Pod(id)
    }
}

/// Times of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePolicy {
    /// First back-off. 1 s.
    pub backoff: Duration,
    /// Longest back-off. 10 s.
    pub backoff_max: Duration,
    /// Longest back-off of a group of gangs. 60 s.
    pub group_backoff_max: Duration,
    /// A parked item is tried after this time even without an event. 5 min.
    pub parked_max: Duration,
}

impl Default for QueuePolicy {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self { backoff: s(1), backoff_max: s(10), group_backoff_max: s(60), parked_max: s(300) }
    }
}

/// The state of a queued item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueState {
    /// Tried as soon as its turn comes.
    Active(SortKey),
    /// Tried from this monotonic time on.
    BackOff(Duration),
    /// Tried after one of these events, or at this monotonic time.
    Parked(Wake, Option<Duration>),
    /// Being tried, or being bound.
    Taken,
}

/// The public view of a queued item.
#[derive(Debug, Clone, Copy)]
pub struct Standing<'a> {
    /// Its state.
    pub state: &'a QueueState,
    /// `spec.priority`.
    pub priority: i32,
    /// Monotonic time since which it is queued.
    pub since: Duration,
    /// Number of tries.
    pub attempts: u32,
}

#[derive(Debug, Clone)]
struct QueueEntry {
    queued: Queued,
    state: QueueState,
    failures: u32,
    attempts: u32,
    since: Duration,
    /// Monotonic time of the last failure.
    failed_at: Option<Duration>,
    /// The round of its last try.
    round: u64,
    /// It waits for an older item until this round.
    held_to: Option<u64>,
    /// It waits for an older group until this time.
    held_until: Option<Duration>,
}

impl QueueEntry {
    fn standing(&self) -> Standing<'_> {
        Standing { state: &self.state, priority: self.queued.priority, since: self.since, attempts: self.attempts }
    }
}

/// The queue.
#[derive(Debug, Clone, Default)]
pub struct Queue {
    policy: QueuePolicy,
    entries: BTreeMap<Item, QueueEntry>,
    /// Number of the current round; the first is 1.
    round: u64,
    /// Active items of the current round, then those of the next.
    active: BTreeSet<(SortKey, Item)>,
    next_round: BTreeSet<(SortKey, Item)>,
    /// Woken groups that rest until [`Queue::groups_at`], all to the same time so that none overtakes another.
    resting: BTreeMap<Item, SortKey>,
    groups_at: Duration,
    timed: BTreeSet<(Duration, Item)>,
    parked: [BTreeSet<Item>; Wake::KINDS],
    /// The latest known time.
    now: Duration,
}

impl Queue {
    /// An empty queue.
    pub fn new(policy: QueuePolicy) -> Self {
        Self { policy, round: 1, ..Self::default() }
    }

    /// Adds an item, or makes a changed one active again. An item that is being tried stays taken.
    pub fn add(&mut self, item: impl Into<Item>, queued: Queued, sort: &dyn QueueSort, now: Duration) {
        let item = item.into();
        self.now = now;
        if let Some(entry) = self.entries.get_mut(&item) {
            entry.queued = queued;
            if entry.state == QueueState::Taken {
                return;
            }
        } else {
            let state = QueueState::Taken;
            let (failures, attempts, round, failed_at, held_to, held_until) = (0, 0, 0, None, None, None);
            let entry =
                QueueEntry { queued, state, failures, attempts, since: now, failed_at, round, held_to, held_until };
            self.entries.insert(item.clone(), entry);
        }
        self.activate(item, sort);
    }

    /// Makes an item active after a change that may help it: at once, or when its first back-off is over.
    pub fn offer(&mut self, item: Item, queued: Queued, sort: &dyn QueueSort, now: Duration) {
        self.now = now;
        if let Some(entry) = self.entries.get_mut(&item) {
            entry.queued = queued;
            entry.failures = 0;
        }
        self.activate_rested(item, sort);
    }

    /// Changes an item's sort key; its state stays.
    pub fn restate(&mut self, item: Item, queued: Queued, sort: &dyn QueueSort) {
        let Some(entry) = self.entries.get_mut(&item) else { return };
        entry.queued = queued;
        if matches!(entry.state, QueueState::Active(_)) {
            self.activate(item, sort);
        }
    }

    /// How often an item has failed since the last useful event.
    pub fn failures(&self, item: impl Into<Item>) -> u32 {
        self.entries.get(&item.into()).map_or(0, |entry| entry.failures)
    }

    /// Removes an item.
    pub fn remove(&mut self, item: impl Into<Item>) {
        let item = item.into();
        self.detach(&item);
        self.entries.remove(&item);
    }

    /// The next item to try; it is taken until it is parked, failed, removed or activated.
    pub fn pop(&mut self) -> Option<Item> {
        loop {
            if self.active.is_empty() {
                std::mem::swap(&mut self.active, &mut self.next_round);
                self.round += 1;
            }
            let (key, item) = self.active.pop_first()?;
            if self.waits_for_an_older(&key, &item) {
                continue;
            }
            if let Some(entry) = self.entries.get_mut(&item) {
                entry.state = QueueState::Taken;
                entry.attempts += 1;
                entry.round = self.round;
                (entry.held_to, entry.held_until) = (None, None);
            }
            return Some(item);
        }
    }

    /// Holds back an item whose turn has come while an older one that was woken waits.
    fn waits_for_an_older(&mut self, key: &SortKey, item: &Item) -> bool {
        let Some(entry) = self.entries.get_mut(item) else { return false };
        if matches!(item, Item::Group(_)) {
            let older = || self.resting.values().any(|older| older < key);
            let until = entry.held_until.or_else(|| older().then_some(self.groups_at));
            if let Some(until) = until.filter(|until| self.now < *until) {
                (entry.held_until, entry.state) = (Some(until), QueueState::BackOff(until));
                self.timed.insert((until, item.clone()));
                return true;
            }
        }
        let older = self.next_round.first().is_some_and(|(older, _)| older < key);
        if older && entry.held_to.is_none_or(|round| self.round < round) {
            entry.held_to = Some(self.round + 1);
            self.next_round.insert((key.clone(), item.clone()));
            return true;
        }
        false
    }

    /// Parks an item that was tried, until one of `wake`.
    pub fn park(&mut self, item: impl Into<Item>, wake: Wake, now: Duration) {
        let item = item.into();
        self.now = now;
        self.detach(&item);
        let Some(entry) = self.entries.get_mut(&item) else { return };
        entry.failed_at = Some(now);
        if matches!(item, Item::Group(_)) {
            entry.failures += 1;
        }
        // Without a wake only a change of the pod itself helps.
        let latest = (!wake.is_none()).then(|| now + self.policy.parked_max);
        entry.state = QueueState::Parked(wake, latest);
        for kind in wake.kinds() {
            self.parked[kind].insert(item.clone());
        }
        if let Some(at) = latest {
            self.timed.insert((at, item));
        }
    }

    /// A parked item is tried at `at` at the latest.
    pub fn hurry(&mut self, item: impl Into<Item>, at: Duration) {
        let item = item.into();
        let Some(entry) = self.entries.get_mut(&item) else { return };
        let QueueState::Parked(_, latest) = &mut entry.state else { return };
        if latest.is_some_and(|latest| latest <= at) {
            return;
        }
        let former = latest.replace(at);
        if let Some(former) = former {
            self.timed.remove(&(former, item.clone()));
        }
        self.timed.insert((at, item));
    }

    /// Backs an item off after a failure that no event is expected to resolve. Returns the time of the next try.
    pub fn fail(&mut self, item: impl Into<Item>, now: Duration) -> Duration {
        let item = item.into();
        let exponent = self.entries.get(&item).map_or(0, |entry| entry.failures.min(16));
        let most = if matches!(item, Item::Group(_)) { self.policy.group_backoff_max } else { self.policy.backoff_max };
        let at = now + (self.policy.backoff * (1 << exponent)).min(most);
        self.wait_until(item.clone(), at);
        if let Some(entry) = self.entries.get_mut(&item) {
            entry.failures += 1;
            entry.failed_at = Some(now);
        }
        at
    }

    /// Holds an item back until `at`.
    pub fn wait_until(&mut self, item: impl Into<Item>, at: Duration) {
        let item = item.into();
        self.detach(&item);
        let Some(entry) = self.entries.get_mut(&item) else { return };
        entry.state = QueueState::BackOff(at);
        self.timed.insert((at, item));
    }

    /// Makes an item active: in this round, or in the next if it was tried in this one.
    pub fn activate(&mut self, item: impl Into<Item>, sort: &dyn QueueSort) {
        let item = item.into();
        self.detach(&item);
        let Some(entry) = self.entries.get_mut(&item) else { return };
        let key = sort.key(&entry.queued);
        entry.state = QueueState::Active(key.clone());
        let round = if entry.round == self.round { &mut self.next_round } else { &mut self.active };
        round.insert((key, item));
    }

    /// Makes parked items that wait for this event active and resets their back-off.
    pub fn wake(&mut self, wake: Wake, sort: &dyn QueueSort) {
        let woken: BTreeSet<Item> = wake.kinds().flat_map(|kind| self.parked[kind].iter().cloned()).collect();
        for item in woken {
            if let Some(entry) = self.entries.get_mut(&item) {
                entry.failures = 0;
            }
            self.activate_rested(item, sort);
        }
    }

    /// Makes an item active, a group only after its first back-off: its try costs as much as all of its members.
    fn activate_rested(&mut self, item: Item, sort: &dyn QueueSort) {
        let rested = match (&item, self.entries.get(&item)) {
            (Item::Group(_), Some(QueueEntry { failed_at: Some(at), .. })) => *at + self.policy.backoff,
            _ => Duration::ZERO,
        };
        if rested <= self.now {
            return self.activate(item, sort);
        }
        self.detach(&item);
        if self.groups_at <= self.now {
            self.groups_at = rested;
        }
        if let Some(entry) = self.entries.get_mut(&item) {
            entry.state = QueueState::BackOff(self.groups_at);
            self.resting.insert(item.clone(), sort.key(&entry.queued));
            self.timed.insert((self.groups_at, item));
        }
    }

    /// Makes items active whose time has come.
    pub fn tick(&mut self, now: Duration, sort: &dyn QueueSort) {
        self.now = now;
        while let Some((_, item)) = self.timed.first().cloned().filter(|(at, _)| *at <= now) {
            self.activate(item, sort);
        }
    }

    /// When [`Queue::tick`] has something to do; zero when an item is active.
    pub fn next(&self) -> Option<Duration> {
        let none = self.active.is_empty() && self.next_round.is_empty();
        if none { self.timed.first().map(|(at, _)| *at) } else { Some(Duration::ZERO) }
    }

    /// The state of an item, if it is queued.
    pub fn state(&self, item: impl Into<Item>) -> Option<&QueueState> {
        self.entries.get(&item.into()).map(|entry| &entry.state)
    }

    /// Wall time of the latest next try; `None` when the item does not wait for a time.
    pub fn next_try(&self, item: impl Into<Item>, now: Moment) -> Option<Timestamp> {
        let at = match self.state(item)? {
            QueueState::BackOff(at) | QueueState::Parked(_, Some(at)) => *at,
            QueueState::Parked(_, None) | QueueState::Active(_) | QueueState::Taken => return None,
        };
        let left = SignedDuration::try_from(at.saturating_sub(now.mono)).ok()?;
        now.wall.checked_add(left).ok()
    }

    /// The public view of an item, if it is queued.
    pub fn standing(&self, item: impl Into<Item>) -> Option<Standing<'_>> {
        self.entries.get(&item.into()).map(QueueEntry::standing)
    }

    /// The public view of every item.
    pub fn standings(&self) -> impl Iterator<Item = (&Item, Standing<'_>)> {
        self.entries.iter().map(|(item, entry)| (item, entry.standing()))
    }

    fn detach(&mut self, item: &Item) {
        let Some(entry) = self.entries.get_mut(item) else { return };
        match std::mem::replace(&mut entry.state, QueueState::Taken) {
            QueueState::Active(key) => {
                let of_item = (key, item.clone());
                if !self.active.remove(&of_item) {
                    self.next_round.remove(&of_item);
                }
            }
            QueueState::BackOff(at) => {
                self.timed.remove(&(at, item.clone()));
                self.resting.remove(item);
            }
            QueueState::Parked(wake, latest) => {
                for kind in wake.kinds() {
                    self.parked[kind].remove(item);
                }
                if let Some(at) = latest {
                    self.timed.remove(&(at, item.clone()));
                }
            }
            QueueState::Taken => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::rules::plugins::queue_sort::PrioritySort;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }
    fn queued(priority: i32, created: i64, uid: &str) -> Queued {
        let created = Timestamp::from_second(created).unwrap();
        Queued { priority, sub_priority: 0, created, class: 0, id: uid.into() }
    }
    fn pod(item: &Item) -> Option<u64> {
        match item {
            Item::Pod(id) => Some(id.0),
            Item::Group(_) | Item::Jobs => None,
        }
    }
    fn with(pods: &[(u64, i32, i64)]) -> Queue {
        let mut queue = Queue::new(QueuePolicy::default());
        for (id, priority, created) in pods {
            queue.add(PodId(*id), queued(*priority, *created, &format!("u{id}")), &PrioritySort, s(0));
        }
        queue
    }

    #[test]
    fn higher_priority_goes_first_then_the_older_then_the_id() {
        let mut queue = with(&[(1, 0, 10), (2, 0, 5), (3, 9, 20), (4, 0, 5)]);
        let order: Vec<u64> = std::iter::from_fn(|| queue.pop()).filter_map(|item| pod(&item)).collect();
        assert_eq!(order, [3, 2, 4, 1]);
    }

    #[test]
    fn a_parked_pod_wakes_only_for_what_its_rule_named() {
        let mut queue = with(&[(1, 0, 0)]);
        let id = queue.pop().unwrap();
        queue.park(id.clone(), Wake::POD_FREED, s(1));
        queue.wake(Wake::NODE_CHANGED.or(Wake::AGENT), &PrioritySort);
        queue.tick(s(299), &PrioritySort);
        assert_eq!(queue.pop(), None);
        queue.wake(Wake::POD_FREED, &PrioritySort);
        assert_eq!((queue.next(), queue.pop()), (Some(Duration::ZERO), Some(id)));
    }

    #[test]
    fn back_off_doubles_from_one_to_ten_seconds_and_a_useful_event_resets_it() {
        let mut queue = with(&[(1, 0, 0)]);
        let id = queue.pop().unwrap();
        let waits: Vec<u64> = (0..6).map(|_| queue.fail(id.clone(), s(0)).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
        queue.tick(s(9), &PrioritySort);
        assert_eq!(queue.pop(), None);
        queue.tick(s(10), &PrioritySort);
        assert_eq!(queue.pop(), Some(id.clone()));
        queue.park(id.clone(), Wake::AGENT, s(10));
        queue.wake(Wake::AGENT, &PrioritySort);
        assert_eq!(queue.pop(), Some(id.clone()));
        assert_eq!(queue.fail(id, s(20)), s(21));
    }

    #[test]
    fn a_gated_pod_is_not_looked_at_again_until_it_changes() {
        let mut queue = with(&[(1, 0, 0)]);
        let id = queue.pop().unwrap();
        queue.park(id.clone(), Wake::NONE, s(0));
        queue.wake(Wake::ANY, &PrioritySort);
        queue.tick(s(100_000), &PrioritySort);
        assert_eq!((queue.pop(), queue.next()), (None, None));
        queue.add(id.clone(), queued(0, 0, "u1"), &PrioritySort, s(1));
        assert_eq!(queue.pop(), Some(id));
    }
}
