//! The CSV forms: nodes, and pods with times, `arrive,end,cpu,memory,gpus,share,model,members,required,preferred`.
//!
//! `arrive` and `end` are seconds (`end` is empty for a pod that stays), `cpu` and `memory` Kubernetes amounts (`8`, `500m`, `64Gi`), `share` percent
//! of each GPU (empty: whole ones), `model` the models that will do, separated by `|` (empty: any). With `members` the row is a gang of so
//! many such pods, gathered in one domain of the layers or labels `required` and `preferred`. Nodes have `labels`, separated by `|`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use baton_contract::Quantity;
use baton_contract::gang::TopologySpec;

use super::input::{Form, InputError, TraceRow, TraceTable};
use super::trace::{Span, Trace, TraceAsk, TraceGang, TraceMachine};

const NODES: Form =
    Form { what: "nodes", needed: &["sn", "cpu_milli", "memory_mib", "gpu", "model"], optional: &["labels"] };
const PODS: Form = Form {
    what: "pods with times",
    needed: &["arrive", "end", "cpu", "memory", "gpus", "share", "model"],
    optional: &["members", "required", "preferred"],
};

/// A million CPUs: above, a number is a mistake.
pub const MOST_MILLI_CPU: i64 = 1_000_000_000;
/// A pebibyte.
pub const MOST_MIB: i64 = 1 << 30;
/// On one machine.
pub const MOST_GPUS: u32 = 128;
/// Of one gang.
const MOST_MEMBERS: u32 = 10_000;
/// 300 years: above, a number counts milliseconds.
pub const MOST_SECONDS: f64 = 1e10;

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
            labels: labels(row)?,
        });
    }
    Ok(machines)
}

fn labels(row: TraceRow<'_>) -> Result<BTreeMap<String, String>, InputError> {
    let label = |word: String| {
        let (key, value) = word.split_once('=').filter(|(key, _)| !key.is_empty())?;
        Some((key.to_owned(), value.to_owned()))
    };
    let read = row.words("labels").into_iter().map(label).collect::<Option<_>>();
    read.ok_or_else(|| row.wrong("labels", "list of labels, such as example.com/rack=r7|example.com/spine=s1"))
}

/// The pods of a file, without machines.
pub fn pods(path: &Path, name: String) -> Result<Trace, InputError> {
    let (_, table) = TraceTable::read(path, &[PODS])?;
    let mut trace = Trace::of(name, Vec::new());
    table.rows().try_for_each(|row| add(row, &mut trace))?;
    Ok(trace)
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
        gang: gang(row)?,
    };
    let arrive = row.number("arrive", 0.0, MOST_SECONDS)?;
    let end = row.maybe("end", arrive, MOST_SECONDS)?;
    trace.add(ask, Some(Span { arrive, end }), 1);
    Ok(())
}

