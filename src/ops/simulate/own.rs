//! The CSV forms: nodes, and pods with times, `arrive,end,cpu,memory,gpus,share,model`.
//!
//! `arrive` and `end` are seconds (`end` is empty for a pod that stays), `cpu` and `memory` Kubernetes amounts (`8`, `500m`, `64Gi`), `share` percent
//! of each GPU (empty: whole ones), `model` the models that will do, separated by `|` (empty: any).

use std::collections::BTreeSet;
use std::path::Path;

use baton_contract::Quantity;

use super::input::{Form, InputError, TraceRow, TraceTable};
use super::trace::{Span, Trace, TraceAsk, TraceMachine};

const NODES: Form = Form { what: "nodes", needed: &["sn", "cpu_milli", "memory_mib", "gpu", "model"], optional: &[] };
const PODS: Form = Form {
    what: "pods with times",
    needed: &["arrive", "end", "cpu", "memory", "gpus", "share", "model"],
    optional: &[],
};

/// A million CPUs: above, a number is a mistake.
pub const MOST_MILLI_CPU: i64 = 1_000_000_000;
/// A pebibyte.
pub const MOST_MIB: i64 = 1 << 30;
/// On one machine.
pub const MOST_GPUS: u32 = 128;
/// 300 thousand years.
pub const MOST_SECONDS: f64 = 1e13;

/// The machines of a file.
pub fn machines(path: &Path) -> Result<Vec<TraceMachine>, InputError> {
    let (_, table) = TraceTable::read(path, &[NODES])?;
    let (mut machines, mut names) = (Vec::new(), BTreeSet::new());
    for row in table.rows() {
        let name = row.text("sn");
        if name.is_empty() || !names.insert(name) {
            return Err(row.wrong("sn", "name of a node that no other node has"));
        }
        machines.push(TraceMachine {
            name: name.to_owned(),
            milli_cpu: row.number("cpu_milli", 0, MOST_MILLI_CPU)?,
            memory: row.number("memory_mib", 0, MOST_MIB)? << 20,
            gpus: row.number("gpu", 0, MOST_GPUS)?,
            model: row.text("model").to_owned(),
        });
    }
    Ok(machines)
}

/// Adds the pods of a file.
pub fn pods(path: &Path, trace: &mut Trace) -> Result<(), InputError> {
    let (_, table) = TraceTable::read(path, &[PODS])?;
    table.rows().try_for_each(|row| add(row, trace))
}

fn add(row: TraceRow<'_>, trace: &mut Trace) -> Result<(), InputError> {
    let amount = |name: &'static str, example: &str| {
        let amount = row.text(name).parse::<Quantity>().ok().filter(|amount| amount.value() >= 0);
        amount.ok_or_else(|| row.wrong(name, format!("amount, such as {example}")))
    };
    let gpus = row.number("gpus", 0, MOST_GPUS)?;
    let share = row.maybe("share", 1, 100)?.unwrap_or(100);
    let ask = TraceAsk {
        milli_cpu: amount("cpu", "8 or 500m")?.milli_value(),
        memory: amount("memory", "64Gi")?.value(),
        gpus,
        milli: if gpus == 0 { 0 } else { share * 10 },
        models: row.words("model"),
    };
    let arrive = row.number("arrive", 0.0, MOST_SECONDS)?;
    let end = row.maybe("end", arrive, MOST_SECONDS)?;
    trace.add(ask, Some(Span { arrive, end }), 1);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("in.csv");
        std::fs::write(&path, text).unwrap();
        (dir, path)
    }

    fn read(text: &str) -> Result<Trace, String> {
        let (_dir, path) = file(text);
        let mut trace = Trace::default();
        pods(&path, &mut trace).map_err(|error| error.to_string())?;
        Ok(trace)
    }

    const HEAD: &str = "arrive,end,cpu,memory,gpus,share,model\n";

    #[test]
    fn pods_are_read_with_their_columns_in_any_order() {
        let read =
            read("end,arrive,cpu,memory,gpus,share,model\n60,0,500m,1Gi,1,25,\n,10,8,64Gi,2,,T4|H100\n").unwrap();
        let share = TraceAsk { milli_cpu: 500, memory: 1 << 30, gpus: 1, milli: 250, models: Vec::new() };
        let models = vec!["H100".into(), "T4".into()];
        assert_eq!(read.asks, [share, TraceAsk { milli_cpu: 8000, memory: 64 << 30, gpus: 2, milli: 1000, models }]);
        let spans = [Some(60.0), None].into_iter().zip([0.0, 10.0]).map(|(end, arrive)| Some(Span { arrive, end }));
        assert_eq!(read.pods.iter().map(|pod| pod.span).collect::<Vec<_>>(), spans.collect::<Vec<_>>());
    }

    #[test]
    fn a_bad_table_is_refused_with_file_line_column_and_what_is_expected() {
        for (text, expected) in [
            ("", "in.csv:1: column arrive is missing"),
            (HEAD, "has no rows"),
            ("arrive,end,cpu,memory,gpus,share\n1,,1,1,1,\n", "in.csv:1: column model is missing"),
            (
                "cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n",
                "in.csv:1: column 1 (\"cpu_milli\") is not known; expected pods",
            ),
            ("model,arrive,end,cpu,memory,gpus,share,model\n", "column 8 (model) is there twice"),
            (&format!("{HEAD}5,,1,1Gi,1,,\n5,,1,1Gi,1,\n"), "in.csv:3: has 6 fields, the head of the table has 7"),
            (&format!("{HEAD}5,,1,1Gi,129,,\n"), "in.csv:2: column 5 (gpus): \"129\" is no number from 0 to 128"),
            (&format!("{HEAD}5,4,1,1Gi,1,,\n"), "column 2 (end): \"4\" is no number from 5"),
            (&format!("{HEAD}5,,one,1Gi,1,,\n"), "column 3 (cpu): \"one\" is no amount"),
            (&format!("{HEAD}5,,,1Gi,1,,\n"), "column 3 (cpu): \"\" is no amount"),
            (&format!("{HEAD}5,,1,1Gi,1,101,\n"), "column 6 (share): \"101\" is no number from 1 to 100"),
            (&format!("{HEAD}nan,,1,1Gi,1,,\n"), "column 1 (arrive): \"nan\""),
        ] {
            let said = read(text).unwrap_err();
            assert!(said.contains(expected), "{said:?} does not say {expected:?}");
        }
        let (_dir, path) = file("sn,cpu_milli,memory_mib,gpu,model\na,1,1,1,T4\na,1,1,1,T4\n");
        assert!(
            machines(&path)
                .unwrap_err()
                .to_string()
                .contains("in.csv:3: column 1 (sn): \"a\" is no name of a node that no")
        );
        let missing = machines(Path::new("/nowhere.csv")).unwrap_err().to_string();
        assert!(missing.starts_with("/nowhere.csv: "), "{missing}");
    }
}
