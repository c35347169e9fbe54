//! Reading a TYJob from the wire: a spec that does not fit the type is a value too, so that it can be refused aloud.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::spec::{TyJob, TyJobSpec};
use super::status::TyJobStatus;
use super::validate::InvalidField;

impl TyJob {
    /// A job from its metadata, spec and status (null when absent), and the part of its spec that does not fit the type; the
    /// spec is then empty. Objects that came in before the schema did can be so. `Err` is for a status that says nothing that
    /// can be relied on: such a job is left alone.
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
}
