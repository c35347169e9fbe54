//! The choice, case by case.

use super::*;
use baton_contract::deviceplugin::{ContainerAllocateResponse, Device, DevicePluginOptions};

const GPU: &str = "example.com/gpu";

fn ids(names: &[&str]) -> Ids {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn four_gpus() -> Devices {
    let mut devices = Devices::default();
    devices.connected(GPU, DevicePluginOptions::default());
    let list = (0..4).map(|n| Device { id: format!("g{n}"), health: "Healthy".into(), topology: None });
    devices.listed(GPU, list.collect());
    devices
}

fn claim(required: usize) -> Claim<'static> {
    Claim { uid: "uid", container: "main", resource: GPU, required, running_since_before: false }
}

fn rng() -> fastrand::Rng {
    fastrand::Rng::with_seed(7)
}

fn ask(devices: &mut Devices, required: usize, reusable: &Ids) -> Question {
    match begin(devices, claim(required), reusable, None, &mut rng()).unwrap() {
        Step::Ask(question) => question,
        other => panic!("expected a question, got {other:?}"),
    }
}

fn set(chosen: Vec<String>) -> Ids {
    chosen.into_iter().collect()
}

#[test]
fn the_plugins_preference_is_followed() {
    let mut devices = four_gpus();
    let question = ask(&mut devices, 2, &Ids::new());
    assert_eq!(question.offered, ids(&["g0", "g1", "g2", "g3"]));
    let chosen = finish(&mut devices, question, &ids(&["g1", "g3"]), &mut rng()).unwrap();
    assert_eq!(set(chosen), ids(&["g1", "g3"]));
    assert_eq!(devices.allocated[GPU], ids(&["g1", "g3"]));
}

#[test]
fn too_few_and_unknown_preferred_ids_are_completed() {
    let mut devices = four_gpus();
    let question = ask(&mut devices, 2, &Ids::new());
    let chosen = set(finish(&mut devices, question, &ids(&["g2", "no-such-id"]), &mut rng()).unwrap());
    assert_eq!(chosen.len(), 2);
    assert!(chosen.contains("g2"));
    assert!(chosen.is_subset(&ids(&["g0", "g1", "g2", "g3"])));
}

#[test]
fn reusable_devices_that_suffice_are_taken_without_asking() {
    let mut devices = four_gpus();
    let Step::Chosen(chosen) = begin(&mut devices, claim(1), &ids(&["g2", "g3"]), None, &mut rng()).unwrap() else {
        panic!("asked although the reusable devices suffice");
    };
    assert!(set(chosen).is_subset(&ids(&["g2", "g3"])));
}

#[test]
fn reusable_devices_that_do_not_suffice_must_be_included() {
    let mut devices = four_gpus();
    devices.allocated.insert(GPU.into(), ids(&["g2", "g3"]));
    let question = ask(&mut devices, 2, &ids(&["g3"]));
    assert_eq!(question.must_include, ids(&["g3"]));
    assert_eq!(question.offered, ids(&["g0", "g1", "g3"]));
    assert_eq!(question.size(), 2);
    let chosen = finish(&mut devices, question, &ids(&["g3", "g1"]), &mut rng()).unwrap();
    assert_eq!(set(chosen), ids(&["g1", "g3"]));
}

#[test]
fn more_than_there_is_says_how_many_are_left() {
    let refusal = begin(&mut four_gpus(), claim(5), &Ids::new(), None, &mut rng()).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "requested number of devices unavailable for example.com/gpu. Requested: 5, Available: 4"
    );
}

#[test]
fn a_stopped_plugin_has_no_healthy_devices() {
    let mut devices = four_gpus();
    devices.disconnected(GPU, std::time::Duration::ZERO);
    let refusal = begin(&mut devices, claim(1), &Ids::new(), None, &mut rng()).unwrap_err();
    assert_eq!(refusal, Refusal::NoneHealthy(GPU.into()));
}

#[test]
fn held_devices_are_kept_while_healthy_and_refused_when_not() {
    let mut devices = four_gpus();
    devices.grant("uid", "main", GPU, &["g0".into()], ContainerAllocateResponse::default());
    assert!(matches!(begin(&mut devices, claim(1), &Ids::new(), None, &mut rng()), Ok(Step::Nothing)));
    let sick = (0..4).map(|n| Device {
        id: format!("g{n}"),
        health: if n == 0 { "Unhealthy" } else { "Healthy" }.into(),
        topology: None,
    });
    devices.listed(GPU, sick.collect());
    let refusal = begin(&mut devices, claim(1), &Ids::new(), None, &mut rng()).unwrap_err();
    assert_eq!(refusal, Refusal::NoLongerHealthy(GPU.into()));
    let since_before = Claim { running_since_before: true, ..claim(1) };
    assert!(matches!(begin(&mut devices, since_before, &Ids::new(), None, &mut rng()), Ok(Step::Nothing)));
}

#[test]
fn a_changed_request_is_refused() {
    let mut devices = four_gpus();
    devices.grant("uid", "main", GPU, &["g0".into()], ContainerAllocateResponse::default());
    let refusal = begin(&mut devices, claim(2), &Ids::new(), None, &mut rng()).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "pod \"uid\" container \"main\" changed request for resource \"example.com/gpu\" from 1 to 2"
    );
}

#[test]
fn an_affinity_with_room_hides_the_other_devices_from_the_plugin() {
    let mut devices = four_gpus();
    let aligned = ids(&["g0", "g1"]);
    let Step::Ask(question) = begin(&mut devices, claim(1), &Ids::new(), Some(&aligned), &mut rng()).unwrap() else {
        panic!("not asked");
    };
    assert_eq!(question.offered, aligned);
    let chosen = finish(&mut devices, question, &ids(&["g3"]), &mut rng()).unwrap();
    assert!(set(chosen).is_subset(&aligned));
}

#[test]
fn an_affinity_that_is_too_small_is_taken_whole_and_becomes_must_include() {
    let mut devices = four_gpus();
    let Step::Ask(question) = begin(&mut devices, claim(2), &Ids::new(), Some(&ids(&["g0"])), &mut rng()).unwrap()
    else {
        panic!("not asked");
    };
    assert_eq!(question.must_include, ids(&["g0"]));
    assert_eq!(question.offered, ids(&["g0", "g1", "g2", "g3"]));
    let chosen = finish(&mut devices, question, &ids(&["g0", "g3"]), &mut rng()).unwrap();
    assert_eq!(set(chosen), ids(&["g0", "g3"]));
}
