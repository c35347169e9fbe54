//! Which devices a container gets, in the kubelet's order: what it already holds, what the pod's init containers left,
//! what the plugin prefers, then anything.
//!
//! ```text
//! begin ──► Nothing            already held, or the container runs since before this kubelet started
//!       ├─► Chosen(ids)        the reusable devices suffice
//!       ├─► Ask(question) ──► finish(preferred) ──► ids
//!       └─► Err(Refusal)
//! ```

use super::devices::Devices;
use super::grants::Ids;

/// A container's claim on one resource.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// Pod uid.
    pub uid: &'a str,
    /// Container name.
    pub container: &'a str,
    /// Resource name.
    pub resource: &'a str,
    /// The container's limit.
    pub required: usize,
    /// The container has been running since before this kubelet started, and the kubelet is still starting.
    pub running_since_before: bool,
}

/// What happens next.
#[derive(Debug)]
pub enum Step {
    /// No call is needed.
    Nothing,
    /// These ids are to be allocated.
    Chosen(Vec<String>),
    /// The plugin may be asked which ids it prefers.
    Ask(Question),
}

/// The state between the two halves of a choice; the plugin's preference comes between them.
#[derive(Debug)]
pub struct Question {
    resource: String,
    required: usize,
    chosen: Vec<String>,
    available: Ids,
    first: Ids,
    rest: Ids,
    /// Ids that the plugin may choose from, the ones already chosen included.
    pub offered: Ids,
    /// Ids that the choice will contain.
    pub must_include: Ids,
}

impl Question {
    /// How many ids the container needs in all.
    pub fn size(&self) -> usize {
        self.required
    }
}

/// Why a container gets no devices; the text is the kubelet's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The pod asks for another number than it was given before.
    #[error("pod {uid:?} container {container:?} changed request for resource {resource:?} from {held} to {required}")]
    Changed {
        /// Pod uid.
        uid: String,
        /// Container name.
        container: String,
        /// Resource name.
        resource: String,
        /// What it holds.
        held: usize,
        /// What it asks for.
        required: usize,
    },
    /// Devices were handed out once, but no plugin is known any more.
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    /// The plugin is away, or all its devices are unhealthy.
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    NoneHealthy(String),
    /// What the container holds has become unhealthy.
    #[error("previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}")]
    NoLongerHealthy(String),
    /// Too few are free.
    #[error("requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}")]
    TooFew {
        /// Resource name.
        resource: String,
        /// Still needed after reuse.
        requested: usize,
        /// Healthy and free.
        available: usize,
    },
    /// The choice ran out of devices while the plugin was being asked.
    #[error("unexpectedly allocated less resources than required. Requested: {requested}, Got: {got}")]
    RanOut {
        /// The container's limit.
        requested: usize,
        /// What was found.
        got: usize,
    },
}

/// First half: everything up to the plugin's preference. `aligned` restricts the first choice as a topology manager would.
pub fn begin(
    devices: &mut Devices,
    claim: Claim<'_>,
    reusable: &Ids,
    aligned: Option<&Ids>,
    rng: &mut fastrand::Rng,
) -> Result<Step, Refusal> {
    let Some(healthy) = to_serve(devices, claim)? else { return Ok(Step::Nothing) };
    let Claim { resource, required, .. } = claim;
    let mut chosen = Vec::new();
    take(devices, resource, &mut chosen, required, reusable, rng);
    if chosen.len() == required {
        return Ok(Step::Chosen(chosen));
    }
    let in_use = devices.allocated.get(resource).cloned().unwrap_or_default();
    let available: Ids = healthy.difference(&in_use).cloned().collect();
    let needed = required - chosen.len();
    if available.len() < needed {
        return Err(Refusal::TooFew { resource: resource.to_owned(), requested: needed, available: available.len() });
    }
    let aligned: Ids = aligned.map(|set| available.intersection(set).cloned().collect()).unwrap_or_default();
    // When the aligned devices are more than enough, only they are offered. Otherwise all of them are taken unasked.
    let (first, rest, pool) = if needed < aligned.len() {
        (aligned.clone(), Ids::new(), aligned)
    } else {
        take(devices, resource, &mut chosen, required, &aligned, rng);
        if chosen.len() == required {
            return Ok(Step::Chosen(chosen));
        }
        (available.clone(), available.difference(&aligned).cloned().collect(), available.clone())
    };
    let must_include: Ids = chosen.iter().cloned().collect();
    let offered = pool.union(&must_include).cloned().collect();
    Ok(Step::Ask(Question {
        resource: resource.to_owned(),
        required,
        chosen,
        available,
        first,
        rest,
        offered,
        must_include,
    }))
}

/// The healthy devices for a claim that needs some; `None` where nothing is to be done.
fn to_serve(devices: &Devices, claim: Claim<'_>) -> Result<Option<Ids>, Refusal> {
    let Claim { uid, container, resource, required, running_since_before } = claim;
    let held = devices.grants.ids(uid, container, resource);
    if let Some(held) = held.as_ref().filter(|held| held.len() != required) {
        return Err(Refusal::Changed {
            uid: uid.to_owned(),
            container: container.to_owned(),
            resource: resource.to_owned(),
            held: held.len(),
            required,
        });
    }
    if running_since_before {
        return Ok(None);
    }
    // Health is judged before "nothing is needed": a held device that is gone must not be replayed.
    let Some(health) = devices.health.get(resource) else {
        return Err(Refusal::Unregistered(resource.to_owned()));
    };
    if health.healthy.is_empty() {
        return Err(Refusal::NoneHealthy(resource.to_owned()));
    }
    match held {
        Some(held) if held.is_subset(&health.healthy) => Ok(None),
        Some(_) => Err(Refusal::NoLongerHealthy(resource.to_owned())),
        None => Ok((required > 0).then(|| health.healthy.clone())),
    }
}

/// Second half: the preferred ids first (unknown ones are ignored), then any.
pub fn finish(
    devices: &mut Devices,
    question: Question,
    preferred: &Ids,
    rng: &mut fastrand::Rng,
) -> Result<Vec<String>, Refusal> {
    let Question { resource, required, mut chosen, available, first, rest, .. } = question;
    let wanted: Ids = preferred.intersection(&first).filter(|id| available.contains(*id)).cloned().collect();
    let fallback = if rest.is_empty() { &first } else { &rest };
    for pool in [&wanted, fallback] {
        take(devices, &resource, &mut chosen, required, pool, rng);
        if chosen.len() == required {
            return Ok(chosen);
        }
    }
    Err(Refusal::RanOut { requested: required, got: chosen.len() })
}

/// Reserves from `pool`, in random order, until `required` are chosen.
fn take(
    devices: &mut Devices,
    resource: &str,
    chosen: &mut Vec<String>,
    required: usize,
    pool: &Ids,
    rng: &mut fastrand::Rng,
) {
    let mut pool: Vec<&String> = pool.iter().filter(|id| !chosen.contains(id)).collect();
    rng.shuffle(&mut pool);
    let reserved = devices.allocated.entry(resource.to_owned()).or_default();
    for id in pool.into_iter().take(required - chosen.len()) {
        reserved.insert(id.clone());
        chosen.push(id.clone());
    }
}

#[cfg(test)]
mod tests;
