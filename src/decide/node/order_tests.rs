//! What comes after what, step by step.

use std::time::Duration;

use super::*;
use crate::handoff::testing::{
    LOCKED, NODE, gpu_pod, grant, granted, inventory, listing, lock_of, pods, with_assignment,
};
use crate::handoff::{
    AllocateCall, AllocateContext, AllocateOutcome, AllocatePolicy, CgroupLook, EntryKey, Ledger, LiveReads,
    NodeInventory, PodResources,
};
use crate::lock::ReleaseReason;
use crate::pod::HandoffPod;
use baton_contract::{LockRead, PodKey, PodUid, key};

pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const BEGAN: Duration = Duration::from_secs(100);

/// One node, and what its daemon knows.
pub(super) struct World {
    pub seen: NodeSeen,
    pub of: HandOff,
    inventory: NodeInventory,
    policy: AllocatePolicy,
    version: u64,
    pub now: Duration,
}

impl World {
    /// Pod `all[0]` has the lock.
    pub fn new(all: &[&HandoffPod], ledger: Ledger) -> Self {
        let seen = NodeSeen {
            pods: pods(all),
            lock: all.first().map_or(LockRead::Free, |pod| lock_of(pod)),
            pods_synced: true,
            node_synced: true,
            pods_watching: true,
            node_watching: true,
            ..NodeSeen::default()
        };
        let of = HandOff::resume(ledger);
        Self { seen, of, inventory: inventory(8), policy: AllocatePolicy::default(), version: 1, now: BEGAN }
    }

    /// What follows from these looks.
    pub fn starts(&mut self, start: &mut Starting, seen: impl Fn(&PodUid) -> CgroupLook) -> Vec<StartEffect> {
        let mut effects = self.step(|of, facts| start.look(Some(of), facts));
        while let [StartEffect::Look(uids)] = &*effects {
            let looks: Vec<_> = uids.iter().map(|uid| (uid.clone(), seen(uid))).collect();
            effects = self.step(|of, facts| start.looked(&looks, of, facts));
        }
        effects
    }

    pub fn step<T>(&mut self, look: impl FnOnce(&mut HandOff, &Facts<'_>) -> T) -> T {
        let Self { seen, of, inventory, policy, version, now } = self;
        look(of, &Facts { node: NODE, policy, seen, version: *version, inventory, mono: *now, wall: LOCKED })
    }

    fn begin(&mut self, call: &mut Allocating) -> Vec<String> {
        words(self.step(|of, facts| call.begin(of, facts)))
    }

    fn report(&mut self, call: &mut Allocating, report: CallReport) -> Vec<String> {
        words(self.step(|of, facts| call.report(report, of, facts)))
    }

    fn unlock(&mut self, unlocking: &mut Unlocking) -> Vec<UnlockEffect> {
        self.step(|of, facts| unlocking.look(Some(of), facts))
    }
}

pub(super) fn words(effects: CallEffects) -> Vec<String> {
    let word = |effect: CallEffect| match effect {
        CallEffect::List { .. } => "list".to_owned(),
        CallEffect::Await { until, .. } => format!("await {} ms", until.saturating_sub(BEGAN).as_millis()),
        CallEffect::Read(LiveReads { pods, node }) => format!("read {} pods, node {node}", pods.len()),
        CallEffect::Build(grant) => format!("build {}", grant.entry.devices().next().unwrap().as_str()),
        CallEffect::Answer(Ok(answer)) => format!("answer {:?}, again {}", answer.encoded, answer.again),
        CallEffect::Answer(Err(refusal)) => format!("refuse {}", refusal.rule.word()),
        CallEffect::Outcome(outcome) => match outcome {
            crate::health::ServeOutcome::Failed { .. } => "failed".to_owned(),
            _ => "outcome".to_owned(),
        },
        CallEffect::Write => "write".to_owned(),
        CallEffect::Unlock => "unlock".to_owned(),
        CallEffect::Publish => "publish".to_owned(),
        CallEffect::Log(_) => "log".to_owned(),
        CallEffect::Notice(_) => "notice".to_owned(),
        CallEffect::Learned => "learned".to_owned(),
        CallEffect::Prefer(ids) => format!("prefer {ids:?}"),
    };
    effects.into_iter().map(word).collect()
}

pub(super) fn assigned() -> HandoffPod {
    with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])])
}

