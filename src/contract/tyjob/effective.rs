//! Reading a TYJob from the wire, and which spec is in force: the written one, or the accepted one when a started job was edited
//! in a way that it cannot follow.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::spec::{TyJob, TyJobSpec};
use super::status::{Stage, TyJobStatus};
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
    /// A TYJob from its metadata, spec and status (null when absent), and the part of its spec that does not fit the type; the
    /// spec is then empty. Objects that are older than the schema can be so. `Err` is a status that cannot be read: such a job
    /// is left alone.
    pub fn of_parts(
        metadata: ObjectMeta,
        spec: &Value,
        status: &Value,
    ) -> Result<(Self, Option<InvalidField>), InvalidField> {
        let bad = |field: &str, error: &serde_json::Error| InvalidField {
            field: field.to_owned(),
            message: error.to_string(),
        };
        let status: Option<TyJobStatus> =
            serde_json::from_value(status.clone()).map_err(|error| bad("status", &error))?;
        match serde_json::from_value::<TyJobSpec>(spec.clone()) {
            Ok(spec) => Ok((Self { metadata, spec, status }, None)),
            Err(error) => Ok((Self { metadata, spec: TyJobSpec::default(), status }, Some(bad("spec", &error)))),
        }
    }

    /// [`TyJob::of_parts`] of a whole object.
    pub fn read(value: &Value) -> Result<(Self, Option<InvalidField>), InvalidField> {
        let metadata = serde_json::from_value(value["metadata"].clone())
            .map_err(|error| InvalidField { field: "metadata".to_owned(), message: error.to_string() })?;
        Self::of_parts(metadata, &value["spec"], &value["status"])
    }

    /// `true` once the leader pod was made for the first time.
    pub fn started(&self) -> bool {
        let stage = self.status.as_ref().and_then(|status| status.stage);
        !matches!(stage, None | Some(Stage::Pending))
    }

    /// The spec in force. Before the job started, an invalid spec has nothing to fall back on and is `Err`. A started job
    /// keeps the last valid spec when the written one is invalid or changes templates, volumes or the leader's name; only
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
            Some(accepted) => Ok(Effective { spec: fall_back(accepted, &self.spec), refused }),
            None => Err(refused),
        }
    }

    /// The spec in force of a job whose leader pod has just been seen for the first time: as written, unless the edit since the
    /// pod was made is one that a started job cannot follow.
    pub fn spec_at_start(&self, written: &TyJobSpec) -> TyJobSpec {
        let accepted = self.status.as_ref().and_then(|status| status.accepted_spec.as_ref());
        let accepted: Option<TyJobSpec> = accepted.and_then(|spec| serde_json::from_value(spec.clone()).ok());
        match accepted {
            Some(accepted) if !frozen(&accepted, written).is_empty() => fall_back(accepted, written),
            _ => written.clone(),
        }
    }
}

/// `terminating` counts as written: the user can always end a job.
fn fall_back(accepted: TyJobSpec, written: &TyJobSpec) -> TyJobSpec {
    TyJobSpec { terminating: written.terminating, ..accepted }
}

/// Changes that a started job cannot follow.
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
    // By name: the list is a map to the API server, whose merges may reorder it. New and removed sets are a change of counts.
    for (index, set) in new.worker_sets.iter().enumerate() {
        let former = old.worker_sets.iter().find(|former| former.name == set.name);
        same(former.is_none_or(|former| former.template == set.template), format!("spec.workerSets[{index}].template"));
    }
    changed
}
