//! The versioned file: what it says, what it refuses and where, and that the printed configuration reads back as itself.

use clap::Command;

use super::{DaemonSettings, SCHEDULER_SECTIONS, print_plugins, scheduler};
use crate::config::{ConfigError, Loaded, arguments, load, print};
use baton_decide::core::rules::plugins::{Listed, PluginLists, Point, Strategy, default_plugins, names_at};
use baton_scheduler::SchedulerOptions;

fn read(flags: &[&str], text: &str) -> Result<Loaded<DaemonSettings<SchedulerOptions>>, ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("baton.yaml");
    std::fs::write(&path, text).unwrap();
    let command = arguments(Command::new("t").no_binary_name(true), &scheduler());
    let path = path.display().to_string();
    let matches = command.try_get_matches_from(flags.iter().copied().chain(["--config-file", &path])).unwrap();
    load(&scheduler(), SCHEDULER_SECTIONS, &matches, &|_| None, "baton scheduler")
}

pub(crate) fn options(text: &str) -> SchedulerOptions {
    read(&[], text).unwrap_or_else(|error| panic!("{error}\n{text}")).options.options
}

const HEAD: &str = "apiVersion: baton.io/v1alpha1\nkind: SchedulerConfiguration\n";

/// The example of the documentation.
fn example() -> &'static str {
    let text = include_str!("../../../docs/configuration.md");
    let mut blocks = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.find(|block| block.contains("SchedulerConfiguration")).expect("an example in docs/configuration.md")
}

fn names(options: &SchedulerOptions, point: Point) -> Vec<(&'static str, i64)> {
    options.plugins.lists.at(point).iter().map(|listed| (listed.name, listed.weight)).collect()
}

#[test]
fn the_example_of_the_documentation_does_what_it_says() {
    let options = options(example());
    assert_eq!(options.validate(), Ok(()));
    assert_eq!(names(&options, Point::QueueSort), [("QoSSort", 1)]);
    let scores = names(&options, Point::Score);
    assert_eq!(scores[0], ("RequestedToCapacityRatio", 5));
    assert!(scores.contains(&("GpuPatience", 2)) && scores.contains(&("NodeResourcesFit", 1)), "{scores:?}");
    assert!(!scores.iter().any(|(name, _)| *name == "DeviceTopology"), "{scores:?}");
    assert_eq!(options.ratio_shape, [(0, 0), (70, 10), (100, 8)]);
    assert_eq!(options.ratio_weights[0], ("nvidia.com/gpu".to_owned(), 8));
    assert!(matches!(options.plugins.strategy, Strategy::MostAllocated(_)));
    assert_eq!(options.plugins.affinity.hard_weight, 10);
    assert_eq!(options.plugins.volumes.bind_timeout.as_secs(), 300);
    assert_eq!((options.job_weights.gpu, options.job_weights.cpu), (2, 1));
    assert_eq!(options.concurrency, 32, "keys that are flags stand beside it");
    default_plugins(&options.plugin_set().unwrap()).unwrap();
}

#[test]
fn the_profile_utilization_scores_by_gpu_patience() {
    let scores = |text: &str| {
        let set = options(text).plugin_set().unwrap();
        let scores = set.choice.lists.at(Point::Score).iter().map(|listed| (listed.name, listed.weight));
        scores.collect::<Vec<_>>()
    };
    let patient = scores("profile: utilization\n");
    assert!(patient.contains(&("GpuPatience", 10)) && patient.contains(&("DeviceTopology", 1)), "{patient:?}");
    assert!(!patient.iter().any(|(name, _)| *name == "RequestedToCapacityRatio"), "{patient:?}");
    let own =
        format!("{HEAD}profile: utilization\nplugins: {{score: {{enabled: [{{name: GpuPatience, weight: 7}}]}}}}\n");
    let removed = read(&[], &own.replace("GpuPatience", "GpuFragmentation")).unwrap_err().to_string();
    assert!(removed.contains("GpuFragmentation was removed: enable GpuPatience"), "{removed}");
    assert!(scores(&own).contains(&("GpuPatience", 7)), "{:?}", scores(&own));
    let args = |args: &str| format!("{HEAD}pluginConfig: [{{name: GpuPatience, args: {{{args}}}}}]\n");
    let patience = options(&args("keepWhole: 0.5, halfLife: 100")).plugins.patience;
    assert_eq!((patience.keep_whole, patience.half_life), (500, 100));
    for (wrong, said) in
        [("keepWhole: 1.5", "no number from 0 to 1"), ("keepWhole: NaN", "no number"), ("halfLife: 0", "1 to 1000000")]
    {
        let error = read(&[], &args(wrong)).unwrap_err().to_string();
        assert!(error.contains(said), "{wrong}: {error}");
    }
}

