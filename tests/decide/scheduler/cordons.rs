//! Cordons of devices: the annotation, its end, and pods on their way.

use crate::prelude::*;

impl TestScheduler {
    /// The node's object with this annotation.
    fn cordon(&mut self, node: &str, gpus: u32, text: &str) -> &mut Self {
        self.device(node, gpus, |device| {
            device.metadata.annotations = Some([(key::CORDONED.to_owned(), text.to_owned())].into());
        })
    }
}

fn minors(cluster: &TestScheduler, pod: &str) -> Vec<i32> {
    cluster.devices_of(pod).of(&DeviceType::Gpu).iter().map(|entry| entry.minor).collect()
}

#[test]
fn a_cordon_keeps_new_pods_away_until_its_end_and_then_wakes_those_that_wait() {
    let mut cluster = TestScheduler::on("n", 2);
    let until = cluster.moment().wall + jiff::SignedDuration::from_secs(120);
    cluster.cordon("n", 2, &format!(r#"{{"GPU-n-0":{{"reason":"fan","by":"ada","until":"{until}"}}}}"#));
    assert_eq!(cluster.comes("two", TWO).node_of("two"), None);
    cluster.beat_all();
    assert_eq!(cluster.after(60).node_of("two"), None, "before its end");
    cluster.beat_all();
    cluster.wait(61);
    assert_eq!(minors(&cluster, "two"), [0, 1], "nothing else has happened");
}

#[test]
fn a_cordon_leaves_a_running_pod_alone_and_its_removal_gives_the_device_back() {
    let mut cluster = TestScheduler::on("n", 2);
    cluster.comes("runs", ONE).serves("n").cordon("n", 2, r#"{"GPU-n-0":{},"GPU-n-1":{}}"#).comes("waits", ONE);
    assert_eq!((minors(&cluster, "runs"), cluster.node_of("waits")), (vec![0], None));
    cluster.cordon("n", 2, r#"{"GPU-n-0":{}}"#).settle();
    assert_eq!(minors(&cluster, "waits"), [1]);
}

#[test]
fn a_pod_whose_device_is_cordoned_before_its_bind_gets_another() {
    let mut cluster = TestScheduler::on("n", 3);
    ["first", "second"].into_iter().for_each(|name| _ = cluster.pod(name, ONE));
    cluster.settle();
    // The second one waits for the lock, with GPU 1 reserved.
    assert_eq!((cluster.bound(), cluster.bind_attempts()), (1, 1));
    cluster.cordon("n", 3, r#"{"GPU-n-1":{}}"#).settled().serves("n");
    assert_eq!(minors(&cluster, "second"), [2]);
}

#[test]
fn an_annotation_that_cannot_be_read_covers_the_node_and_no_other() {
    let mut cluster = TestScheduler::on_each(&["a", "b"], 1);
    cluster.cordon("a", 1, "GPU-a-0");
    ["one", "two"].into_iter().for_each(|name| _ = cluster.pod(name, ONE));
    assert_eq!(cluster.settled().nodes_of(["one", "two"]), [Some("b"), None]);
}

/// Nodes of one make give one another's choices, but not to a pod that names a device.
#[test]
fn a_pod_that_names_a_device_gets_it_among_equal_nodes() {
    for wanted in ["GPU-c-1", "GPU-a-0", "GPU-b-1"] {
        let mut cluster = TestScheduler::on_each(&["a", "b", "c"], 2);
        for name in ["p", "q"] {
            let mut pod = pod(name, ONE, cluster.now);
            let selector = format!(r#"{{"matchLabels":{{"{}":"{wanted}"}}}}"#, key::UUID);
            pod.spec.wishes.hint = Some(format!(r#"{{"gpu":{{"selector":{selector}}}}}"#).into());
            cluster.enters(pod);
        }
        assert_eq!(cluster.devices_of("p").of(&DeviceType::Gpu)[0].id.as_str(), wanted);
        assert_eq!(cluster.node_of("q"), None, "{wanted} is taken");
    }
}
