//! The shapes of the object, and every reason to refuse one.

use serde_json::{Value, json};

use super::*;

fn golden() -> Value {
    serde_json::from_str(include_str!("../../../tests/golden/tyjob.json")).unwrap()
}

fn job(edit: impl FnOnce(&mut Value)) -> TyJob {
    let mut value = golden();
    edit(&mut value);
    serde_json::from_value(value).unwrap()
}

fn refused(edit: impl FnOnce(&mut Value)) -> Vec<String> {
    validate(&job(edit)).into_iter().map(|invalid| invalid.field).collect()
}

#[test]
fn the_golden_object_is_read_and_printed_back() {
    let job: TyJob = serde_json::from_value(golden()).unwrap();
    assert_eq!(serde_json::to_value(&job).unwrap(), golden());
    assert_eq!(validate(&job), Vec::new());
    assert_eq!(job.status.unwrap().allocations[1].worker_set.as_deref(), Some("actor"));
}

#[test]
fn amounts_that_no_pod_may_have_are_refused_with_the_template() {
    for resources in [
        json!({ "requests": { "nvidia.com/gpu": 0 }, "limits": { "nvidia.com/gpu": 8 } }),
        json!({ "requests": { "cpu": "-1000" } }),
    ] {
        let edit = |job: &mut Value| {
            job["spec"]["workerSets"][0]["template"]["spec"]["containers"][0]["resources"] = resources;
        };
        assert_eq!(refused(edit), ["spec.workerSets[0].template.spec"]);
    }
}

#[test]
fn what_is_left_out_has_its_default() {
    let pod = json!({ "spec": { "containers": [{ "name": "main" }] } });
    let spec = json!({ "leader": { "name": "l", "template": pod }, "workerSets": [{ "name": "w", "template": pod }] });
    let spec: TyJobSpec = serde_json::from_value(spec).unwrap();
    assert_eq!((spec.restart_limit, spec.min_workers_num, spec.priority, spec.terminating), (3, 1, 5, false));
    assert_eq!((spec.worker_sets[0].counts, spec.clean_pod_policy), (1, CleanPodPolicy::All));
    let policy = SchedulerPolicy { job_queue_policy: JobQueuePolicy::Priority, basic_policy: BasicPolicy::BinPack };
    assert_eq!(spec.scheduler_policy, policy);
    assert_eq!(spec.leader.template.restart_policy(), "Never");
}

#[test]
fn the_schema_has_the_defaults_of_the_types_and_none_in_the_status() {
    let crd = serde_json::to_value(crd()).unwrap();
    let version = &crd["spec"]["versions"][0];
    assert_eq!(version["subresources"]["status"], json!({}));
    assert_eq!((&crd["spec"]["names"]["shortNames"], &crd["spec"]["scope"]), (&json!(["tyj"]), &json!("Namespaced")));
    let schema = &version["schema"]["openAPIV3Schema"]["properties"];
    let spec = &schema["spec"]["properties"];
    for (field, default) in [
        ("restartLimit", json!(3)),
        ("minWorkersNum", json!(1)),
        ("priority", json!(5)),
        ("terminating", json!(false)),
        ("cleanPodPolicy", json!("All")),
        ("schedulerPolicy", json!({ "jobQueuePolicy": "Priority", "basicPolicy": "BinPack" })),
    ] {
        assert_eq!(spec[field]["default"], default, "{field}");
    }
    assert_eq!(spec["workerSets"]["items"]["properties"]["counts"]["default"], 1);
    assert!(!schema["status"].to_string().contains("\"default\""), "{}", schema["status"]);
    assert!(!schema["spec"].to_string().contains("\"nullable\":true"), "{}", schema["spec"]);
    let most = &spec["workerSets"]["items"]["properties"]["counts"]["maximum"];
    assert_eq!(most.as_f64(), Some(f64::from(MAX_PODS)));
}

/// A real server adds up what each rule may cost at most and refuses the whole definition above its budget; what a rule goes
/// over without a bound counts as if it filled a request.
#[test]
fn everything_that_a_rule_goes_over_has_a_bound() {
    let crd = serde_json::to_value(crd()).unwrap();
    let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    let set = &spec["workerSets"]["items"]["properties"];
    assert_eq!(spec["workerSets"]["maxItems"], MAX_WORKER_SETS);
    for name in [&spec["leader"]["properties"]["name"], &set["name"]] {
        assert_eq!(name["maxLength"], 63, "{name}");
    }
    // Lists and maps without a bound are gone over by no rule: these are all the rules there are.
    let mut rules = Vec::new();
    collect(&crd, &mut rules);
    let loops: Vec<&String> =
        rules.iter().filter(|rule| [".all(", ".map(", ".exists("].iter().any(|word| rule.contains(word))).collect();
    assert!(rules.len() >= 9 && loops.iter().all(|rule| rule.contains("orkerSets.")), "{loops:?}");
}

