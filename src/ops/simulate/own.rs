//! The CSV form for pods of one's own: `arrive,end,cpu,memory,gpus,share,model`.
//!
//! `arrive` and `end` are seconds (`end` is empty for a pod that stays), `cpu` and `memory` Kubernetes amounts (`8`, `500m`, `64Gi`), `share` percent
//! of each GPU (empty: whole ones), `model` the models that will do, separated by `|` (empty: any).

use baton_contract::Quantity;

use super::input::{Form, InputError, TraceRow};
use super::trace::{Span, Trace, TraceAsk};

/// Its columns.
pub const FORM: Form = Form {
    what: "pods with times",
    needed: &["arrive", "end", "cpu", "memory", "gpus", "share", "model"],
    optional: &[],
};

/// Adds a row to the trace.
pub fn add(row: TraceRow<'_>, trace: &mut Trace) -> Result<(), InputError> {
    let amount = |name: &'static str, example: &str| {
        let amount = row.text(name).parse::<Quantity>().ok().filter(|amount| amount.value() >= 0);
        amount.ok_or_else(|| row.wrong(name, format!("amount, such as {example}")))
    };
    let gpus = row.number("gpus", 0, 128)?;
    let share = row.maybe("share", 1, 100)?.unwrap_or(100);
    let ask = TraceAsk {
        milli_cpu: amount("cpu", "8 or 500m")?.milli_value(),
        memory: amount("memory", "64Gi")?.value(),
        gpus,
        milli: if gpus == 0 { 0 } else { share * 10 },
        models: row.words("model"),
    };
    let arrive = row.number("arrive", 0.0, 1e13)?;
    let end = row.maybe("end", arrive, 1e13)?;
    trace.add(ask, Some(Span { arrive, end }), 1);
    Ok(())
}
