//! Whether a pod that has left still uses its devices, and whose start waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::leaving::{add_leaving, held_start, leaving, vacated};
use super::testing::{
    NODE, container, gpu_pod, grant, granted, inventory, listing, pod, pods, share_of, with_assignment, with_entries,
};
use super::*;
use crate::pod::{ContainerKind, HandoffPod, Phase};
use baton_contract::{DeviceId, DeviceType, PodUid, key};
use jiff::Timestamp;
use proptest::prelude::*;

const GPU: &str = key::NVIDIA_GPU;

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn one(name: &str) -> HandoffPod {
    with_assignment(gpu_pod(name, 1), &[("main", &["GPU-0"])])
}

fn running(mut pod: HandoffPod) -> HandoffPod {
    pod.phase = Phase::Running;
    pod.containers[0].running = true;
    pod
}

fn ended(mut pod: HandoffPod) -> HandoffPod {
    pod.phase = Phase::Succeeded;
    pod.containers[0].started = true;
    pod
}

/// A pod with GPU-0 that was `last` seen so, and is gone from the API server and the kubelet's list since `now`.
fn left(last: HandoffPod, now: Duration) -> Ledger {
    let mut ledger = granted(&last, &[("main", &["GPU-0"])]);
    let mut all = pods(&[&last]);
    all.remove(&last.pod.uid);
    ledger.follow(&all, &PodResources::Listed(listing(&[])), (now, Timestamp::UNIX_EPOCH));
    ledger
}

fn hold(processes: &Processes, ledger: &Ledger, now: Duration) -> Hold {
    processes.hold(ledger.iter().next().unwrap(), now)
}

/// Looks at the pod's cgroup: at so many milliseconds, what was seen, whether the API server showed it running, and whether the entry
/// holds its devices then.
fn looks(last: HandoffPod, rows: &[(u64, CgroupLook, bool, Hold)]) {
    let uid = last.pod.uid.clone();
    let ledger = left(last, at(1000));
    let mut processes = Processes::default();
    assert_eq!(hold(&processes, &ledger, at(1000)), Hold::Held, "it was not looked at");
    for (now, look, runs, wanted) in rows {
        processes.saw(&uid, *look, *runs, at(*now));
        assert_eq!(hold(&processes, &ledger, at(*now)), *wanted, "{now} ms, {look:?}");
    }
}

#[test]
fn a_pod_whose_processes_were_found_is_gone_with_its_cgroup() {
    use CgroupLook::{Absent, Empty, Occupied, Unknown};
    let of = || running(one("a"));
    looks(
        of(),
        &[(500, Occupied, true, Hold::Held), (3000, Occupied, false, Hold::Held), (3100, Absent, false, Hold::Gone)],
    );
    // An empty cgroup may be about to get a process.
    let empty = [(3000, Empty, false, Hold::Held), (4900, Empty, false, Hold::Held), (5000, Empty, false, Hold::Gone)];
    looks(of(), &[&[(500, Occupied, true, Hold::Held), (3000, Occupied, false, Hold::Held)][..], &empty].concat());
    let again =
        [(3000, Empty, false, Hold::Held), (4000, Occupied, false, Hold::Held), (5900, Empty, false, Hold::Held)];
    looks(of(), &[&[(500, Occupied, true, Hold::Held)][..], &again].concat());
    // What cannot be seen is not gone, and a look that fails begins the wait again. Where nothing was ever seen, the time must do.
    let unseen = [(3000, Unknown, false, Hold::Held), (90_999, Unknown, false, Hold::Held)];
    looks(of(), &[&unseen[..], &[(91_000, Unknown, false, Hold::Unseen)]].concat());
    let seen = [(500, Occupied, true, Hold::Held), (91_000, Unknown, false, Hold::Held)];
    looks(of(), &[&seen[..], &[(92_000, Absent, false, Hold::Gone)]].concat());
    let late =
        [(3000, Unknown, false, Hold::Held), (20_000, Empty, false, Hold::Held), (22_000, Empty, false, Hold::Gone)];
    looks(of(), &[&[(500, Occupied, true, Hold::Held)][..], &late].concat());
}

