//! Which NICs of a machine are served, on machines as people report them.

use baton::contract::key::{INTERFACE, LINK_LAYER, PORT_STATE, RATE};

use super::reported::{NodeCluster, cluster, reporting};
use super::test_node::{TestNode, until};
use crate::nics::{ACTIVE, DOWN, NicTree};
use crate::prelude::*;

const FABRIC: [&str; 8] = [
    "0000:11:00.0",
    "0000:21:00.0",
    "0000:31:00.0",
    "0000:41:00.0",
    "0000:51:00.0",
    "0000:61:00.0",
    "0000:71:00.0",
    "0000:81:00.0",
];
/// The host's bond, the onboard NIC, the uplink in switchdev mode, the NIC with functions in three hands, the one behind VMD.
const BOND: &str = "0000:c1:00.0";
const ONBOARD: &str = "0000:c3:00.0";
const UPLINK: &str = "0000:d1:00.0";
const DIVIDED: &str = "0000:e1:00.0";
const VMD: &str = "10000:01:00.0";

/// The machine's GPUs, and the NICs of a machine with a default route over a bond.
fn node_with(name: &str, select: &str) -> (TestNode, NicTree) {
    let mut node = TestNode::new(NodeSpec::new(name));
    let tree = NicTree::as_reported(&node.path("nics"));
    tree.above("bond0", true, &["ens3f0np0", "ens3f1np1"]);
    tree.routes(&[("bond0", 100)], &[]);
    node.options.rdma_select = select.parse().unwrap();
    node.options.paths.sysfs_root = tree.path("sys");
    node.options.paths.dev_root = tree.path("dev");
    node.options.paths.proc_root = tree.path("proc");
    (node, tree)
}

/// Addresses of those that take pods, and of the others with the reason.
fn served(cluster: &NodeCluster) -> (Vec<String>, Vec<String>) {
    let (good, bad): (Vec<Value>, Vec<Value>) = cluster.nics().into_iter().partition(|nic| nic["health"] == true);
    let address = |nic: &Value| nic["id"].as_str().unwrap().to_owned();
    let why = |nic: &Value| format!("{} {}", address(nic), nic["conditions"][0]["reason"].as_str().unwrap());
    (good.iter().map(address).collect(), bad.iter().map(why).collect())
}

async fn until_served(cluster: &NodeCluster, good: &[&[&str]], bad: &[(&str, &str)]) {
    let bad: Vec<String> = bad.iter().map(|(nic, why)| format!("{nic} {why}")).collect();
    let expected = (good.concat().into_iter().map(str::to_owned).collect(), bad);
    until(&format!("{expected:?} are listed, not {:?}", served(cluster)), || served(cluster) == expected).await;
}

/// A line for each: address, whether it takes pods, NUMA node, labels.
fn shown(nics: &[Value]) -> String {
    let line = |nic: &Value| {
        let labels = nic["labels"].as_object().unwrap().iter();
        let label = |(key, value): (&String, &Value)| {
            format!("{}={}", key.rsplit('/').next().unwrap(), value.as_str().unwrap())
        };
        format!(
            "{} minor {} {} NUMA {} {} [{}]\n",
            nic["id"].as_str().unwrap(),
            nic["minor"],
            if nic["health"] == true { "served" } else { nic["conditions"][0]["reason"].as_str().unwrap() },
            nic["topology"]["nodeID"],
            nic["vfGroups"],
            labels.map(label).collect::<Vec<_>>().join(" ")
        )
    };
    nics.iter().map(line).collect()
}

#[tokio::test]
async fn by_default_the_hosts_own_nic_and_links_that_are_down_are_not_handed_out() {
    let (mut node, tree) = node_with("reported-nics", "");
    let (cluster, daemon) = reporting(&mut node).await;
    let down = [(UPLINK, "LinkDown"), (DIVIDED, "LinkDown"), (VMD, "LinkDown")];
    until_served(&cluster, &[&FABRIC, &[ONBOARD]], &down).await;
    node.until(RDMA, 900).await;
    let nics = cluster.nics();
    println!("{}", shown(&nics));
    let labels = |nic: &Value| [INTERFACE, LINK_LAYER, RATE, PORT_STATE].map(|key| nic["labels"][key].clone());
    assert_eq!(labels(&nics[3]), ["ibp3", "InfiniBand", "400Gbps", "ACTIVE"].map(|value| json!(value)));
    assert_eq!(labels(&nics[9]), ["p0", "Ethernet", "400Gbps", "DOWN"].map(|value| json!(value)));
    let numa: Vec<i64> = nics.iter().map(|nic| nic["topology"]["nodeID"].as_i64().unwrap()).collect();
    assert_eq!(numa, [0, 0, 0, 0, 1, 1, 1, 1, 0, -1, -1, 0], "what is not known is not node 0");
    // Numbers stand in annotations: they do not depend on what is selected.
    assert_eq!((&nics[8]["minor"], &nics[11]["minor"]), (&json!(9), &json!(12)));
    // A link that goes down, and a function that gets one.
    tree.set_port("mlx5_3", 1, DOWN);
    tree.set_port("mlx5_21", 1, ACTIVE);
    let (fabric, rest) = ([&FABRIC[..3], &FABRIC[4..]].concat(), &down[..1]);
    let down = [&[(FABRIC[3], "LinkDown")], rest, &[(VMD, "LinkDown")]].concat();
    until_served(&cluster, &[&fabric, &[ONBOARD, DIVIDED]], &down).await;
    assert_eq!(cluster.nics()[3]["labels"][PORT_STATE], "DOWN");
    daemon.stop().await;
}