/// The gang that a row is; `None` for a single pod.
fn gang(row: TraceRow<'_>) -> Result<Option<TraceGang>, InputError> {
    let layer = |name| Some(row.text(name)).filter(|text| !text.is_empty());
    let [required, preferred] = ["required", "preferred"].map(layer);
    let column = if required.is_some() { "required" } else { "preferred" };
    let read = TopologySpec::short(required, preferred);
    let topology = read.map_err(|_| row.wrong(column, "layer or label of nodes"))?;
    match row.maybe("members", 1, MOST_MEMBERS)? {
        Some(members) => Ok(Some(TraceGang { members, topology: topology.unwrap_or_default() })),
        None if topology.is_some() => Err(row.wrong("members", "number of members of a gang that is gathered")),
        None => Ok(None),
    }
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
        pods(&path, String::new()).map_err(|error| error.to_string())
    }

    const HEAD: &str = "arrive,end,cpu,memory,gpus,share,model\n";

    #[test]
    fn pods_are_read_with_their_columns_in_any_order() {
        let read =
            read("end,arrive,cpu,memory,gpus,share,model\n60,0,500m,1Gi,1,25,\n,10,8,64Gi,2,,T4|H100\n").unwrap();
        let share = TraceAsk { milli_cpu: 500, memory: 1 << 30, gpus: 1, milli: 250, models: Vec::new(), gang: None };
        let models = vec!["H100".into(), "T4".into()];
        let two = TraceAsk { milli_cpu: 8000, memory: 64 << 30, gpus: 2, milli: 1000, models, gang: None };
        assert_eq!(read.asks, [share, two]);
        let spans = [Some(60.0), None].into_iter().zip([0.0, 10.0]).map(|(end, arrive)| Some(Span { arrive, end }));
        assert_eq!(read.pods.iter().map(|pod| pod.span).collect::<Vec<_>>(), spans.collect::<Vec<_>>());
    }

    #[test]
    fn gangs_and_the_labels_of_nodes_are_read() {
        let head = HEAD.trim_end();
        let gangs = read(&format!("{head},members,required,preferred\n0,9,1,1Gi,8,,,4,spine,rack\n0,9,1,1Gi,8,,,,,\n"));
        let gangs: Vec<_> = gangs.unwrap().asks.into_iter().map(|ask| (ask.demand(), ask.size(), ask.gang)).collect();
        let topology = TopologySpec::short(Some("spine"), Some("rack")).unwrap().unwrap();
        let gang = Some(TraceGang { members: 4, topology });
        assert_eq!(gangs, [(32_000, "4x8".to_owned(), gang), (8000, "8".to_owned(), None)]);
        for (row, expected) in [
            ("0,9,1,1Gi,8,,,,,rack", "column 8 (members): \"\" is no number of members"),
            ("0,9,1,1Gi,8,,,0,,", "column 8 (members): \"0\" is no number from 1"),
            ("0,9,1,1Gi,8,,,2,one rack,", "column 9 (required): \"one rack\" is no layer"),
            ("0,9,1,1Gi,8,,,2,,one rack", "column 10 (preferred): \"one rack\" is no layer"),
        ] {
            let said = read(&format!("{head},members,required,preferred\n{row}\n")).unwrap_err();
            assert!(said.contains(expected), "{said:?} does not say {expected:?}");
        }
        let nodes = |labels: &str| {
            let (_dir, path) = file(&format!("sn,cpu_milli,memory_mib,gpu,model,labels\na,1,1,1,T4,{labels}\n"));
            machines(&path).map_err(|error| error.to_string())
        };
        let racks = nodes("z=|rack=r1").unwrap()[0].labels.clone();
        assert_eq!(racks, [("rack", "r1"), ("z", "")].map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        assert!(nodes("r1").unwrap_err().contains("column 6 (labels): \"r1\" is no list of labels"));
    }

    #[test]
    fn a_bad_table_is_refused_with_file_line_column_and_what_is_expected() {
        for (text, expected) in [
            ("", "in.csv:1: column arrive is missing"),
            (HEAD, "has no rows"),
            ("arrive,end,cpu,memory,gpus,share\n1,,1,1,1,\n", "in.csv:1: column model is missing"),
            ("model,arrive,end,cpu,memory,gpus,share,model\n", "column 8 (model) is there twice"),
            (&format!("{HEAD}5,,1,1Gi,1,,\n5,,1,1Gi,1,\n"), "in.csv:3: has 6 fields, the head of the table has 7"),
            (&format!("{HEAD}5,,1,1Gi,129,,\n"), "in.csv:2: column 5 (gpus): \"129\" is no number from 0 to 128"),
            (&format!("{HEAD}5,4,1,1Gi,1,,\n"), "column 2 (end): \"4\" is no number from 5"),
            (&format!("{HEAD}5,,one,1Gi,1,,\n"), "column 3 (cpu): \"one\" is no amount"),
            (&format!("{HEAD}5,,,1Gi,1,,\n"), "column 3 (cpu): \"\" is no amount"),
            (&format!("{HEAD}nan,,1,1Gi,1,,\n"), "column 1 (arrive): \"nan\""),
            (&format!("{HEAD}1e11,,1,1Gi,1,,\n"), "column 1 (arrive): \"1e11\" is no number from 0 to 10000000000"),
            (&format!("{HEAD}5,,1,1Gi,1,,\"T4\n6,,1,1Gi,1,,T4\n"), "in.csv:2: column 7 (model): \"T4\\n6,,1,1Gi,1,,T4"),
            (&format!("{HEAD}5,,1,1Gi,1,,T\u{1b}4\n"), "is no text of one line without control characters"),
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