fn collect(value: &Value, rules: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            rules.extend(map.get("rule").and_then(Value::as_str).map(str::to_owned));
            map.values().for_each(|inner| collect(inner, rules));
        }
        Value::Array(items) => items.iter().for_each(|inner| collect(inner, rules)),
        _ => {}
    }
}

#[test]
fn every_name_and_number_out_of_its_range_is_named() {
    let long = "a".repeat(64);
    for (field, edit) in [
        (
            "metadata.name",
            Box::new(|job: &mut Value| job["metadata"]["name"] = "Rl".into()) as Box<dyn FnOnce(&mut Value)>,
        ),
        ("metadata.name", Box::new(|job: &mut Value| job["metadata"]["name"] = "a.b".into())),
        ("spec.leader.name", Box::new(|job: &mut Value| job["spec"]["leader"]["name"] = "-l".into())),
        ("spec.leader.name", Box::new(|job: &mut Value| job["spec"]["leader"]["name"] = long.into())),
        ("spec.leader.name", Box::new(|job: &mut Value| job["spec"]["leader"]["name"] = "a".repeat(61).into())),
        ("spec.restartLimit", Box::new(|job: &mut Value| job["spec"]["restartLimit"] = (-1).into())),
        ("spec.priority", Box::new(|job: &mut Value| job["spec"]["priority"] = 0.into())),
        ("spec.priority", Box::new(|job: &mut Value| job["spec"]["priority"] = 11.into())),
        ("spec.minWorkersNum", Box::new(|job: &mut Value| job["spec"]["minWorkersNum"] = 4.into())),
        ("spec.minWorkersNum", Box::new(|job: &mut Value| job["spec"]["minWorkersNum"] = (-1).into())),
        ("spec.workerSets[0].counts", Box::new(|job: &mut Value| job["spec"]["workerSets"][0]["counts"] = 0.into())),
        ("spec.workerSets[0].name", Box::new(|job: &mut Value| job["spec"]["workerSets"][0]["name"] = "".into())),
        ("spec.workerSets[1].name", Box::new(|job: &mut Value| job["spec"]["workerSets"][1]["name"] = "actor".into())),
        ("spec.workerSets", Box::new(|job: &mut Value| job["spec"]["workerSets"] = json!([]))),
        ("spec.volumes[0].name", Box::new(|job: &mut Value| job["spec"]["volumes"] = json!([{ "emptyDir": {} }]))),
        (
            "spec.volumes[1].name",
            Box::new(|job: &mut Value| {
                job["spec"]["volumes"] = json!([{ "name": "a" }, { "name": "a" }]);
            }),
        ),
    ] {
        let found = refused(edit);
        assert!(found.iter().any(|found| found == field), "{field} is not among {found:?}");
    }
}

#[test]
fn a_counts_of_thousands_is_refused_before_anything_is_made_of_it() {
    let found = refused(|job| job["spec"]["workerSets"][0]["counts"] = i32::MAX.into());
    assert!(found.contains(&"spec.workerSets".to_owned()) && found.contains(&"spec.workerSets[0].counts".to_owned()));
}

#[test]
fn a_leader_named_as_a_worker_of_its_set_is_refused_only_where_the_index_exists() {
    let named = |name: &str| refused(|job| job["spec"]["leader"]["name"] = name.into());
    assert_eq!(named("actor-1"), ["spec.workerSets[0].name"]);
    assert_eq!(named("actor-2"), Vec::<String>::new());
    assert_eq!(named("actor-01"), Vec::<String>::new());
    assert_eq!(named("actor"), ["spec.workerSets[0].name"], "names are unique in a job");
}

#[test]
fn what_the_scheduler_and_the_controller_write_is_refused_in_a_template() {
    let in_leader = |field: &str, value: Value| {
        refused(|job| {
            let template = job["spec"]["leader"]["template"].as_object_mut().unwrap();
            let parts: Vec<&str> = field.split('/').collect();
            let mut at = template.get_mut(parts[0]).unwrap();
            for part in &parts[1..] {
                at = &mut at[part.replace('~', "/")];
            }
            *at = value;
        })
    };
    let template = "spec.leader.template";
    for (path, value, field) in [
        ("spec/schedulerName", json!("default-scheduler"), "spec.schedulerName"),
        ("spec/nodeName", json!("node-1"), "spec.nodeName"),
        ("spec/schedulingGroup", json!({ "podGroupName": "g" }), "spec.schedulingGroup"),
        ("spec/restartPolicy", json!("Always"), "spec.restartPolicy"),
        ("spec/restartPolicy", json!("never"), "spec.restartPolicy"),
        ("spec/containers", json!([]), "spec.containers"),
        ("spec/containers", json!([{ "image": "a" }]), "spec.containers[0].name"),
        ("spec/volumes", json!([{ "name": "data" }]), "spec.volumes[data]"),
        (
            "metadata/annotations/gang.scheduling.koordinator.sh~name",
            json!("g"),
            "metadata.annotations[gang.scheduling.koordinator.sh/name]",
        ),
        (
            "metadata/labels/pod-group.scheduling.sigs.k8s.io",
            json!("g"),
            "metadata.labels[pod-group.scheduling.sigs.k8s.io]",
        ),
        ("metadata/labels/arranger.taichu.io~job", json!("j"), "metadata.labels[arranger.taichu.io/job]"),
    ] {
        assert_eq!(in_leader(path, value), [format!("{template}.{field}")], "{path}");
    }
    assert_eq!(in_leader("spec/schedulerName", json!("")), Vec::<String>::new());
}