#[test]
fn a_pod_that_was_never_looked_at_while_it_ran_is_gone_after_a_while() {
    use CgroupLook::{Absent, Occupied};
    let of = || running(one("a"));
    let absent = |now: u64, wanted: Hold| (now, Absent, false, wanted);
    let rows = [1000, 5000, 9000, 10_900].map(|now| absent(now, Hold::Held));
    looks(of(), &[&rows[..], &[absent(11_000, Hold::Gone)]].concat());
    looks(of(), &[absent(1000, Hold::Held), absent(20_000, Hold::Held)]);
    looks(of(), &[(1000, Occupied, false, Hold::Held), (1200, Absent, false, Hold::Gone)]);
}

#[test]
fn where_processes_are_not_in_the_cgroup_the_grace_and_a_minute_must_do() {
    use CgroupLook::Empty;
    let mut of = running(one("a"));
    of.grace_seconds = 600;
    let mut ledger = left(of.clone(), at(1000));
    let entry = LedgerEntry { grace_seconds: 600, ..ledger.iter().next().unwrap().clone() };
    ledger.restore(entry);
    let mut processes = Processes::default();
    processes.saw(&of.pod.uid, Empty, true, at(500));
    for (now, wanted) in [(660_900, Hold::Held), (661_000, Hold::Unseen)] {
        processes.saw(&of.pod.uid, Empty, false, at(now));
        assert_eq!(hold(&processes, &ledger, at(now)), wanted, "{now}");
    }
}

#[test]
fn a_pod_that_its_kubelet_has_ended_is_gone_unless_a_process_is_seen() {
    use CgroupLook::{Absent, Empty, Occupied, Unknown};
    for look in [Absent, Empty, Unknown] {
        looks(ended(one("a")), &[(1000, look, false, Hold::Gone)]);
    }
    looks(ended(one("a")), &[(1000, Occupied, false, Hold::Held), (1200, Empty, false, Hold::Gone)]);
    // Another client writes Failed while a container starts again: a daemon that mostly sees cgroups waits until it does.
    let (of, ledger) = (ended(one("a")).pod.uid, left(ended(one("a")), at(1000)));
    let mut processes = Processes::default();
    processes.saw(&ended(one("b")).pod.uid, Occupied, true, at(500));
    for (now, look, wanted) in [(1000, Unknown, Hold::Held), (90_000, Unknown, Hold::Held), (90_001, Empty, Hold::Gone)]
    {
        processes.saw(&of, look, false, at(now));
        assert_eq!(hold(&processes, &ledger, at(now)), wanted, "{now} ms, {look:?}");
    }
    // Never started: a start may be under way.
    let rows = [1000, 5000, 9000].map(|now| (now, Absent, false, Hold::Held));
    looks(one("a"), &[&rows[..], &[(11_000, Absent, false, Hold::Gone)]].concat());
}

#[test]
fn a_phase_that_another_client_writes_frees_nothing_and_the_pod_comes_back() {
    let a = running(one("a"));
    let mut failed = a.clone();
    failed.phase = Phase::Failed;
    let mut ledger = granted(&a, &[("main", &["GPU-0"])]);
    let unlisted = PodResources::Listed(listing(&[]));
    let mut all = pods(&[&a]);
    all.apply(failed);
    assert!(ledger.follow(&all, &unlisted, (at(1000), Timestamp::UNIX_EPOCH)));
    assert_eq!(ledger.iter().next().unwrap().leaving().unwrap().last, LastSeen::Running);
    let mut processes = Processes::default();
    processes.saw(&a.pod.uid, CgroupLook::Occupied, false, at(1000));
    assert_eq!(vacated(&ledger, &processes, at(500_000)).count(), 0);
    all.apply(a.clone());
    assert!(ledger.follow(&all, &unlisted, (at(10_000), Timestamp::UNIX_EPOCH)));
    assert!(ledger.iter().all(|entry| entry.leaving().is_none()), "it runs, as the API server shows");
    // The kubelet lists it without its ids: it has them nevertheless.
    let found = verify::verify(NODE, &all, &listing(&[("a", "main", GPU, &[])]), &ledger, &inventory(4));
    assert_eq!(found, []);
}

