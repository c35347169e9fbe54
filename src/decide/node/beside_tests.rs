//! What goes on beside calls, step by step: pods that leave, starts that wait, comparisons, what is published.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use super::following::{FollowEffect, FollowReport, Following};
use super::order_tests::{BEGAN, SECOND, World, assigned};
use super::*;
use crate::handoff::testing::{gpu_pod, grant, granted, listing, merged, pods, with_assignment};
use crate::handoff::{CgroupLook, Hold, Ledger, PodResources};
use crate::pod::{HandoffPod, Phase};
use baton_contract::{EventReason, PodUid, key};

const GPU: &str = key::NVIDIA_GPU;
const MILLIS: Duration = Duration::from_millis(1);

fn running() -> HandoffPod {
    let mut pod = assigned();
    pod.phase = Phase::Running;
    pod.containers[0].running = true;
    pod
}

fn ledger() -> Ledger {
    granted(&running(), &[("main", &["GPU-0"])])
}

fn lists_nothing() -> PodResources {
    PodResources::Listed(listing(&[]))
}

/// A node whose only pod has left.
fn left(by_watch: bool) -> (World, PodUid) {
    let pod = running();
    let mut world = World::new(&[&pod], ledger());
    let uid = pod.pod.uid;
    if by_watch {
        world.seen.pods.remove(&uid);
    } else {
        world.seen.pods.replace(Vec::new());
    }
    (world, uid)
}

fn follow(world: &mut World, following: &mut Following, report: FollowReport) -> Vec<FollowEffect> {
    world.step(|of, facts| following.report(report, of, facts))
}

/// A whole round of a pod that looks like this each time; the effects of its end. `lists` where the kubelet may be asked.
fn round(world: &mut World, uid: &PodUid, look: CgroupLook, lists: Option<PodResources>) -> Vec<FollowEffect> {
    let looked = || FollowReport::Looked(vec![(uid.clone(), look)]);
    let mut following = Following::default();
    let looks = [FollowEffect::Look(vec![uid.clone()])];
    assert_eq!(world.step(|of, facts| following.begin(Some(of), facts)), looks);
    let reads = follow(world, &mut following, looked());
    assert_eq!(
        reads,
        [FollowEffect::ForgetGone, FollowEffect::Read(BTreeSet::new())],
        "the watch has shown it deleted"
    );
    let mut next = follow(world, &mut following, FollowReport::Read(true));
    if let ([FollowEffect::List], Some(lists)) = (next.as_slice(), lists) {
        next = follow(world, &mut following, FollowReport::Listed(lists));
    }
    assert!(matches!(next.as_slice(), [FollowEffect::Look(_)]), "a call may have been served meanwhile: {next:?}");
    follow(world, &mut following, looked())
}

#[test]
fn a_pod_that_has_left_keeps_its_devices_until_a_listed_round_finds_no_process() {
    use CgroupLook::{Absent, Occupied, Unknown};
    let (mut world, uid) = left(true);
    let pod = running().pod;
    let often = FollowEffect::Rest(Some(200 * MILLIS));
    let written = [FollowEffect::Write, FollowEffect::Publish, often.clone()];
    world.step(|of, _| of.processes.saw(&uid, Occupied, true, BEGAN));
    assert_eq!(round(&mut world, &uid, Occupied, Some(lists_nothing())), written, "it is marked");
    assert_eq!(
        round(&mut world, &uid, Occupied, Some(lists_nothing())),
        std::slice::from_ref(&often),
        "nothing is new"
    );
    world.now = BEGAN + 9_999 * MILLIS;
    assert_eq!(round(&mut world, &uid, Occupied, Some(lists_nothing())), [often]);
    world.now = BEGAN + 10 * SECOND;
    let seldom = FollowEffect::Rest(Some(SECOND));
    assert_eq!(round(&mut world, &uid, Occupied, Some(lists_nothing())), std::slice::from_ref(&seldom));
    assert_eq!(round(&mut world, &uid, Absent, Some(PodResources::Silent)), [seldom], "its kubelet may want it again");
    assert!(world.of.ledger().holds(&uid) && world.of.processes().is_found(&uid));
    let freed = |hold| [FollowEffect::Free(pod.clone(), hold), FollowEffect::Write, FollowEffect::Publish];
    let end = round(&mut world, &uid, Absent, Some(lists_nothing()));
    assert_eq!(end, [&freed(Hold::Gone)[..], &[FollowEffect::Rest(None)]].concat());
    assert!(world.of.ledger().is_empty() && !world.of.processes().is_found(&uid), "nothing is remembered of it");
    // The same without any proof: its owner reads of it.
    let (mut world, uid) = left(true);
    round(&mut world, &uid, Unknown, Some(lists_nothing()));
    world.now += 90 * SECOND;
    let end = round(&mut world, &uid, Unknown, Some(lists_nothing()));
    let [free, FollowEffect::Notice(notice), rest @ ..] = end.as_slice() else { panic!("{end:?}") };
    assert_eq!((free, notice.reason), (&freed(Hold::Unseen)[0], EventReason::DevicesFreedUnseen));
    assert_eq!(rest, [&freed(Hold::Unseen)[1..], &[FollowEffect::Rest(None)]].concat());
}