#[test]
fn what_the_file_cannot_mean_is_named_with_its_place_and_the_nearest_word() {
    let mut lacking = Vec::new();
    for (text, parts) in [
        ("plugins: {}\n", &["baton.yaml:1:1", "no apiVersion", "baton.io/v1alpha1"][..]),
        ("apiVersion: baton.io/v2\nkind: SchedulerConfiguration\n", &[":1:13", "\"baton.io/v2\"", "baton.io/v1alpha1"]),
        ("apiVersion: baton.io/v1alpha1\nkind: SchedulerConfig\n", &[":2:7", "expected SchedulerConfiguration"]),
        ("plugins: {scor: {}}", &["plugins: unknown key \"scor\"", "\"score\"?"]),
        (
            "plugins:\n  filter:\n    enabled: [{name: NodeResourceFit}]\n",
            &[":5:22", "\"NodeResourcesFit\"?", "enabled[0].name"],
        ),
        ("plugins:\n  score:\n    enabled:\n    - name: NodePorts\n", &[":6:13", "NodePorts has no score", "filter"]),
        ("plugins: {score: {enabled: [{name: NodeAffinity, weight: 0}]}}", &["\"0\"", "1 to 100", "weight"]),
        ("plugins: {score: {enabled: [{name: NodeAffinity, weight: x}]}}", &["\"x\"", "1 to 100"]),
        ("plugins: {filter: {enabled: [{name: NodePorts, weight: 3}]}}", &["unknown key \"weight\"", "expected name"]),
        ("plugins: {score: {enabled: [{name: NodeAffinity}, {name: NodeAffinity}]}}", &["twice"]),
        ("plugins: {score: {enabled: [{weight: 2}]}}", &["name is missing"]),
        ("plugins: {score: {enabled: NodeAffinity}}", &["plugins.score.enabled", "expected a list"]),
        ("plugins: {score: {disabled: [{name: Devicetopology}]}}", &["\"DeviceTopology\"?"]),
        ("plugins:\n  queueSort: {enabled: [{name: QoSSort}]}\n", &[":4:3", "PrioritySort and QoSSort", "disable one"]),
        ("plugins: {queueSort: {disabled: [{name: '*'}]}}", &["no order of the queue"]),
        ("plugins: {filter: {disabled: [{name: '*'}]}}", &["DeviceFit"]),
        ("plugins: {preScore: {disabled: [{name: InterPodAffinity}]}}", &["InterPodAffinity", "preScore"]),
        ("plugins: {bind: {enabled: [{name: Foo}]}}", &["unknown key \"bind\""]),
        ("plugins: {permit: {enabled: [{name: Foo}]}}", &["\"Foo\" is not known"]),
        ("pluginConfig: [{name: NodeResourcesfit}]", &["\"NodeResourcesFit\"?"]),
        ("pluginConfig: [{name: VolumeBinding}, {name: VolumeBinding}]", &["VolumeBinding has arguments twice"]),
        ("pluginConfig: [{name: DeviceFit}]", &[":3:23", "DeviceFit was removed: set nodes-without-agent"]),
        ("ratioShape: 0=0", &[":3:1", "ratio-shape was removed: set it in the file, in pluginConfig"]),
        ("jobWeights: {gpu: 2}", &[":3:14", "jobWeights: unknown key \"gpu\"", "nvidia.com/gpu"]),
        ("jobWeights: {cpu: 0}", &[":3:19", "jobWeights.cpu", "\"0\"", "1 to 100"]),
        ("timings: {lock_sweeps: 1s}", &[":3:11", "timings: unknown key", "\"lock_sweep\"?"]),
        ("timings: {lock_sweep: 1}", &[":3:23", "timings.lock_sweep", "\"1\" is no duration"]),
        ("timings: {lease_retry: 0s}", &[":3:24", "timings.lease_retry", "above zero"]),
        ("pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 101}}]", &["\"101\"", "0 to 100"]),
        ("pluginConfig: [{name: VolumeBinding, args: {bindTimeoutSeconds: 0}}]", &["\"0\"", "1 to 86400"]),
        ("pluginConfig: [{name: NodeResourcesFit, args: {kind: InterPodAffinityArgs}}]", &["NodeResourcesFitArgs"]),
        (
            "pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: Most}}}]",
            &["expected LeastAllocated"],
        ),
        (
            "pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated, requestedToCapacityRatio: {}}}}]",
            &["no meaning with type MostAllocated"],
        ),
        (
            "pluginConfig: [{name: NodeResourcesBalancedAllocation, args: {resources: [{name: cpu}, {name: cpu}]}}]",
            &["cpu is named twice"],
        ),
        (
            "pluginConfig:\n- name: RequestedToCapacityRatio\n  args:\n    shape:\n    - {utilization: 50, score: 1}\n    - {utilization: 50, score: 2}\n",
            &[":8:7", "shape[1]", "50 does not come after 50"],
        ),
        (
            "pluginConfig: [{name: RequestedToCapacityRatio, args: {shape: [{utilization: 0, score: 11}]}}]",
            &["shape[0].score", "\"11\"", "0 to 10"],
        ),
        ("pluginConfig: [{name: RequestedToCapacityRatio, args: {shape: []}}]", &["at least one point"]),
    ] {
        let headless = text.starts_with("apiVersion") || text == "plugins: {}\n";
        let text = if headless { text.to_owned() } else { format!("{HEAD}{text}\n") };
        let error = read(&[], &text).err().unwrap_or_else(|| panic!("accepted:\n{text}")).to_string();
        let lacks = parts.iter().filter(|part| !error.contains(**part));
        lacking.extend(lacks.map(|part| format!("{text}{error} lacks {part}")));
    }
    assert!(lacking.is_empty(), "{}", lacking.join("\n\n"));
}