#[test]
fn a_pod_that_is_missing_in_a_list_leaves_by_what_was_known_of_it() {
    let (a, b) = (running(one("a")), ended(one("b")));
    let mut ledger = granted(&a, &[("main", &["GPU-0"])]);
    grant(&mut ledger, &b, &[("main", &["GPU-1"])]);
    let mut all = pods(&[&a, &b]);
    all.replace(vec![]);
    ledger.follow(&all, &PodResources::Missing, (at(0), Timestamp::UNIX_EPOCH));
    let last = |name: &str| ledger.iter().find(|e| &*e.pod.key.name == name).unwrap().leaving().unwrap().last;
    assert_eq!((last("a"), last("b")), (LastSeen::Running, LastSeen::Ended));
}

#[test]
fn only_what_ran_at_the_last_or_takes_long_is_published() {
    let said = |ledger: &Ledger, now: u64| leaving(ledger.iter(), at(now)).len();
    let (ran, waited, over) =
        (left(running(one("a")), at(1000)), left(one("a"), at(1000)), left(ended(one("a")), at(1000)));
    assert_eq!([&ran, &waited, &over].map(|ledger| said(ledger, 1000)), [1, 0, 0]);
    assert_eq!([&ran, &waited, &over].map(|ledger| said(ledger, 2000)), [1, 0, 1]);
    let mut found = waited;
    found.runs(&one("a").pod.uid);
    assert_eq!(said(&found, 1000), 1, "a process was found");
    let published = leaving(ran.iter(), at(1000));
    let found =
        exceptions::exceptions(NODE, &pods(&[]), ran.iter(), &published, &BTreeSet::new(), &inventory(4)).unwrap();
    assert_eq!(found.keys().collect::<Vec<_>>(), published.keys().collect::<Vec<_>>());
    assert_eq!(found.values().next().unwrap()[&DeviceType::Gpu][0].id.as_str(), "GPU-0");
    assert_eq!(said(&granted(&one("a"), &[("main", &["GPU-0"])]), 9000), 0);
}

#[test]
fn a_leaving_pod_is_read_back_from_its_file_with_the_clock_of_the_new_process() {
    let ledger = left(running(one("a")), at(90_000));
    let entry = ledger.iter().next().unwrap();
    let read: LedgerEntry = serde_json::from_str(&serde_json::to_string(entry).unwrap()).unwrap();
    let was = *entry.leaving().unwrap();
    assert_eq!(*read.leaving().unwrap(), Leaving { since: Duration::ZERO, ..was });
}

fn ids(of: &[&str]) -> Vec<String> {
    of.iter().map(|id| (*id).to_owned()).collect()
}

/// The users that a start with `of` waits for.
fn waits_for(ledger: &Ledger, of: &[&str], gone: &[&str]) -> Option<Vec<String>> {
    let gone = |entry: &LedgerEntry| gone.contains(&&*entry.pod.key.name);
    let held = held_start(GPU, &ids(of), ledger, &inventory(4), gone, |_| Some(true))?;
    Some(held.users.iter().map(ToString::to_string).collect())
}

#[test]
fn a_start_waits_for_pods_that_have_left_its_devices() {
    let mut ledger = left(running(one("a")), at(0));
    let b = one("b");
    grant(&mut ledger, &b, &[("main", &["GPU-0"])]);
    assert_eq!(waits_for(&ledger, &["GPU-0"], &[]).unwrap(), ["a-uid"]);
    assert_eq!(waits_for(&ledger, &["GPU-0"], &["a"]), None);
    let c = one("c");
    grant(&mut ledger, &c, &[("main", &["GPU-1"])]);
    assert_eq!(waits_for(&ledger, &["GPU-1"], &[]), None, "other devices");
}

