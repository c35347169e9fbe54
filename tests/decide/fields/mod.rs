//! Every field of a TYJob and of a PodGroup and every key of a gang: what is seen of each value in what is decided. A field or key
//! without a row fails, and so does one whose values all look the same.

mod gangs;
mod tyjobs;

use crate::prelude::*;

/// Field or key, value (`None`: it is left out), and what is seen.
type Row<'a> = (&'a str, Option<&'a str>, &'a str);

/// Looks at every row, prints the table, and fails with all that differ.
fn judge(what: &str, rows: &[Row<'_>], known: &BTreeSet<String>, look: impl Fn(&str, Option<&str>) -> String) {
    let (mut seen, mut wrong): (BTreeMap<&str, BTreeSet<String>>, Vec<String>) = Default::default();
    for (field, value, expected) in rows {
        let found = look(field, *value);
        println!("{field:58} {:34} {found}", value.unwrap_or("-"));
        if found != *expected {
            wrong.push(format!("{field} {value:?}: {found:?} instead of {expected:?}"));
        }
        seen.entry(field).or_default().insert(found);
    }
    let covered: BTreeSet<String> = seen.keys().map(|field| (*field).to_owned()).collect();
    wrong.extend(known.symmetric_difference(&covered).map(|field| format!("{field}: a row of no {what}, or no row")));
    let same = seen.iter().filter(|(_, seen)| seen.len() < 2);
    wrong.extend(same.map(|(field, seen)| format!("{field} changes nothing: {seen:?}")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Paths of the fields of an object in a schema. `opaque` ones are not looked into.
fn fields(schema: &Value, at: &str, opaque: &[&str], found: &mut BTreeSet<String>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{at}{name}");
        if opaque.contains(&path.as_str()) {
            found.insert(path);
        } else if field["properties"].is_object() {
            fields(field, &format!("{path}."), opaque, found);
        } else if field["items"]["properties"].is_object() {
            fields(&field["items"], &format!("{path}[]."), opaque, found);
        } else {
            found.insert(path);
        }
    }
}

/// The schema of `spec` in a CustomResourceDefinition.
fn spec_schema(crd: impl serde::Serialize) -> Value {
    let crd = serde_json::to_value(crd).unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
}