fn call() -> Allocating {
    Allocating::new(key::NVIDIA_GPU, vec!["GPU-0".to_owned()], Time::new(BEGAN, 2 * SECOND))
}

pub(super) fn lists_it() -> CallReport {
    CallReport::Listed(PodResources::Listed(listing(&[("a", "main", key::NVIDIA_GPU, &[])])))
}

/// A call that is decided and built.
fn built(world: &mut World) -> Allocating {
    let mut call = call();
    assert_eq!(world.begin(&mut call), ["list"]);
    assert_eq!(world.report(&mut call, lists_it()), ["build GPU-0"]);
    assert_eq!(world.report(&mut call, CallReport::Built(Ok(vec![7]))), ["write"]);
    call
}

#[test]
fn the_ledger_is_written_before_the_answer_leaves_and_the_lock_goes_after_it() {
    let pod = assigned();
    let mut world = World::new(&[&pod], Ledger::default());
    let mut first = built(&mut world);
    assert!(world.of.ledger().holds(&pod.pod.uid), "it is what is written");
    let last = world.report(&mut first, CallReport::Written(Ok(())));
    assert_eq!(last, ["outcome", "answer [7], again false", "unlock", "publish", "log"]);
    // The kubelet asks once more: the same answer, with a live read and a write before it.
    let mut again = call();
    world.begin(&mut again);
    let until = world.report(&mut again, lists_it());
    assert_eq!(until, ["await 10 ms"]);
    assert_eq!(world.report(&mut again, CallReport::Waited { news: false }), ["read 1 pods, node false"]);
    assert_eq!(world.report(&mut again, CallReport::Read(Ok(()))), ["build GPU-0"]);
    assert_eq!(world.report(&mut again, CallReport::Built(Ok(vec![7]))), ["write"]);
    let last = world.report(&mut again, CallReport::Written(Ok(())));
    assert_eq!(last, ["answer [7], again true", "unlock", "publish", "log"]);
}

#[test]
fn a_grant_that_cannot_be_written_is_taken_back_and_refused() {
    let pod = assigned();
    let mut world = World::new(&[&pod], Ledger::default());
    let mut call = built(&mut world);
    let last = world.report(&mut call, CallReport::Written(Err("no space left".to_owned())));
    assert_eq!(last, ["failed", "refuse ledger"]);
    assert!(world.of.ledger().is_empty() && world.of.ledger().is_over(&pod.pod.uid));
    // And so is one whose answer cannot be built.
    let mut world = World::new(&[&pod], Ledger::default());
    let mut call = self::call();
    world.begin(&mut call);
    assert_eq!(world.report(&mut call, lists_it()), ["build GPU-0"]);
    let last = world.report(&mut call, CallReport::Built(Err("no such device".to_owned())));
    assert_eq!(last, ["refuse answer", "notice"]);
    assert!(world.of.ledger().is_empty());
}

#[test]
fn the_watch_may_catch_up_once_then_the_api_server_is_asked_while_there_is_time() {
    let mut world = World::new(&[], Ledger::default());
    let mut call = call();
    world.begin(&mut call);
    assert_eq!(world.report(&mut call, lists_it()), ["await 10 ms"], "the pod is not known yet");
    world.now += Duration::from_millis(4);
    assert_eq!(world.report(&mut call, CallReport::Waited { news: true }), ["await 10 ms"], "of another pod");
    world.now = BEGAN + Duration::from_millis(10);
    assert_eq!(world.report(&mut call, CallReport::Waited { news: false }), ["read 1 pods, node false"]);
    let silent = || CallReport::Read(Err(ReadFailure::Unavailable("refused".to_owned())));
    assert_eq!(world.report(&mut call, silent()), ["await 85 ms"], "news may come meanwhile");
    world.now = BEGAN + Duration::from_millis(85);
    assert_eq!(world.report(&mut call, CallReport::Waited { news: false }), ["read 1 pods, node false"]);
    world.now = BEGAN + Duration::from_millis(1850);
    assert_eq!(world.report(&mut call, silent()), ["refuse api-unavailable"]);
    world.seen.pods = pods(&[&assigned()]);
    let context = world.step(|of, facts| of.context(facts, &PodResources::Missing, &LiveReads::default()).watching);
    assert!(!context, "the rejected pod is not known: for some time the watches do not suffice");
}

