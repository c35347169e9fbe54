//! Items that wait to be placed: active, backing off, or parked until an event that the refusing rules named.
//!
//! ```text
//!            pop                    fail
//!   active ─────▶ taken ──▶ back-off ──time──▶ active
//!     ▲             │ park
//!     └──useful event── parked (costs nothing)
//! ```
//!
//! A failed item keeps its place in the order. Room that comes free is offered in that order, because an event wakes all that wait for
//! it at once: an item is tried only after every item before it that might use the room. Items that are alike, pods of one template,
//! stand in one *line*: what the first of them cannot use, the others cannot either. So an event wakes the first of each line, and the
//! next one follows when the first has left the line.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::timers::Moment;
use crate::core::rules::{QueueSort, Queued, SortKey};
use crate::pause::doubled;
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
    /// A parked item is tried after this time even without an event. 5 min.
    pub parked_max: Duration,
}

impl Default for QueuePolicy {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self { backoff: s(1), backoff_max: s(10), parked_max: s(300) }
    }
}

/// The state of a queued item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueState {
    /// Tried as soon as its turn comes.
    Active,
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
    /// Its place in the order.
    pub key: &'a SortKey,
    /// `spec.priority`.
    pub priority: i32,
    /// Monotonic time since which it is queued.
    pub since: Duration,
    /// Number of tries.
    pub attempts: u32,
}

#[derive(Debug, Clone)]
struct QueueEntry {
    key: SortKey,
    priority: i32,
    state: QueueState,
    failures: u32,
    attempts: u32,
    since: Duration,
    /// Its line: it is parked there, or was when it was woken as the first of it.
    line: Option<Line>,
    /// Until when it was parked before it was woken.
    parked_until: Option<Duration>,
}

impl QueueEntry {
    fn standing(&self) -> Standing<'_> {
        let Self { state, key, .. } = self;
        Standing { state, key, priority: self.priority, since: self.since, attempts: self.attempts }
    }
}

/// What items have in common that are alike: where the template of a pod is stored while pods of it wait, and its namespace.
pub type Alike = ([usize; 2], Box<str>);

/// Items that are alike, and the events that they wait for.
type Line = (Alike, Wake);

/// The items of one line.
#[derive(Debug, Clone, Default)]
struct InLine {
    parked: BTreeSet<(SortKey, Item)>,
    /// The one that was woken and has not been tried since.
    first: Option<Item>,
}

/// The queue.
#[derive(Debug, Clone, Default)]
pub struct Queue {
    policy: QueuePolicy,
    entries: BTreeMap<Item, QueueEntry>,
    active: BTreeSet<(SortKey, Item)>,
    timed: BTreeSet<(Duration, Item)>,
    /// Parked items of no line.
    parked: [BTreeSet<Item>; Wake::KINDS],
    lines: BTreeMap<Line, InLine>,
}

