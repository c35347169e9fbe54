//! Members of gangs, declared by annotations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use baton::decide::world::PodFacts;
use baton::decide::world::gangs::{DeclarationSource, Declared};

use crate::values::pod;

fn declared(gang: &str, min: usize, more: &[(&str, &str)]) -> Option<Arc<Declared>> {
    let own = "gang.scheduling.koordinator.sh/";
    let mut annotations: BTreeMap<String, String> = [("name", gang.to_owned()), ("min-available", min.to_string())]
        .map(|(key, value)| (format!("{own}{key}"), value))
        .into();
    annotations.extend(more.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    let source =
        DeclarationSource { namespace: "ml", labels: None, annotations: Some(&annotations), scheduling_group: None };
    Declared::read(&source, || None).map(Arc::new)
}

/// Members of one gang of all of them, or pods by themselves.
pub fn members(gang: &str, count: usize, keys: bool, limits: &[(&str, &str)]) -> Vec<PodFacts> {
    of(gang, count, limits, keys.then(|| declared(gang, count, &[])).flatten())
}

/// Members of one gang of all of them, with these annotations.
#[allow(dead_code)] // other benches gather no gangs
pub fn gathered(gang: &str, count: usize, limits: &[(&str, &str)], more: &[(&str, &str)]) -> Vec<PodFacts> {
    of(gang, count, limits, declared(gang, count, more))
}

fn of(gang: &str, count: usize, limits: &[(&str, &str)], said: Option<Arc<Declared>>) -> Vec<PodFacts> {
    let member = |n: usize| {
        let mut facts = pod(&format!("{gang}-{n}"), limits, Duration::from_secs(1000));
        facts.spec.labels = [("app".to_owned(), "train".to_owned())].into();
        facts.spec.gang.clone_from(&said);
        facts
    };
    (0..count).map(member).collect()
}