#[test]
fn a_container_of_the_predecessor_does_not_start_with_the_successors_devices() {
    let mut ledger = left(running(one("a")), at(0));
    let mut successor = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-1"])]);
    successor.pod.uid = PodUid::new("a-second");
    grant(&mut ledger, &successor, &[("main", &["GPU-1"])]);
    let users = |gone: bool, has_cgroup: Option<bool>| {
        let held = held_start(GPU, &ids(&["GPU-1"]), &ledger, &inventory(4), |_| gone, |_| has_cgroup)?;
        Some(held.users.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(users(false, None).unwrap(), ["a-uid", "a-second"], "nothing of the successor is known to be there");
    assert_eq!([users(false, Some(true)), users(true, None)], [None, None]);
    assert_eq!(users(true, Some(false)).unwrap(), ["a-second"], "nothing of the successor is there");
}

#[test]
fn of_two_live_pods_on_one_device_the_later_one_waits() {
    let mut ledger = granted(&one("a"), &[("main", &["GPU-0"])]);
    // The kubelet chose another id for b.
    grant(&mut ledger, &one("b"), &[("main", &["GPU-0"])]);
    let key = EntryKey::new(&one("b").pod.uid, "main", GPU);
    let b = LedgerEntry { ids: vec!["GPU-3".into()], ..ledger.get(&key).unwrap().clone() };
    ledger.restore(b);
    assert_eq!(waits_for(&ledger, &["GPU-3"], &[]).unwrap(), ["a-uid"]);
    assert_eq!(waits_for(&ledger, &["GPU-0"], &[]), None, "they never wait for each other");
}

/// A kubelet that has heard first that a pod has ended gives its ids to another one.
#[test]
fn a_start_waits_for_each_pod_that_may_have_its_ids() {
    let mut ledger = left(running(one("a")), at(0));
    grant(&mut ledger, &one("b"), &[("main", &["GPU-0"])]);
    grant(&mut ledger, &one("c"), &[("main", &["GPU-2"])]);
    let key = EntryKey::new(&one("b").pod.uid, "main", GPU);
    ledger.repeat(&key, vec!["GPU-2".into()]);
    assert_eq!(waits_for(&ledger, &["GPU-2"], &[]).unwrap(), ["a-uid"]);
    assert_eq!(waits_for(&ledger, &["GPU-2"], &["a"]), None);
}

/// Two pods that were given GPU-0, of which a kubelet has chosen GPU-3 for the second: the ledger is lost, and rebuilt.
fn rebuilt(a: &HandoffPod, b: &HandoffPod, is_reversed: bool, lists_late: bool) -> Ledger {
    let all = pods(&[a, b]);
    let mut listed = listing(&[("a", "main", GPU, &["GPU-0"]), ("b", "main", GPU, &["GPU-3"])]);
    if is_reversed {
        listed.pods.reverse();
    }
    let first = if lists_late { listing(&[]) } else { listed.clone() };
    let mut ledger = rebuild::rebuild(NODE, &all, &first, &inventory(4));
    rebuild::learn(&mut ledger, NODE, &all, &listed, &inventory(4));
    ledger
}

#[test]
fn of_two_pods_on_one_device_the_one_that_runs_is_first_in_a_rebuilt_ledger() {
    for (is_reversed, lists_late) in [(false, false), (true, false), (false, true), (true, true)] {
        let ledger = rebuilt(&one("a"), &running(one("b")), is_reversed, lists_late);
        assert_eq!(waits_for(&ledger, &["GPU-0"], &[]).unwrap(), ["b-uid"], "{is_reversed} {lists_late}");
        assert_eq!(waits_for(&ledger, &["GPU-3"], &[]), None, "it starts again");
        let ledger = rebuilt(&running(one("a")), &one("b"), is_reversed, lists_late);
        assert_eq!(waits_for(&ledger, &["GPU-3"], &[]).unwrap(), ["a-uid"], "{is_reversed} {lists_late}");
        assert_eq!(waits_for(&ledger, &["GPU-0"], &[]), None, "it starts again");
    }
}

#[test]
fn of_two_pods_on_one_device_none_starts_where_it_is_lost_which_of_them_runs() {
    let mut ledger = rebuilt(&one("a"), &one("b"), false, false);
    assert_eq!(waits_for(&ledger, &["GPU-0"], &[]).unwrap(), ["b-uid"]);
    assert_eq!(waits_for(&ledger, &["GPU-3"], &[]).unwrap(), ["a-uid"]);
    assert_eq!(waits_for(&ledger, &["GPU-3"], &["a"]), None, "its processes have gone");
    grant(&mut ledger, &one("c"), &[("main", &["GPU-0"])]);
    let key = EntryKey::new(&one("c").pod.uid, "main", GPU);
    ledger.restore(LedgerEntry { ids: vec!["GPU-2".into()], ..ledger.get(&key).unwrap().clone() });
    assert_eq!(waits_for(&ledger, &["GPU-2"], &["a"]).unwrap(), ["b-uid"], "what is granted later is behind");
    assert_eq!(waits_for(&ledger, &["GPU-3"], &["a"]), None, "and before it nothing");
}

#[test]
fn an_edited_annotation_keeps_no_other_pod_waiting_where_the_answer_is_known() {
    let (a, b) = (running(one("a")), running(one("b")));
    let all = pods(&[&a, &b]);
    // The annotation of b names the device of a, its stored answer another.
    let mut listed = listing(&[("a", "main", GPU, &["GPU-0"]), ("b", "main", GPU, &["GPU-3"])]);
    let answer = |id: &str| StoredAnswer {
        devices: [DeviceId::parse(id).unwrap()].into(),
        ids: [id.into()].into(),
        encoded: vec![1],
    };
    let key = |pod: &HandoffPod| EntryKey::new(&pod.pod.uid, "main", GPU);
    listed.answers = [(key(&a), answer("GPU-0")), (key(&b), answer("GPU-3"))].into();
    let ledger = rebuild::rebuild(NODE, &all, &listed, &inventory(4));
    assert_eq!(ledger.get(&key(&b)).unwrap().devices().count(), 2, "no other pod is given either");
    assert_eq!([waits_for(&ledger, &["GPU-0"], &[]), waits_for(&ledger, &["GPU-3"], &[])], [None, None]);
}

#[test]
fn an_unknown_start_waits_only_where_no_live_pod_has_the_devices_of_one_that_left() {
    let mut ledger = left(running(one("a")), at(0));
    assert_eq!(waits_for(&ledger, &["GPU-0"], &[]).unwrap(), ["a-uid"], "its own ids: it is no caller");
    assert_eq!(waits_for(&ledger, &["GPU-2"], &[]).unwrap(), ["a-uid"]);
    assert_eq!(waits_for(&ledger, &["GPU-2"], &["a"]), None);
    grant(&mut ledger, &one("b"), &[("main", &["GPU-0"])]);
    assert_eq!(waits_for(&ledger, &["GPU-2"], &[]), None, "b has them since");
    assert_eq!(waits_for(&Ledger::default(), &["GPU-2"], &[]), None);
}

#[test]
fn shares_start_beside_a_pod_that_has_left_where_the_sum_fits() {
    let share = |name: &str, percent: i64| {
        let limits = [(key::GPU_CORE, percent), (key::GPU_MEMORY_RATIO, percent)];
        let of = pod(name, vec![container("main", ContainerKind::App, &limits)]);
        with_entries(of, &[("main", vec![share_of("GPU-0", percent, percent, 1 << 30)])])
    };
    let entry = |of: &HandoffPod, percent: i64, ids: &[&str]| {
        let ids = ids.iter().map(|id| Box::from(*id)).collect();
        let served = vec![(DeviceType::Gpu, share_of("GPU-0", percent, percent, 1 << 30))];
        let slot = ContainerSlot::of(of, "main");
        LedgerEntry::new(&of.pod, "main", key::GPU_CORE, slot, ids, served, CallState::Listed)
    };
    let (a, b) = (running(share("a", 60)), share("b", 50));
    let mut ledger = Ledger::default();
    ledger.record(entry(&a, 60, &["GPU-0::0"]));
    let mut all = pods(&[&a]);
    all.remove(&a.pod.uid);
    ledger.follow(&all, &PodResources::Missing, (at(0), Timestamp::UNIX_EPOCH));
    ledger.record(entry(&b, 50, &["GPU-0::1"]));
    let waits = |ledger: &Ledger| {
        held_start(key::GPU_CORE, &ids(&["GPU-0::1"]), ledger, &inventory(4), |_| false, |_| Some(true))
            .map(|held| held.users)
    };
    assert_eq!(waits(&ledger), Some(vec![a.pod.uid.clone()]));
    ledger.record(entry(&b, 40, &["GPU-0::1"]));
    assert_eq!(waits(&ledger), None);
    // The API server has deleted the waiting pod as well, and its kubelet does not know: that another pod has a share explains nothing.
    let c = share("c", 10);
    ledger.record(entry(&b, 50, &["GPU-0::1"]));
    ledger.record(entry(&c, 10, &["GPU-0::2"]));
    let deleted = |of: &LedgerEntry| of.pod.uid != c.pod.uid;
    ledger.follow(&pods(&[&c]), &PodResources::Silent, (at(0), Timestamp::UNIX_EPOCH));
    assert!(ledger.iter().all(|entry| entry.leaving().is_some() == deleted(entry)));
    assert_eq!(waits(&ledger), Some(vec![b.pod.uid.clone()]), "until it has gone, or is back");
}

#[test]
fn a_rebuilt_ledger_has_the_pods_that_left_and_still_run() {
    let devices = BTreeSet::from([DeviceId::parse("GPU-1").unwrap()]);
    let answer = StoredAnswer { devices, ..StoredAnswer::default() };
    let of = |uid: &str, resource: &str| (EntryKey::new(&PodUid::new(uid), "main", resource), answer.clone());
    let live = running(with_assignment(gpu_pod("live", 1), &[("main", &["GPU-0"])]));
    let answers: BTreeMap<_, _> =
        [of("ran", GPU), of("ended", GPU), of("live-uid", GPU), of("ran", "example.com/other")].into();
    let mut ledger = Ledger::default();
    let state = Leaving { at: Timestamp::UNIX_EPOCH, since: at(0), last: LastSeen::Running };
    let occupied = |uid: &PodUid| uid.as_str() != "ended";
    add_leaving(&mut ledger, &pods(&[&live]), &answers, &inventory(4), occupied, state);
    let found: Vec<_> = ledger.iter().map(|entry| (entry.pod.uid.to_string(), entry.resource.to_string())).collect();
    assert_eq!(found, [("ran".to_owned(), GPU.to_owned())]);
    grant(&mut ledger, &with_assignment(gpu_pod("b", 1), &[("main", &["GPU-1"])]), &[("main", &["GPU-1"])]);
    assert_eq!(waits_for(&ledger, &["GPU-1"], &[]).unwrap(), ["ran"]);
}

#[test]
fn a_pod_whose_end_may_be_taken_back_is_rebuilt_with_its_share() {
    let limits = [(key::GPU_CORE, 30), (key::GPU_MEMORY_RATIO, 30)];
    let share = share_of("GPU-1", 30, 30, 24 << 30);
    let pod =
        with_entries(pod("a", vec![container("main", ContainerKind::App, &limits)]), &[("main", vec![share.clone()])]);
    let ended = HandoffPod { phase: Phase::Failed, ..pod.clone() };
    let devices = BTreeSet::from([share.id.clone()]);
    let answer = StoredAnswer { devices, ids: ["GPU-1::7".into()].into(), ..StoredAnswer::default() };
    let of = |resource: &str| (EntryKey::new(&pod.pod.uid, "main", resource), answer.clone());
    let answers: BTreeMap<_, _> = [of(key::GPU_CORE), of(key::GPU_MEMORY_RATIO)].into();
    let mut ledger = Ledger::default();
    let state = Leaving { at: Timestamp::UNIX_EPOCH, since: at(0), last: LastSeen::Running };
    add_leaving(&mut ledger, &pods(&[&ended]), &answers, &inventory(4), |_| true, state);
    ledger.follow(&pods(&[&ended]), &PodResources::Silent, (at(0), Timestamp::UNIX_EPOCH));
    assert!(ledger.len() == 2 && ledger.iter().all(|entry| entry.leaving().is_some()));
    ledger.follow(&pods(&[&pod]), &PodResources::Silent, (at(1), Timestamp::UNIX_EPOCH));
    assert!(ledger.iter().all(|entry| entry.leaving().is_none()));
    let served: Vec<_> = ledger.iter().flat_map(|entry| &entry.served).map(|(_, device)| device.clone()).collect();
    assert_eq!(served, [share]);
}

#[test]
fn a_listed_pod_without_a_uid_gives_its_devices_back_after_its_grace() {
    let none = NodePods::default();
    let listed = listing(&[("x", "main", GPU, &["GPU-3"])]);
    let mut ledger = rebuild::rebuild(NODE, &none, &listed, &inventory(4));
    ledger.follow(&none, &PodResources::Listed(listing(&[])), (at(1000), Timestamp::UNIX_EPOCH));
    let uid = ledger.iter().next().unwrap().pod.uid.clone();
    let mut processes = Processes::default();
    processes.saw(&one("b").pod.uid, CgroupLook::Occupied, true, at(500));
    processes.saw(&uid, CgroupLook::Nameless, false, at(91_000));
    assert_eq!(vacated(&ledger, &processes, at(91_000)).count(), 1);
}

#[test]
fn a_rebuilt_init_container_waits_for_no_other_pods_device() {
    let containers =
        vec![container("init", ContainerKind::Init, &[(GPU, 1)]), container("main", ContainerKind::App, &[])];
    let p = with_assignment(pod("p", containers), &[("init", &["GPU-2"])]);
    let devices = BTreeSet::from([DeviceId::parse("GPU-2").unwrap()]);
    let answer = StoredAnswer { devices, ids: ["GPU-2".into()].into(), encoded: vec![1] };
    let mut listed = listing(&[("p", "main", GPU, &[])]);
    listed.answers.insert(EntryKey::new(&p.pod.uid, "init", GPU), answer);
    let all = pods(&[&p]);
    let mut ledger = rebuild::rebuild(NODE, &all, &listed, &inventory(4));
    grant(&mut ledger, &with_assignment(gpu_pod("z", 1), &[("main", &["GPU-1"])]), &[("main", &["GPU-1"])]);
    ledger.follow(&all, &PodResources::Missing, (at(0), Timestamp::UNIX_EPOCH));
    assert_eq!(waits_for(&ledger, &["GPU-2"], &[]), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// In any order of calls, starts, ends, deletions, phases that another client writes, looks that fail and losses of the ledger: no start is
    /// let through while another pod's processes use its device, no entry is dropped while its pod runs, and the first of the pods on a
    /// device that have not left waits for none of them, where the ledger knows which was first.
    #[test]
    fn no_start_overtakes_processes(steps in prop::collection::vec((0..7u8, 0..3usize, 0..2usize), 1..60)) {
        let mut ledger = Ledger::default();
        let mut all = NodePods::default();
        let mut processes = Processes::default();
        // Which pods have processes on which device: the truth.
        let mut runs: BTreeMap<usize, usize> = BTreeMap::new();
        let mut device_of: BTreeMap<usize, usize> = BTreeMap::new();
        let mut is_rebuilt = false;
        // What the kubelet chose names no device of the pod. It gives the ids of a pod that it has heard to have ended to another one, which
        // this daemon may not have heard.
        let chosen = |who: usize| format!("GPU-3::{}", who % 2);
        let nothing = PodResources::Listed(listing(&[]));
        for (n, (step, who, device)) in steps.into_iter().enumerate() {
            let now = at(n as u64 * 700);
            let is_blind = n % 7 == 3;
            let name = format!("p{who}");
            let id = format!("GPU-{device}");
            let of = with_assignment(gpu_pod(&name, 1), &[("main", &[&id])]);
            let uid = of.pod.uid.clone();
            let is_here = all.by_uid(&uid).is_some();
            match step {
                // It is admitted, and its call served, once: a uid does not come back.
                0 if !device_of.contains_key(&who) => {
                    all.apply(of.clone());
                    grant(&mut ledger, &of, &[("main", &[&id])]);
                    let key = EntryKey::new(&uid, "main", GPU);
                    let own = LedgerEntry { ids: vec![chosen(who).into()], ..ledger.get(&key).unwrap().clone() };
                    ledger.restore(own);
                    device_of.insert(who, device);
                }
                // The kubelet starts its container.
                1 if is_here && !all.by_uid(&uid).unwrap().phase.is_terminal() && device_of.contains_key(&who) && !runs.contains_key(&who) => {
                    let device = device_of[&who];
                    let gone = |entry: &LedgerEntry| processes.hold(entry, now) != Hold::Held;
                    let held = held_start(GPU, &[chosen(who)], &ledger, &inventory(4), gone, |_| (!is_blind).then_some(true));
                    let user = runs.iter().find(|(_, on)| **on == device);
                    if let (None, Some((user, _))) = (&held, user) {
                        prop_assert!(false, "p{who} starts beside p{user} on GPU-{device}");
                    }
                    if held.is_none() {
                        runs.insert(who, device);
                        // Its status may come late.
                        if !is_blind {
                            let mut up = all.by_uid(&uid).unwrap().clone();
                            (up.phase, up.containers[0].running) = (Phase::Running, true);
                            all.apply(up);
                        }
                        processes.saw(&uid, CgroupLook::Occupied, !is_blind, now);
                    }
                }
                2 => all.remove(&uid),
                3 if is_here => {
                    let mut failed = all.by_uid(&uid).unwrap().clone();
                    failed.phase = Phase::Failed;
                    all.apply(failed);
                }
                // Its processes end, after it has left.
                4 if !is_here => drop(runs.remove(&who)),
                // Its kubelet writes that it runs, after another client had written otherwise.
                5 if is_here && runs.contains_key(&who) => {
                    let mut up = all.by_uid(&uid).unwrap().clone();
                    (up.phase, up.containers[0].running) = (Phase::Running, true);
                    all.apply(up);
                }
                6 => {
                    let mut listed = PodListing::default();
                    for entry in ledger.iter() {
                        let ids = entry.ids.iter().cloned().collect();
                        let answer = StoredAnswer { devices: entry.devices().cloned().collect(), ids, encoded: vec![1] };
                        if entry.leaving().is_none() {
                            let ids: Vec<&str> = entry.ids.iter().map(|id| &**id).collect();
                            listed.pods.extend(listing(&[(&entry.pod.key.name, "main", GPU, &ids)]).pods);
                        }
                        listed.answers.insert(entry.key(), answer);
                    }
                    let occupied = |uid: &PodUid| runs.keys().any(|who| uid.as_str() == format!("p{who}-uid"));
                    let state = Leaving { at: Timestamp::UNIX_EPOCH, since: now, last: LastSeen::Running };
                    (ledger, processes) = (rebuild::rebuild(NODE, &all, &listed, &inventory(4)), Processes::default());
                    add_leaving(&mut ledger, &all, &listed.answers, &inventory(4), occupied, state);
                    is_rebuilt = true;
                }
                _ => {}
            }
            ledger.follow(&all, &nothing, (now, Timestamp::UNIX_EPOCH));
            let uids: BTreeSet<PodUid> =
                ledger.iter().filter(|entry| entry.leaving().is_some()).map(|entry| entry.pod.uid.clone()).collect();
            for uid in &uids {
                let runs = runs.keys().any(|who| uid.as_str() == format!("p{who}-uid"));
                let look = if is_blind { CgroupLook::Unknown } else if runs { CgroupLook::Occupied } else { CgroupLook::Absent };
                processes.saw(uid, look, false, now);
            }
            let live = ledger.iter().filter(|entry| entry.leaving().is_none());
            if let Some(first) = live.min_by_key(|entry| entry.seq).filter(|_| !is_rebuilt) {
                let ids: Vec<String> = first.ids.iter().map(ToString::to_string).collect();
                let held = held_start(GPU, &ids, &ledger, &inventory(4), |entry| entry.leaving().is_some(), |_| Some(true));
                let newest = ledger.iter().filter(|of| of.leaving().is_none() && of.ids == first.ids).count();
                prop_assert!(newest > 1 || held.is_none(), "the first waits: {held:?}");
            }
            let dropped: Vec<EntryKey> = vacated(&ledger, &processes, now).map(|(entry, _)| entry.key()).collect();
            for key in dropped {
                let who = key.uid.as_str()[1..2].parse::<usize>().unwrap();
                prop_assert!(!runs.contains_key(&who), "{} is dropped while it runs", key.uid);
                ledger.forget(&key);
            }
        }
    }
}