#[test]
fn a_wait_ends_and_the_last_read_is_made_at_their_very_times() {
    let mut world = World::new(&[], Ledger::default());
    let mut call = call();
    world.begin(&mut call);
    assert_eq!(world.report(&mut call, lists_it()), ["await 10 ms"]);
    world.now = BEGAN + Duration::from_millis(10);
    let reads = ["read 1 pods, node false"];
    assert_eq!(world.report(&mut call, CallReport::Waited { news: true }), reads, "news that are not enough");
    world.now = BEGAN + Duration::from_millis(1800);
    let silent = CallReport::Read(Err(ReadFailure::OutOfTime));
    assert_eq!(world.report(&mut call, silent), ["await 1875 ms"]);
}

#[test]
fn the_time_of_a_call_is_split_between_list_reads_and_answer() {
    let ms = Duration::from_millis;
    let time = Time::new(BEGAN, 2 * SECOND);
    assert_eq!(time.deadline, BEGAN + ms(1950));
    assert_eq!(time.half(BEGAN).deadline, BEGAN + ms(975));
    for (now, until) in [(0, 1450), (900, 1450), (1000, 1500), (1800, 1950)] {
        assert_eq!(time.list_until(BEGAN + ms(now)), BEGAN + ms(until), "{now} ms");
    }
}

#[test]
fn what_the_kubelet_lists_comes_into_the_ledger_before_the_decision() {
    let mut other = gpu_pod("b", 1);
    other.phase = crate::pod::Phase::Running;
    let mut world = World::new(&[&assigned(), &other], Ledger::default());
    let mut call = call();
    world.begin(&mut call);
    let rows = [("a", "main", key::NVIDIA_GPU, &[][..]), ("b", "main", key::NVIDIA_GPU, &["GPU-5"])];
    let listed = world.report(&mut call, CallReport::Listed(PodResources::Listed(listing(&rows))));
    assert_eq!(listed, ["learned", "publish", "build GPU-0"]);
}

#[test]
fn a_call_whose_entry_goes_meanwhile_is_refused() {
    let pod = assigned();
    let mut world = World::new(&[&pod], granted(&pod, &[("main", &["GPU-0"])]));
    let mut call = call();
    world.begin(&mut call);
    assert_eq!(world.report(&mut call, lists_it()), ["await 10 ms"]);
    assert_eq!(world.report(&mut call, CallReport::Waited { news: false }), ["read 1 pods, node false"]);
    assert_eq!(world.report(&mut call, CallReport::Read(Ok(()))), ["build GPU-0"]);
    let key = world.of.ledger().iter().next().unwrap().key();
    world.of.ledger.forget(&key);
    assert_eq!(world.report(&mut call, CallReport::Built(Ok(vec![7]))), ["refuse ledger"]);
}

#[test]
fn who_was_refused_is_remembered_or_else_the_watches_are_not_enough() {
    use crate::handoff::{Admission, AllocateRefusal, AllocateRule};
    let pod = assigned().pod;
    for (rule, known, admission) in [
        (AllocateRule::NoRoom, true, Some(Admission::Refused)),
        (AllocateRule::BadAssignment, true, Some(Admission::Unusable)),
        (AllocateRule::Ambiguous, true, None),
        (AllocateRule::NoRoom, false, None),
    ] {
        let mut world = World::new(&[], Ledger::default());
        let mut refusal = AllocateRefusal::of(rule, &pod, "main", key::NVIDIA_GPU, "why");
        refusal.pods.retain(|_| known);
        world.of.refused(&refusal, BEGAN);
        assert_eq!(world.of.ledger().admission(&pod.uid), admission, "{rule:?} {known}");
        let of = |of: &mut HandOff, facts: &Facts<'_>| {
            of.context(facts, &PodResources::Missing, &LiveReads::default()).watching
        };
        assert_eq!(world.step(of), admission.is_some(), "{rule:?} {known}");
    }
}