#[test]
fn the_printed_configuration_reads_back_as_itself() {
    for text in ["", HEAD, example()] {
        let loaded = read(&[], text).unwrap();
        let head = print_plugins(&loaded.options.options);
        let printed = print(head, &scheduler(), &loaded.options).unwrap();
        let back = read(&[], &printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
        assert_eq!(back.options, loaded.options, "{printed}");
    }
}

/// A row for each extension point that has plugins.
fn table() -> String {
    let row = |(point, key): (Point, &str)| {
        let lists = PluginLists::default();
        let weight =
            |listed: &Listed| if point == Point::Score { format!(" {}", listed.weight) } else { String::new() };
        let defaults = lists.at(point).iter().map(|listed| format!("**{}**{}", listed.name, weight(listed)));
        let others = names_at(point).filter(|name| !lists.at(point).iter().any(|listed| listed.name == *name));
        let cells = [defaults.collect::<Vec<_>>(), others.map(str::to_owned).collect()].concat();
        if cells.is_empty() { String::new() } else { format!("| `{key}` | {} |\n", cells.join(", ")) }
    };
    let head = "| point | plugins: the defaults in bold, in their order, with the weights of scores |\n| --- | --- |\n";
    head.to_owned() + &Point::ALL.into_iter().map(row).collect::<String>()
}

/// `UPDATE_DOCS=1` writes the table again.
#[test]
fn the_documented_plugins_are_those_that_can_be_named() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (table, start) = (table(), text.find("| point | plugins").expect("the table of plugins"));
    let end = start + text[start..].find("\n\n").expect("its end") + 1;
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, format!("{}{table}{}", &text[..start], &text[end..])).unwrap();
        return;
    }
    assert_eq!(text[start..end], table, "docs/configuration.md: UPDATE_DOCS=1 writes the table again");
}