#[test]
fn a_worker_may_restart_always() {
    let edit = |job: &mut Value| {
        job["spec"]["workerSets"][0]["template"]["spec"]["restartPolicy"] = "Always".into();
    };
    assert_eq!(refused(edit), Vec::<String>::new());
}

#[test]
fn members_are_the_leader_then_the_workers_by_set_and_index() {
    let job = job(|_| ());
    let names: Vec<String> = job.spec.members("rl").map(|member| member.name).collect();
    assert_eq!(names, ["rl-learner", "rl-actor-0", "rl-actor-1", "rl-judge-0"]);
}

#[test]
fn each_half_of_the_status_leaves_the_other_out() {
    let status = job(|_| ()).status.unwrap();
    let (ours, theirs) = (status.of_controller(), status.of_scheduler());
    assert_eq!(theirs["scheduleState"], "ScheduledSucceed");
    assert_eq!(theirs["conditions"].as_array().map(Vec::len), Some(1));
    assert!(ours["scheduleState"].is_null() && ours["allocations"].is_null());
    let fields = |half: &Value| half.as_object().unwrap().len();
    let whole = fields(&serde_json::to_value(&status).unwrap());
    assert_eq!(fields(&ours) + fields(&theirs), whole + 1, "only conditions are in both");
    assert_eq!(TyJobStatus::default().of_scheduler(), json!({ "allocations": [] }));
}

#[test]
fn an_invalid_job_that_never_started_has_no_spec_in_force() {
    let job = job(|job| {
        job["status"] = json!({});
        job["spec"]["priority"] = 11.into();
    });
    assert_eq!(job.effective(None).unwrap_err()[0].field, "spec.priority");
}

#[test]
fn a_started_job_keeps_its_spec_over_an_invalid_or_forbidden_edit() {
    let accepted = |edit: &dyn Fn(&mut Value)| {
        job(|job| {
            job["status"]["acceptedSpec"] = job["spec"].clone();
            edit(&mut job["spec"]);
        })
    };
    let plain = job(|_| ()).spec;
    for (field, edit) in [
        ("spec.priority", &(|spec: &mut Value| spec["priority"] = 11.into()) as &dyn Fn(&mut Value)),
        ("spec.volumes", &|spec| spec["volumes"] = json!([])),
        ("spec.leader.name", &|spec| spec["leader"]["name"] = "other".into()),
        ("spec.leader.template", &|spec| spec["leader"]["template"]["spec"]["hostNetwork"] = true.into()),
        ("spec.workerSets[1].template", &|spec| {
            spec["workerSets"][1]["template"]["spec"]["hostNetwork"] = true.into();
        }),
        ("spec.workerSets[0].template", &|spec| {
            spec["workerSets"].as_array_mut().unwrap().reverse();
            spec["workerSets"][0]["template"]["spec"]["hostNetwork"] = true.into();
        }),
    ] {
        let effective = accepted(edit).effective(None).unwrap();
        assert_eq!(effective.refused[0].field, field);
        assert_eq!(effective.spec, plain, "{field}");
    }
    let more = accepted(&|spec| spec["workerSets"][0]["counts"] = 7.into()).effective(None).unwrap();
    assert!(more.refused.is_empty() && more.spec.worker_sets[0].counts == 7);
    let others = accepted(&|spec| {
        spec["workerSets"].as_array_mut().unwrap().reverse();
        spec["workerSets"][0]["name"] = "other".into();
    });
    assert!(others.effective(None).unwrap().refused.is_empty(), "sets are known by name, and may come and go");
    let ended = accepted(&|spec| {
        spec["priority"] = 11.into();
        spec["terminating"] = true.into();
    });
    assert!(ended.effective(None).unwrap().spec.terminating, "the user can always end a job");
}

#[test]
fn an_object_that_does_not_fit_the_type_says_which_half_and_keeps_the_other() {
    let mut value = golden();
    value["spec"]["priority"] = "high".into();
    let (job, unreadable) = TyJob::read(&value).unwrap();
    assert_eq!(unreadable.as_ref().unwrap().field, "spec");
    assert_eq!(job.status.as_ref().unwrap().restarts, 1);
    assert_eq!(job.effective(unreadable.as_ref()).unwrap_err(), [unreadable.unwrap()]);
    value = golden();
    value["status"]["stage"] = "Dreaming".into();
    let error = TyJob::read(&value).unwrap_err();
    assert!(error.field == "status" && error.message.contains("Dreaming"), "{error}");
}
