//! Which spec is in force: the written one, or the accepted one when a started job was edited in a way that it cannot follow.

use super::spec::{TyJob, TyJobSpec};
use super::status::Stage;
use super::validate::{InvalidField, validate};

/// The spec in force and what is refused of the written one.
#[derive(Debug, Clone, PartialEq)]
pub struct Effective {
    /// What both daemons work by.
    pub spec: TyJobSpec,
    /// Why the written spec is not in force; empty when it is.
    pub refused: Vec<InvalidField>,
}

impl TyJob {
    /// `true` once the leader pod was made for the first time.
    pub fn started(&self) -> bool {
        let stage = self.status.as_ref().and_then(|status| status.stage);
        !matches!(stage, None | Some(Stage::Pending))
    }

    /// The spec in force. Before the job started, an invalid spec has nothing to fall back on and is `Err`. A started job
    /// keeps the last valid spec when the written one is invalid or changes names, templates or volumes; only
    /// `terminating` always counts as written. `unreadable` is what [`TyJob::read`] could not read, which is invalid too.
    pub fn effective(&self, unreadable: Option<&InvalidField>) -> Result<Effective, Vec<InvalidField>> {
        let invalid = unreadable.map_or_else(|| validate(self), |field| vec![field.clone()]);
        let accepted = self.status.as_ref().and_then(|status| status.accepted_spec.as_ref());
        let accepted: Option<TyJobSpec> = accepted.and_then(|spec| serde_json::from_value(spec.clone()).ok());
        let accepted = accepted.filter(|_| self.started());
        let refused = match &accepted {
            Some(accepted) if invalid.is_empty() => frozen(accepted, &self.spec),
            _ => invalid,
        };
        match accepted {
            _ if refused.is_empty() => Ok(Effective { spec: self.spec.clone(), refused }),
            Some(accepted) => {
                let spec = TyJobSpec { terminating: self.spec.terminating, ..accepted };
                Ok(Effective { spec, refused })
            }
            None => Err(refused),
        }
    }
}

/// What may not change once a job started.
fn frozen(old: &TyJobSpec, new: &TyJobSpec) -> Vec<InvalidField> {
    let mut changed = Vec::new();
    let mut same = |same: bool, field: String| {
        if !same {
            let message = "cannot change once the job has started; make a new job instead".to_owned();
            changed.push(InvalidField { field, message });
        }
    };
    same(old.volumes == new.volumes, "spec.volumes".to_owned());
    same(old.leader.name == new.leader.name, "spec.leader.name".to_owned());
    same(old.leader.template == new.leader.template, "spec.leader.template".to_owned());
    let names = |spec: &TyJobSpec| -> Vec<String> { spec.worker_sets.iter().map(|set| set.name.clone()).collect() };
    same(names(old) == names(new), "spec.workerSets[*].name".to_owned());
    for (index, (old, new)) in old.worker_sets.iter().zip(&new.worker_sets).enumerate() {
        same(old.template == new.template, format!("spec.workerSets[{index}].template"));
    }
    changed
}