#[test]
fn a_daemon_that_begins_has_its_ledger_and_expects_repetitions() {
    let pod = assigned();
    let ledger = || granted(&pod, &[("main", &["GPU-0"])]);
    assert!(!HandOff::resume(ledger()).ledger().may_repeat(&pod.pod.uid));
    let begun = HandOff::begin(ledger());
    assert!(begun.ledger().holds(&pod.pod.uid) && begun.ledger().may_repeat(&pod.pod.uid));
}

#[test]
fn a_preference_that_cannot_be_found_out_is_any_of_the_available_ids() {
    let mut world = World::new(&[], Ledger::default());
    world.seen.pods_watching = false;
    let available = vec!["GPU-2".to_owned(), "GPU-1".to_owned()];
    let wish = Wish { available, must: vec!["GPU-1".to_owned()], size: 1 };
    let mut preferring = Preferring::new(key::NVIDIA_GPU, wish, Time::new(BEGAN, SECOND), true);
    assert_eq!(preferring.unknown(), ["GPU-1"]);
    let effects = world.step(|of, facts| preferring.report(lists_it(), of, facts));
    assert!(matches!(effects.as_slice(), [CallEffect::Read(_)]), "{effects:?}");
    world.now += SECOND;
    let silent = CallReport::Read(Err(ReadFailure::OutOfTime));
    let effects = world.step(|of, facts| preferring.report(silent, of, facts));
    assert!(matches!(effects.as_slice(), [CallEffect::Prefer(ids)] if ids == &["GPU-1"]), "{effects:?}");
}

fn insatiable(context: &AllocateContext<'_>, _: &AllocateCall<'_>, _: Option<&EntryKey>) -> AllocateOutcome {
    let name = context.live_reads.pods.len().to_string();
    AllocateOutcome::NeedLive(LiveReads::pods([PodKey::new("default", &name)]))
}

#[test]
fn a_decision_that_asks_for_read_after_read_is_refused_in_the_end() {
    let mut world = World::new(&[], Ledger::default());
    world.seen.pods_watching = false;
    let mut call = call().decided_by(insatiable);
    world.begin(&mut call);
    let mut next = world.report(&mut call, lists_it());
    let mut reads = 0;
    while next[0].starts_with("read") {
        reads += 1;
        next = world.report(&mut call, CallReport::Read(Ok(())));
    }
    assert_eq!((reads, next), (5, vec!["refuse deadline".to_owned()]));
}

#[test]
fn what_a_preference_found_holds_for_the_same_ids_a_second_and_one_kubelet() {
    let pod = assigned();
    for (ids, later, starts, expected) in [
        ("GPU-0", SECOND, false, "build GPU-0"),
        ("GPU-0", SECOND * 2, false, "list"),
        ("GPU-1", SECOND, false, "list"),
        ("GPU-0", SECOND, true, "list"),
    ] {
        let mut world = World::new(&[&pod], Ledger::default());
        let wish = Wish { available: vec!["GPU-1".to_owned(), "GPU-0".to_owned()], must: vec![], size: 1 };
        let mut preferring = Preferring::new(key::NVIDIA_GPU, wish, Time::new(BEGAN, SECOND).half(BEGAN), true);
        assert_eq!(words(world.step(|_, facts| preferring.begin(facts))), ["list"]);
        let effects = world.step(|of, facts| preferring.report(lists_it(), of, facts));
        assert!(matches!(effects.as_slice(), [CallEffect::Prefer(ids)] if ids == &["GPU-0"]), "{effects:?}");
        world.now += later;
        if starts {
            world.of.event(CallEvent::KubeletStarted);
        }
        let mut call = Allocating::new(key::NVIDIA_GPU, vec![ids.to_owned()], Time::new(world.now, 2 * SECOND));
        assert_eq!(world.begin(&mut call), [expected], "{ids} {later:?} {starts}");
    }
}

