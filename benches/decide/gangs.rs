//! Members of gangs, declared by annotations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use baton::decide::world::PodFacts;
use baton::decide::world::gangs::{DeclarationSource, Declared};

use crate::values::pod;

fn declared(gang: &str, min: usize) -> Option<Arc<Declared>> {
    let own = "gang.scheduling.koordinator.sh/";
    let annotations: BTreeMap<String, String> = [("name", gang.to_owned()), ("min-available", min.to_string())]
        .map(|(key, value)| (format!("{own}{key}"), value))
        .into();
    let source =
        DeclarationSource { namespace: "ml", labels: None, annotations: Some(&annotations), scheduling_group: None };
    Declared::read(&source, || None).map(Arc::new)
}

/// Members of one gang of all of them, or pods by themselves.
pub fn members(gang: &str, count: usize, keys: bool, limits: &[(&str, &str)]) -> Vec<PodFacts> {
    let said = keys.then(|| declared(gang, count)).flatten();
    let member = |n: usize| {
        let mut facts = pod(&format!("{gang}-{n}"), limits, Duration::from_secs(1000));
        facts.spec.labels = [("app".to_owned(), "train".to_owned())].into();
        facts.spec.gang.clone_from(&said);
        facts
    };
    (0..count).map(member).collect()
}
