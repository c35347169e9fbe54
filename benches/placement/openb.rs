//! The CSV forms of Alibaba's openb traces: lists of pods with or without times, and lists that count equal pods. Its nodes are in the
//! form of `baton simulate`.

use std::path::Path;

use baton::ops::simulate::input::{Form, InputError, TraceRow, TraceTable};
use baton::ops::simulate::own::{MOST_GPUS, MOST_MIB, MOST_MILLI_CPU, MOST_SECONDS};
use baton::ops::simulate::trace::{Span, Trace, TraceAsk, WHOLE};

const ASK: [&str; 5] = ["cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec"];
const COUNTED: Form =
    Form { what: "counted kinds of pods", needed: &[ASK[0], ASK[1], ASK[2], ASK[3], ASK[4], "count"], optional: &[] };
const PODS: Form = Form {
    what: "pods",
    needed: &["name", ASK[0], ASK[1], ASK[2], ASK[3], ASK[4]],
    optional: &["qos", "pod_phase", "creation_time", "deletion_time", "scheduled_time"],
};

/// Pods of one list.
const MOST_PODS: usize = 10_000_000;

/// The pods of a file.
pub fn pods(path: &Path, trace: &mut Trace) -> Result<(), InputError> {
    let (form, table) = TraceTable::read(path, &[COUNTED, PODS])?;
    for row in table.rows() {
        match form {
            0 => {
                let count = row.number("count", 0, MOST_PODS)?;
                if trace.pods.len() + count > MOST_PODS {
                    return Err(row.wrong("count", format!("count with which the list stays below {MOST_PODS} pods")));
                }
                trace.add(ask(row)?, None, count);
            }
            _ => trace.add(ask(row)?, span(row)?, 1),
        }
    }
    Ok(())
}

fn ask(row: TraceRow<'_>) -> Result<TraceAsk, InputError> {
    let gpus = row.number("num_gpu", 0, MOST_GPUS)?;
    let least = i64::from(gpus > 0);
    let milli = row.number("gpu_milli", least, if gpus > 0 { WHOLE } else { 0 })?;
    Ok(TraceAsk {
        milli_cpu: row.number("cpu_milli", 0, MOST_MILLI_CPU)?,
        memory: row.number("memory_mib", 0, MOST_MIB)? << 20,
        gpus,
        milli,
        models: row.words("gpu_spec"),
        gang: None,
    })
}

/// The times of a row; `None` where it has none.
fn span(row: TraceRow<'_>) -> Result<Option<Span>, InputError> {
    let Some(arrive) = row.maybe("creation_time", 0.0, MOST_SECONDS)? else { return Ok(None) };
    let end = row.maybe("deletion_time", arrive, MOST_SECONDS)?;
    row.maybe("scheduled_time", 0.0, MOST_SECONDS)?;
    Ok(Some(Span { arrive, end }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Trace, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("in.csv");
        std::fs::write(&path, text).unwrap();
        let mut trace = Trace::default();
        pods(&path, &mut trace).map_err(|error| error.to_string())?;
        Ok(trace)
    }

    const HEAD: &str = "cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,count\n";

    #[test]
    fn every_form_is_read_with_its_columns_in_any_order() {
        let counted =
            read("count,gpu_spec,gpu_milli,num_gpu,memory_mib,cpu_milli\n2,P100|T4,500,1,1024,4000\n").unwrap();
        assert!(counted.pods.len() == 2 && counted.pods[0].span.is_none());
        let ask = TraceAsk {
            milli_cpu: 4000,
            memory: 1 << 30,
            gpus: 1,
            milli: 500,
            models: vec!["P100".into(), "T4".into()],
            gang: None,
        };
        assert_eq!(counted.asks, [ask]);
        let timed = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n\
                     a,1000,1,8,1000,,LS,Running,5,9,\n";
        assert_eq!(read(timed).unwrap().pods[0].span, Some(Span { arrive: 5.0, end: Some(9.0) }));
    }

    #[test]
    fn a_bad_table_is_refused_with_file_line_column_and_what_is_expected() {
        for (text, expected) in [
            ("", "in.csv:1: column cpu_milli is missing"),
            (HEAD, "has no rows"),
            ("cpu_milli,memory_mib,num_gpu,gpu_milli,count\n1,1,1,1,1\n", "in.csv:1: column gpu_spec is missing"),
            (
                "cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,count,qps\n",
                "in.csv:1: column 7 (\"qps\") is not known",
            ),
            ("count,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,count\n", "column 7 (count) is there twice"),
            (&format!("{HEAD}1000,1,1,500,,1\n1000,1,1,500,\n"), "in.csv:3: has 5 fields, the head of the table has 6"),
            (&format!("{HEAD}-1,1,1,500,,1\n"), "in.csv:2: column 1 (cpu_milli): \"-1\" is no number from 0"),
            (&format!("{HEAD},1,1,500,,1\n"), "column 1 (cpu_milli): \"\" is no number"),
            (&format!("{HEAD}1000,99999999999999999999,1,500,,1\n"), "column 2 (memory_mib)"),
            (&format!("{HEAD}1000,1,129,1000,,1\n"), "column 3 (num_gpu): \"129\" is no number from 0 to 128"),
            (&format!("{HEAD}1000,1,1,0,,1\n"), "column 4 (gpu_milli): \"0\" is no number from 1 to 1000"),
            (&format!("{HEAD}1000,1,1,1001,,1\n"), "from 1 to 1000"),
            (&format!("{HEAD}1000,1,0,500,,1\n"), "column 4 (gpu_milli): \"500\" is no number from 0 to 0"),
            (&format!("{HEAD}1000,1,1,500,,99999999\n"), "column 6 (count)"),
        ] {
            let said = read(text).unwrap_err();
            assert!(said.contains(expected), "{said:?} does not say {expected:?}");
        }
    }
}