#[test]
fn a_pod_that_waits_is_written_once_its_processes_are_found() {
    let pod = assigned();
    let mut world = World::new(&[&pod], granted(&pod, &[("main", &["GPU-0"])]));
    let uid = pod.pod.uid;
    world.seen.pods.remove(&uid);
    round(&mut world, &uid, CgroupLook::Empty, Some(lists_nothing()));
    assert!(round(&mut world, &uid, CgroupLook::Occupied, Some(lists_nothing())).contains(&FollowEffect::Write));
    assert!(!round(&mut world, &uid, CgroupLook::Occupied, Some(lists_nothing())).contains(&FollowEffect::Write));
}

#[test]
fn what_no_watch_has_shown_deleted_is_read_before_it_counts_as_gone() {
    let (mut world, uid) = left(false);
    let mut following = Following::default();
    world.step(|of, facts| following.begin(Some(of), facts));
    let reads = follow(&mut world, &mut following, FollowReport::Looked(vec![(uid, CgroupLook::Absent)]));
    assert_eq!(reads, [FollowEffect::ForgetGone, FollowEffect::Read(BTreeSet::from([running().pod.key]))]);
    let silent = follow(&mut world, &mut following, FollowReport::Read(false));
    assert_eq!(silent, [FollowEffect::Rest(Some(SECOND))]);
}

#[test]
fn a_pod_that_runs_is_looked_at_until_its_processes_are_found_and_costs_no_list() {
    let pod = running();
    let mut world = World::new(&[&pod], ledger());
    let uid = pod.pod.uid;
    let rests = [FollowEffect::Rest(None)];
    assert_eq!(round(&mut world, &uid, CgroupLook::Absent, None), rests);
    assert!(!world.of.processes().is_found(&uid));
    assert_eq!(round(&mut world, &uid, CgroupLook::Occupied, None), rests);
    let mut following = Following::default();
    let mut begin = |world: &mut World| world.step(|of, facts| following.begin(Some(of), facts));
    assert_eq!(begin(&mut world), [FollowEffect::Look(Vec::new())]);
    // Where nothing can be followed now.
    let seldom = [FollowEffect::Rest(Some(SECOND))];
    world.seen.pods_watching = false;
    assert_eq!(begin(&mut world), seldom);
    (world.seen.pods_watching, world.seen.node_synced) = (true, false);
    assert_eq!(begin(&mut world), seldom);
    world.seen.node_synced = true;
    assert_eq!(world.step(|_, facts| Following::default().begin(None, facts)), seldom);
}

/// The pod `b` is about to start on GPU-0, which `a` was given before it.
fn start() -> (World, Starting, PodUid) {
    let before = running();
    let next = with_assignment(gpu_pod("b", 1), &[("main", &["GPU-0"])]);
    let mut ledger = ledger();
    grant(&mut ledger, &next, &[("main", &["GPU-0"])]);
    let world = World::new(&[&next], ledger);
    let start = Starting::new(GPU, vec!["GPU-0".to_owned()], world.now);
    (world, start, before.pod.uid)
}

#[test]
fn a_start_waits_with_one_event_and_is_refused_in_the_end() {
    let (mut world, mut start, uid) = start();
    let mut rows = Vec::new();
    for millis in [0, 1999, 2000, 2100, 19_999, 20_000] {
        world.now = BEGAN + millis * MILLIS;
        for effect in world.starts(&mut start, |_| CgroupLook::Occupied) {
            rows.push(match effect {
                StartEffect::Waits { notice, .. } => format!("{millis} {}", notice.unwrap().reason.word()),
                StartEffect::Wait(pause) => format!("{millis} wait {pause:?}"),
                StartEffect::Refuse(why) => format!("{millis} {why}"),
                other => format!("{millis} {other:?}"),
            });
        }
    }
    let why = "GPU-0 is used by processes of default/a: the container starts once they have ended";
    let refused = format!("20000 {why}");
    let waits = ["0 wait 100ms", "1999 wait 100ms", "2000 DevicesStillUsed", "2000 wait 100ms", "2100 wait 100ms"];
    assert_eq!(rows, [&waits[..], &["19999 wait 100ms", &refused]].concat());
    assert_eq!(start.users(), [uid]);
}