#[test]
fn a_call_that_lapsed_makes_the_watches_insufficient_for_some_time() {
    let mut world = World::new(&[&assigned()], Ledger::default());
    let watching = |world: &mut World| {
        world.step(|of, facts| of.context(facts, &PodResources::Missing, &LiveReads::default()).watching)
    };
    assert!(watching(&mut world));
    world.of.event(CallEvent::Lapsed(BEGAN));
    assert!(!watching(&mut world));
    world.now += SECOND * 2;
    assert!(watching(&mut world));
}

#[test]
fn the_lock_of_a_served_holder_is_released_and_said_to_stand_until_then() {
    let pod = assigned();
    let mut world = World::new(&[&pod], Ledger::default());
    let mut unlocking = Unlocking::new(5 * SECOND, BEGAN);
    let released = UnlockEffect::Say(ServedLock::Released);
    assert_eq!(world.unlock(&mut unlocking), [released.clone(), UnlockEffect::Rest(5 * SECOND)]);
    world.of = HandOff::resume(granted(&pod, &[("main", &["GPU-0"])]));
    let raw: Box<str> = world.seen.lock.raw().unwrap().into();
    let release = UnlockEffect::Release { raw: raw.clone(), reason: ReleaseReason::Served };
    assert_eq!(world.unlock(&mut unlocking), std::slice::from_ref(&release));
    let mut report = |world: &mut World, known| {
        world.step(|of, facts| unlocking.report(UnlockReport::Released(known), Some(of), facts))
    };
    let stands = UnlockEffect::Say(ServedLock::Stands(raw.clone()));
    assert_eq!(report(&mut world, false), [stands.clone(), UnlockEffect::RestAfterFailure]);
    let tries = world.step(|of, facts| unlocking.look(Some(of), facts));
    assert_eq!(tries, std::slice::from_ref(&release), "it is not said again");
    assert_eq!(unlocking.said(), Some(&ServedLock::Stands(raw.clone())));
    let mut report = |world: &mut World, known| {
        world.step(|of, facts| unlocking.report(UnlockReport::Released(known), Some(of), facts))
    };
    world.seen.lock_released(&raw);
    assert_eq!(report(&mut world, true), [released, UnlockEffect::Rest(60 * SECOND)]);
    // A daemon that starts may have tried before.
    world.seen.lock = lock_of(&pod);
    let mut next = Unlocking::new(5 * SECOND, BEGAN);
    assert_eq!(world.unlock(&mut next), [stands, release]);
}

#[test]
fn a_holder_that_the_watch_does_not_show_is_read_after_a_second() {
    let pod = assigned();
    let mut world = World::new(&[&pod], Ledger::default());
    world.seen.pods = pods(&[]);
    let mut unlocking = Unlocking::new(5 * SECOND, BEGAN);
    assert_eq!(world.unlock(&mut unlocking)[1..], [UnlockEffect::Rest(SECOND)], "its bind follows");
    world.now += SECOND;
    assert_eq!(world.unlock(&mut unlocking), [UnlockEffect::ReadHolder(pod.pod.key.clone())]);
    let silent = world.step(|of, facts| unlocking.report(UnlockReport::HolderRead(None), Some(of), facts));
    assert_eq!(silent, [UnlockEffect::RestAfterFailure]);
    let gone = world.step(|of, facts| unlocking.report(UnlockReport::HolderRead(Some(None)), Some(of), facts));
    assert!(matches!(gone.as_slice(), [UnlockEffect::Release { reason: ReleaseReason::Gone(_), .. }]), "{gone:?}");
}

