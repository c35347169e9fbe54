//! Counters of requests, so that tests can say how many API writes a pod costs.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// What is counted apart.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Counted {
    /// e.g. `patch`.
    pub verb: String,
    /// Plural, e.g. `pods`; the path for requests that are no resource.
    pub resource: String,
    /// e.g. `binding`, or empty.
    pub subresource: String,
    /// User name.
    pub user: String,
    /// Program name of the user agent.
    pub agent: String,
}

/// Requests received, refused ones included.
#[derive(Debug, Default)]
pub struct Counts(Mutex<BTreeMap<Counted, u64>>);

impl Counts {
    pub(super) fn add(&self, what: Counted) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(what).or_default() += 1;
    }

    /// All counters.
    pub fn all(&self) -> BTreeMap<Counted, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sum of the counters that `wanted` picks.
    pub fn sum(&self, wanted: impl Fn(&Counted) -> bool) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().filter(|(k, _)| wanted(k)).map(|(_, n)| n).sum()
    }

    /// Requests with this verb, resource and subresource, of any user.
    pub fn of(&self, verb: &str, resource: &str, subresource: &str) -> u64 {
        self.sum(|c| c.verb == verb && c.resource == resource && c.subresource == subresource)
    }

    /// Writes (create, update, patch, delete, deletecollection) to this resource with any subresource, of any user.
    pub fn writes(&self, resource: &str) -> u64 {
        let write = |verb: &str| matches!(verb, "create" | "update" | "patch" | "delete" | "deletecollection");
        self.sum(|c| c.resource == resource && write(&c.verb))
    }

    /// Forgets everything counted so far.
    pub fn reset(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