impl Queue {
    /// An empty queue.
    pub fn new(policy: QueuePolicy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Adds an item, or makes a changed one active again. An item that is being tried stays taken.
    pub fn add(&mut self, item: impl Into<Item>, queued: &Queued, sort: &dyn QueueSort, now: Duration) {
        let item = item.into();
        let (key, priority) = (sort.key(queued), queued.priority);
        if self.entries.contains_key(&item) {
            let is_taken = self.state(item.clone()) == Some(&QueueState::Taken);
            self.rekey(&item, key, priority);
            if is_taken {
                return;
            }
        } else {
            let state = QueueState::Taken;
            let entry = QueueEntry {
                key,
                priority,
                state,
                failures: 0,
                attempts: 0,
                since: now,
                line: None,
                parked_until: None,
            };
            self.entries.insert(item.clone(), entry);
        }
        self.activate(item);
    }

    /// Makes an item active after a change that may help it.
    pub fn offer(&mut self, item: Item, queued: &Queued, sort: &dyn QueueSort, now: Duration) {
        if let Some(entry) = self.entries.get_mut(&item) {
            entry.failures = 0;
        }
        self.add(item, queued, sort, now);
    }

    /// Changes an item's sort key; its state stays.
    pub fn restate(&mut self, item: &Item, queued: &Queued, sort: &dyn QueueSort) {
        self.rekey(item, sort.key(queued), queued.priority);
    }

    fn rekey(&mut self, item: &Item, key: SortKey, priority: i32) {
        let Some(entry) = self.entries.get_mut(item) else { return };
        entry.priority = priority;
        let former = std::mem::replace(&mut entry.key, key.clone());
        if former == key {
            return;
        }
        let (former, new) = ((former, item.clone()), (key, item.clone()));
        match (&entry.state, &entry.line) {
            (QueueState::Active, _) => {
                self.active.remove(&former);
                self.active.insert(new);
            }
            (QueueState::Parked(..), Some(line)) => {
                if let Some(line) = self.lines.get_mut(line) {
                    line.parked.remove(&former);
                    line.parked.insert(new);
                }
            }
            _ => {}
        }
    }

    /// How often an item has failed since the last useful event.
    pub fn failures(&self, item: impl Into<Item>) -> u32 {
        self.entries.get(&item.into()).map_or(0, |entry| entry.failures)
    }

    /// Removes an item.
    pub fn remove(&mut self, item: impl Into<Item>) {
        let item = item.into();
        self.leave(&item);
        self.entries.remove(&item);
    }

    /// The next item to try; it is taken until it is parked, failed, removed or activated.
    pub fn pop(&mut self) -> Option<Item> {
        let (_, item) = self.active.pop_first()?;
        if let Some(entry) = self.entries.get_mut(&item) {
            entry.state = QueueState::Taken;
            entry.attempts += 1;
            let line = entry.line.as_ref().and_then(|line| self.lines.get_mut(line));
            if let Some(line) = line {
                line.first.take_if(|first| *first == item);
            }
        }
        Some(item)
    }

    /// An item that was tried has its room: the next one of its line is tried.
    pub fn placed(&mut self, item: &Item) {
        self.leave(item);
    }

    /// Parks an item that was tried, until one of `wake`.
    pub fn park(&mut self, item: impl Into<Item>, wake: Wake, now: Duration) {
        self.park_with(item.into(), wake, None, now);
    }

    /// Parks an item that was tried, until one of `wake`; so do all that are alike: none of them can use what it cannot.
    pub fn park_in_line(&mut self, item: impl Into<Item>, wake: Wake, alike: Alike, now: Duration) {
        self.park_with(item.into(), wake, Some((alike, wake)), now);
    }

    fn park_with(&mut self, item: Item, wake: Wake, line: Option<Line>, now: Duration) {
        if self.entries.get(&item).is_some_and(|entry| entry.line == line) {
            self.detach(&item);
        } else {
            self.leave(&item);
        }
        let Some(entry) = self.entries.get_mut(&item) else { return };
        if matches!(item, Item::Group(_)) {
            entry.failures += 1;
        }
        // Without a wake only a change of the pod itself helps.
        let latest = (!wake.is_none()).then(|| now + self.policy.parked_max);
        entry.state = QueueState::Parked(wake, latest);
        entry.line.clone_from(&line);
        if let Some(line) = line {
            self.lines.entry(line).or_default().parked.insert((entry.key.clone(), item.clone()));
        } else {
            for kind in wake.kinds() {
                self.parked[kind].insert(item.clone());
            }
        }
        if let Some(at) = latest {
            self.timed.insert((at, item));
        }
    }

    /// Parks an item of no line, whose turn it is, without a try: until one of `wake`, or until it is due as before. `false` where it is due,
    /// or its turn has not come.
    pub fn park_again(&mut self, item: &Item, wake: Wake, now: Duration) -> bool {
        let has_turn = |entry: &&mut QueueEntry| entry.state == QueueState::Taken && entry.line.is_none();
        let Some(entry) = self.entries.get_mut(item).filter(has_turn) else { return false };
        let Some(latest) = entry.parked_until.filter(|latest| now < *latest) else { return false };
        entry.state = QueueState::Parked(wake, Some(latest));
        entry.attempts -= 1;
        wake.kinds().for_each(|kind| _ = self.parked[kind].insert(item.clone()));
        self.timed.insert((latest, item.clone()));
        true
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

    /// Backs an item off after a failure that no event is expected to resolve; it holds back no other meanwhile. Returns the time of the
    /// next try.
    pub fn fail(&mut self, item: impl Into<Item>, now: Duration) -> Duration {
        let item = item.into();
        let failures = self.entries.get(&item).map_or(0, |entry| entry.failures);
        let at = now + doubled((self.policy.backoff, self.policy.backoff_max), failures);
        self.wait_until(item.clone(), at);
        if let Some(entry) = self.entries.get_mut(&item) {
            entry.failures += 1;
        }
        at
    }

    /// Holds an item back until `at`.
    pub fn wait_until(&mut self, item: impl Into<Item>, at: Duration) {
        let item = item.into();
        self.leave(&item);
        let Some(entry) = self.entries.get_mut(&item) else { return };
        entry.state = QueueState::BackOff(at);
        self.timed.insert((at, item));
    }

    /// Makes an item active.
    pub fn activate(&mut self, item: impl Into<Item>) {
        let item = item.into();
        self.detach(&item);
        let Some(entry) = self.entries.get_mut(&item) else { return };
        entry.state = QueueState::Active;
        self.active.insert((entry.key.clone(), item));
    }

    /// Makes parked items that wait for this event active, of each line the first, and resets their back-off.
    pub fn wake(&mut self, wake: Wake) {
        let mut woken: BTreeSet<Item> = wake.kinds().flat_map(|kind| self.parked[kind].iter().cloned()).collect();
        for (_, line) in self.lines.iter_mut().filter(|((_, of), line)| of.meets(wake) && line.first.is_none()) {
            line.first = line.parked.first().map(|(_, item)| item.clone());
            woken.extend(line.first.clone());
        }
        for item in woken {
            self.wake_one(item);
        }
    }

    fn wake_one(&mut self, item: Item) {
        let line = self.entries.get(&item).and_then(|entry| entry.line.clone());
        self.activate(item.clone());
        if let Some(entry) = self.entries.get_mut(&item) {
            (entry.failures, entry.line) = (0, line);
        }
    }

    /// Makes items active whose time has come.
    pub fn tick(&mut self, now: Duration) {
        while let Some((_, item)) = self.timed.first().cloned().filter(|(at, _)| *at <= now) {
            self.activate(item);
        }
    }

    /// When [`Queue::tick`] has something to do; zero when an item is active.
    pub fn next(&self) -> Option<Duration> {
        if self.active.is_empty() { self.timed.first().map(|(at, _)| *at) } else { Some(Duration::ZERO) }
    }

    /// The state of an item, if it is queued.
    pub fn state(&self, item: impl Into<Item>) -> Option<&QueueState> {
        self.entries.get(&item.into()).map(|entry| &entry.state)
    }

    /// Wall time of the latest next try; `None` when the item does not wait for a time.
    pub fn next_try(&self, item: impl Into<Item>, now: Moment) -> Option<Timestamp> {
        let at = match self.state(item)? {
            QueueState::BackOff(at) | QueueState::Parked(_, Some(at)) => *at,
            QueueState::Parked(_, None) | QueueState::Active | QueueState::Taken => return None,
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

    /// An item leaves its place, and its line: where it was the one that is tried for it, the next one is.
    fn leave(&mut self, item: &Item) {
        let Some(entry) = self.entries.get(item) else { return };
        let was_tried = matches!(entry.state, QueueState::Active | QueueState::Taken);
        self.detach(item);
        let line = self.entries.get_mut(item).and_then(|entry| entry.line.take());
        let Some((line, of)) = line.filter(|_| was_tried).and_then(|line| Some((self.lines.get_mut(&line)?, line)))
        else {
            return;
        };
        if line.first.as_ref().is_none_or(|first| first == item) {
            line.first = line.parked.first().map(|(_, item)| item.clone());
        }
        match line.first.clone() {
            Some(next) => self.wake_one(next),
            None => _ = self.lines.remove(&of),
        }
    }

    /// Takes an item from its place. What is parked in a line leaves it.
    fn detach(&mut self, item: &Item) {
        let Some(entry) = self.entries.get_mut(item) else { return };
        match std::mem::replace(&mut entry.state, QueueState::Taken) {
            QueueState::Active => _ = self.active.remove(&(entry.key.clone(), item.clone())),
            QueueState::BackOff(at) => _ = self.timed.remove(&(at, item.clone())),
            QueueState::Parked(wake, latest) => {
                entry.parked_until = latest;
                if let Some(at) = latest {
                    self.timed.remove(&(at, item.clone()));
                }
                let Some(line) = entry.line.take() else {
                    wake.kinds().for_each(|kind| _ = self.parked[kind].remove(item));
                    return;
                };
                if let Entry::Occupied(mut of) = self.lines.entry(line) {
                    of.get_mut().parked.remove(&(entry.key.clone(), item.clone()));
                    if of.get().parked.is_empty() && of.get().first.is_none() {
                        of.remove();
                    }
                }
            }
            QueueState::Taken => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::rules::plugins::queue_sort::PrioritySort;

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
            queue.add(PodId(*id), &queued(*priority, *created, &format!("u{id}")), &PrioritySort, s(0));
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
        queue.wake(Wake::NODE_CHANGED.or(Wake::AGENT));
        queue.tick(s(299));
        assert_eq!(queue.pop(), None);
        queue.wake(Wake::POD_FREED);
        assert_eq!((queue.next(), queue.pop()), (Some(Duration::ZERO), Some(id)));
    }

    #[test]
    fn back_off_doubles_from_one_to_ten_seconds_and_a_useful_event_resets_it() {
        let mut queue = with(&[(1, 0, 0)]);
        let id = queue.pop().unwrap();
        let waits: Vec<u64> = (0..6).map(|_| queue.fail(id.clone(), s(0)).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
        queue.tick(s(9));
        assert_eq!(queue.pop(), None);
        queue.tick(s(10));
        assert_eq!(queue.pop(), Some(id.clone()));
        queue.park(id.clone(), Wake::AGENT, s(10));
        queue.wake(Wake::AGENT);
        assert_eq!(queue.pop(), Some(id.clone()));
        assert_eq!(queue.fail(id, s(20)), s(21));
    }

    #[test]
    fn a_gated_pod_is_not_looked_at_again_until_it_changes() {
        let mut queue = with(&[(1, 0, 0)]);
        let id = queue.pop().unwrap();
        queue.park(id.clone(), Wake::NONE, s(0));
        queue.wake(Wake::ANY);
        queue.tick(s(100_000));
        assert_eq!((queue.pop(), queue.next()), (None, None));
        queue.add(id.clone(), &queued(0, 0, "u1"), &PrioritySort, s(1));
        assert_eq!(queue.pop(), Some(id));
    }

    const LIKE: Wake = Wake::POD_FREED;

    /// So many pods of one template that were tried and fit nowhere, the first of them first.
    fn line(count: u64) -> (Queue, Alike) {
        let pods: Vec<_> = (1..=count).map(|id| (id, 0, id as i64)).collect();
        let (mut queue, alike) = (with(&pods), ([1, 2], "ml".into()));
        while let Some(item) = queue.pop() {
            queue.park_in_line(item, LIKE, Alike::clone(&alike), s(0));
        }
        (queue, alike)
    }

    #[test]
    fn an_event_wakes_the_first_of_pods_that_are_alike_and_each_that_leaves_the_next() {
        let (mut queue, alike) = line(4);
        queue.wake(Wake::AGENT);
        assert_eq!(queue.pop(), None);
        queue.wake(Wake::POD_FREED);
        queue.wake(Wake::POD_FREED);
        let [first, second] = [1, 2].map(|id| Item::Pod(PodId(id)));
        assert_eq!((queue.pop(), queue.pop()), (Some(first.clone()), None));
        queue.placed(&first);
        assert_eq!((queue.pop(), queue.pop()), (Some(second.clone()), None));
        queue.park_in_line(second.clone(), LIKE, alike, s(1));
        assert_eq!(queue.pop(), None, "what it cannot use, the others cannot either");
        queue.wake(Wake::POD_FREED);
        queue.remove(second);
        let rest: Vec<_> = [queue.pop(), queue.pop()].into_iter().flatten().filter_map(|item| pod(&item)).collect();
        assert_eq!(rest, [3], "the one that was woken is gone");
        queue.fail(PodId(3), s(1));
        assert_eq!(queue.pop(), Some(Item::Pod(PodId(4))), "one that backs off holds back nothing");
        queue.remove(PodId(4));
        assert!(queue.lines.is_empty());
    }

    #[test]
    fn an_event_during_a_try_wakes_the_next_of_the_line() {
        let (mut queue, alike) = line(2);
        queue.wake(Wake::POD_FREED);
        let first = queue.pop().unwrap();
        queue.wake(Wake::POD_FREED);
        queue.park_in_line(first, LIKE, alike, s(1));
        assert_eq!(queue.pop(), Some(Item::Pod(PodId(2))));
    }

    #[test]
    fn a_pod_that_changes_leaves_its_line_and_one_whose_key_changes_keeps_it() {
        let (mut queue, _) = line(3);
        queue.add(PodId(2), &queued(0, 2, "u2"), &PrioritySort, s(1));
        assert_eq!(queue.pop(), Some(Item::Pod(PodId(2))));
        queue.restate(&Item::Pod(PodId(3)), &queued(9, 3, "u3"), &PrioritySort);
        queue.wake(Wake::POD_FREED);
        assert_eq!((queue.pop(), queue.pop()), (Some(Item::Pod(PodId(3))), None));
    }

    #[test]
    fn what_is_not_tried_is_parked_until_what_can_help_it_or_it_is_due() {
        let mut queue = with(&[(1, 0, 0)]);
        let item = queue.pop().unwrap();
        queue.park(item.clone(), Wake::NODE_CHANGED, s(0));
        queue.hurry(item.clone(), s(20));
        queue.wake(Wake::NODE_CHANGED);
        for at in [s(10), s(11)] {
            assert_eq!(queue.pop().as_ref(), Some(&item));
            assert!(queue.park_again(&item, Wake::POD_FREED, at));
            assert!(!queue.park_again(&item, Wake::POD_FREED, at), "its turn has not come");
            queue.wake(Wake::NODE_CHANGED);
            assert_eq!(queue.pop(), None);
            queue.wake(Wake::POD_FREED);
        }
        assert_eq!(queue.pop().as_ref(), Some(&item));
        assert!(queue.park_again(&item, Wake::POD_FREED, s(12)));
        assert_eq!((queue.standing(item.clone()).unwrap().attempts, queue.next()), (1, Some(s(20))));
        queue.tick(s(20));
        assert_eq!(queue.pop().as_ref(), Some(&item));
        assert!(!queue.park_again(&item, Wake::POD_FREED, s(20)), "it is due");
    }
}