#[test]
fn a_holder_that_was_read_is_read_again_after_three_seconds_and_another_one_waits() {
    let mut unbound = assigned();
    unbound.node = None;
    let mut world = World::new(&[&assigned()], Ledger::default());
    world.seen.pods = pods(&[]);
    let mut unlocking = Unlocking::new(5 * SECOND, BEGAN);
    world.unlock(&mut unlocking);
    world.now += SECOND;
    let reads = [UnlockEffect::ReadHolder(unbound.pod.key.clone())];
    assert_eq!(world.unlock(&mut unlocking), reads);
    let read = UnlockReport::HolderRead(Some(Some(Box::new(unbound))));
    let rests = world.step(|of, facts| unlocking.report(read, Some(of), facts));
    assert_eq!(rests, [UnlockEffect::Rest(3 * SECOND)], "it is not bound yet");
    world.now += 3 * SECOND;
    assert_eq!(world.unlock(&mut unlocking), reads);
    world.seen.lock = lock_of(&gpu_pod("b", 1));
    assert_eq!(world.unlock(&mut unlocking), [UnlockEffect::Rest(SECOND)], "its bind may follow");
}

#[test]
fn a_lock_that_no_watch_brings_is_read_at_the_pace_of_looks() {
    let mut world = World::new(&[], Ledger::default());
    world.seen.node_watching = false;
    let mut unlocking = Unlocking::new(5 * SECOND, BEGAN);
    assert_eq!(world.unlock(&mut unlocking).last(), Some(&UnlockEffect::Rest(5 * SECOND)));
    world.now += 5 * SECOND;
    assert_eq!(world.unlock(&mut unlocking), [UnlockEffect::ReadLock]);
    let read = world.step(|of, facts| unlocking.report(UnlockReport::LockRead { read: true }, Some(of), facts));
    assert_eq!(read, [UnlockEffect::Rest(5 * SECOND)]);
}

#[test]
fn a_start_rests_on_no_look_of_a_time_before_it() {
    let (before, next) = (assigned(), with_assignment(gpu_pod("b", 1), &[("main", &["GPU-0"])]));
    let uid = before.pod.uid.clone();
    let mut ledger = granted(&before, &[("main", &["GPU-0"])]);
    grant(&mut ledger, &next, &[("main", &["GPU-0"])]);
    let mut world = World::new(&[&next], ledger);
    // Its cgroup is not made yet. Then the node is cut off; the pod starts, and is deleted by force meanwhile.
    for _ in 0..20 {
        world.now += SECOND;
        world.step(|of, facts| of.processes.saw(&uid, CgroupLook::Absent, false, facts.mono));
    }
    let mut start = Starting::new(key::NVIDIA_GPU, vec!["GPU-0".to_owned()], world.now);
    let effects = world.starts(&mut start, |_| CgroupLook::Occupied);
    assert!(matches!(effects.as_slice(), [StartEffect::Wait(_)]), "{effects:?}");
    assert_eq!(start.users(), [uid]);
}

#[test]
fn a_predecessor_that_is_admitted_late_does_not_start_with_its_successors_devices() {
    let mut successor = assigned();
    successor.pod.uid = PodUid::new("a-second");
    let mut world = World::new(&[&successor], Ledger::default());
    let mut call = built(&mut world);
    world.report(&mut call, CallReport::Written(Ok(())));
    for (look, starts) in [(CgroupLook::Absent, false), (CgroupLook::Occupied, true), (CgroupLook::Unknown, true)] {
        let mut start = Starting::new(key::NVIDIA_GPU, vec!["GPU-0".to_owned()], world.now);
        let effects = world.starts(&mut start, |_| look);
        assert_eq!(effects == [StartEffect::Start], starts, "{effects:?}");
    }
    let mut start = Starting::new(key::NVIDIA_GPU, vec!["GPU-0".to_owned()], Duration::ZERO);
    let effects = world.starts(&mut start, |_| CgroupLook::Absent);
    let Some(StartEffect::Refuse(why)) = effects.last() else { panic!("{effects:?}") };
    assert!(why.contains("given to default/a, of which nothing is here yet"), "{why}");
    // That of a pod which the kubelet alone assigned, a static one say, is not found by its uid.
    let mut entry = world.of.ledger.of_pod(&successor.pod.uid).next().unwrap().clone();
    entry.assigned = false;
    let mut world = World::new(&[], Ledger::default());
    world.of.ledger.record(entry);
    let mut start = Starting::new(key::NVIDIA_GPU, vec!["GPU-0".to_owned()], world.now);
    assert_eq!(world.starts(&mut start, |_| CgroupLook::Absent), [StartEffect::Start]);
}
