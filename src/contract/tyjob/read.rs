//! Reading a TYJob from the wire: one that does not fit the type is a value too, so that it can be refused aloud.

use serde_json::Value;

use super::spec::TyJob;
use super::validate::InvalidField;

impl TyJob {
    /// A job from its JSON. An error names the part that does not fit, as far as it is known.
    pub fn read(value: &Value) -> Result<Self, InvalidField> {
        serde_json::from_value(value.clone()).map_err(|error| {
            let bad = ["spec", "status"].into_iter().find(|half| !fits(half, &value[*half]));
            InvalidField { field: bad.unwrap_or("metadata").to_owned(), message: error.to_string() }
        })
    }
}

fn fits(half: &str, value: &Value) -> bool {
    match half {
        "spec" => serde_json::from_value::<super::TyJobSpec>(value.clone()).is_ok(),
        _ => value.is_null() || serde_json::from_value::<super::TyJobStatus>(value.clone()).is_ok(),
    }
}