#[test]
fn a_start_goes_on_once_a_look_of_now_finds_its_devices_free() {
    let (mut world, mut start, uid) = start();
    world.step(|of, _| of.processes.saw(&uid, CgroupLook::Occupied, true, BEGAN));
    let mut looked = RefCell::new(Vec::new());
    let seen = |of: &PodUid| {
        looked.borrow_mut().push(of.clone());
        if *of == uid { CgroupLook::Absent } else { CgroupLook::Empty }
    };
    assert_eq!(world.starts(&mut start, seen), [StartEffect::Start]);
    assert_eq!(looked.get_mut().last(), Some(&uid));
    // One whose devices no other pod was given.
    let mut alone = Starting::new(GPU, vec!["GPU-5".to_owned()], BEGAN);
    assert_eq!(world.starts(&mut alone, |_| CgroupLook::Empty), [StartEffect::Start]);
    let effects = world.step(|_, facts| alone.look(None, facts));
    assert!(matches!(effects.as_slice(), [StartEffect::Refuse(why)] if why.contains("not known yet")), "{effects:?}");
}

#[test]
fn what_contradicts_is_said_once_and_published_when_it_changes() {
    let pod = running();
    let mut world = World::new(&[&pod], Ledger::default());
    let mut comparing = Comparing::default();
    let mut compare = |world: &mut World, resources: &PodResources| {
        let effects = world.step(|of, facts| comparing.listed(resources, of, facts));
        let said = |uids: Vec<&PodUid>| uids.iter().map(ToString::to_string).collect::<Vec<_>>();
        (effects, said(comparing.unserved().iter().collect()), said(comparing.reported().collect()))
    };
    let uid = vec![pod.pod.uid.to_string()];
    assert_eq!(compare(&mut world, &PodResources::Silent), (vec![], vec![], vec![]));
    let without = PodResources::Listed(listing(&[("a", "main", GPU, &[])]));
    let (effects, unserved, reported) = compare(&mut world, &without);
    let [CompareEffect::Publish, CompareEffect::Notice(notice)] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!(notice.reason, EventReason::AdmittedWithoutDevices);
    assert_eq!((unserved, reported), (uid.clone(), uid.clone()));
    assert_eq!(compare(&mut world, &without), (vec![], uid.clone(), uid.clone()), "it was said");
    // The kubelet lists ids after all: the ledger learns them.
    let learned = vec![CompareEffect::Write, CompareEffect::Publish, CompareEffect::Publish];
    let listed = PodResources::Listed(listing(&[("a", "main", GPU, &["GPU-0"])]));
    assert_eq!(compare(&mut world, &listed), (learned, vec![], vec![]));
    // Other ids contradict the grant: an event, and the pod is not one without devices.
    let other = PodResources::Listed(listing(&[("a", "main", GPU, &["GPU-3"])]));
    let (effects, unserved, reported) = compare(&mut world, &other);
    assert!(matches!(effects.as_slice(), [CompareEffect::Notice(of)] if of.reason == EventReason::DeviceDivergence));
    assert_eq!((unserved, reported), (vec![], uid));
}

#[test]
fn ids_that_settle_a_grant_are_written() {
    let pod = running();
    let mut world = World::new(&[&pod], ledger());
    let key = world.of.ledger().iter().next().unwrap().key();
    world.of.ledger.repeat(&key, vec!["GPU-0".into()]);
    let listed = PodResources::Listed(listing(&[("a", "main", GPU, &["GPU-0"])]));
    let mut compare = || world.step(|of, facts| Comparing::default().listed(&listed, of, facts));
    assert_eq!(compare(), [CompareEffect::Write, CompareEffect::Publish]);
    assert_eq!(compare(), []);
}

#[test]
fn a_status_names_who_has_left_and_the_lock_that_stands_once_both_are_known() {
    let (mut world, uid) = left(true);
    let status = |world: &mut World, lock: Option<&ServedLock>| {
        let unserved = BTreeSet::new();
        world.step(|of, facts| HandoffStatus::of(of.ledger().stored().values(), &unserved, lock, facts))
    };
    round(&mut world, &uid, CgroupLook::Occupied, Some(lists_nothing()));
    let stands = ServedLock::Stands("raw".into());
    let known = status(&mut world, Some(&stands)).unwrap();
    assert_eq!(known.unreleased.as_deref(), Some("raw"));
    assert!(known.leaving.contains_key(&uid) && known.exceptions.contains_key(&uid));
    assert_eq!(status(&mut world, Some(&ServedLock::Released)).unwrap().unreleased, None);
    assert_eq!(status(&mut world, None), Err(NotKnown::Yet));
    world.seen.pods_synced = false;
    assert_eq!(status(&mut world, Some(&stands)), Err(NotKnown::Yet));
    // The API server shows it running again, with these devices.
    world.seen.pods_synced = true;
    let mut back = running();
    back.assignment.device_allocated = Some(merged(&["GPU-0"]).print().into());
    world.seen.pods = pods(&[&back]);
    assert!(status(&mut world, Some(&stands)).unwrap().leaving.is_empty());
}