#[tokio::test]
async fn the_operator_says_which_nics_are_served() {
    for (at, (select, good, bad)) in [
        ("mlx5_[0-7]", &[&FABRIC[..]][..], &[][..]),
        ("linkType=infiniband", &[&FABRIC], &[(VMD, "LinkDown")]),
        ("vendor=15b3,!linkType=infiniband,!pciAddress=0000:e1:*", &[&[BOND]], &[(UPLINK, "LinkDown")]),
        ("driver=ice", &[&[ONBOARD]], &[]),
        ("!irdma*,!mlx5_20,!p0,!10000:01:00.0", &[&FABRIC], &[]),
    ]
    .into_iter()
    .enumerate()
    {
        let (mut node, _tree) = node_with(&format!("selected-{at}"), select);
        let (cluster, daemon) = reporting(&mut node).await;
        println!("{select}");
        until_served(&cluster, good, bad).await;
        node.until(RDMA, good.concat().len() * 100).await;
        daemon.stop().await;
    }
}

#[tokio::test]
async fn a_selection_that_takes_no_nic_is_said_and_is_over_when_it_takes_one() {
    let (mut node, mut tree) = node_with("none-selected", "mlx5_100");
    let (cluster, daemon) = reporting(&mut node).await;
    let condition = || cluster.condition("NoDevicesSelected");
    until("the condition stands", || condition().is_some()).await;
    let condition_now = condition().unwrap();
    tells(condition_now["message"].as_str().unwrap(), ["--rdma-select=mlx5_100 takes none", "mlx5_bond_0"]);
    assert_eq!((condition_now["reason"].clone(), cluster.nics()), (json!("SelectorMatchesNothing"), Vec::new()));
    let event = |reason: &str| {
        let (old, new) = (cluster.server().objects("", "events"), cluster.server().objects("events.k8s.io", "events"));
        old.into_iter().chain(new).any(|event| event["reason"] == reason)
    };
    until("an event on the node says so", || event("NoDevicesSelected")).await;
    let late = tree.pci("pci0000:fa/0000:fa:01.0/0000:fb:00.0", &crate::nics::mlx5("0x1021", 1));
    tree.ib(&late, "mlx5_100", &[(ACTIVE, crate::nics::ETHERNET)], None);
    until_served(&cluster, &[&["0000:fb:00.0"]], &[]).await;
    until("it is over", || condition().is_none() && event("DevicesSelected")).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_nic_that_a_pod_holds_stays_in_the_accounts_until_the_pod_ends() {
    let (mut node, _tree) = node_with("held-nic", "linkType=infiniband,!mlx5_vmd");
    let held = DeviceId::parse(BOND).unwrap();
    node.handoff.in_use.lock().unwrap().insert(RDMA.into(), [held].into());
    let cluster = cluster(&mut node).await;
    let daemon = node.daemon();
    until_served(&cluster, &[&FABRIC], &[(BOND, "NotSelected")]).await;
    node.until(RDMA, 800).await;
    node.handoff.in_use.lock().unwrap().clear();
    until_served(&cluster, &[&FABRIC], &[]).await;
    daemon.stop().await;
}

#[tokio::test]
async fn where_the_default_route_is_not_known_every_nic_is_served() {
    let (mut node, tree) = node_with("no-routes", "!mlx5_vmd");
    node.options.timings.link_down = Duration::from_secs(3600);
    std::fs::remove_file(tree.path("proc/1/net/route")).unwrap();
    std::fs::remove_file(tree.path("proc/1/net/ipv6_route")).unwrap();
    let (cluster, daemon) = reporting(&mut node).await;
    until_served(&cluster, &[&FABRIC, &[BOND, ONBOARD]], &[(UPLINK, "LinkDown"), (DIVIDED, "LinkDown")]).await;
    // A link that is away for a moment is not down.
    tree.set_port("mlx5_3", 1, DOWN);
    tree.routes(&[("eno1", 0), ("bond0", 100)], &[("ibp0", 0)]);
    until_served(&cluster, &[&FABRIC, &[BOND]], &[(UPLINK, "LinkDown"), (DIVIDED, "LinkDown")]).await;
    assert_eq!(cluster.nics()[3]["labels"][PORT_STATE], "ACTIVE");
    daemon.stop().await;
}
