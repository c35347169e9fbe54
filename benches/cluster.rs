//! The scheduler as it ships against an API server in a process of its own: bound pods per second, CPU per pod, resident
//! memory, with the node lock off and on; beside a bare client that posts the same Bindings, and beside what the stock
//! kube-scheduler was measured to do.
//!
//! `cargo bench --bench cluster -- --nodes 200 --pods 400` is quick; without arguments it is 5,000 of each. With `--start` it is a
//! scheduler's start among 20,000 nodes and 200,000 pods that run, and the end of the leader by SIGKILL; with `--look` it is what
//! `baton get`, `explain` and the page cost among 5,000 and 50,000. With
//! `KUBEBUILDER_ASSETS` the API server is a real one. Nodes have Device objects and agents' Leases but no machine behind
//! them: what an agent does about the lock is done here.
#![allow(clippy::unchecked_time_subtraction)] // a test reads its clock in order
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)] // a bench is a test

#[path = "cluster/agent.rs"]
mod agent;
#[path = "cluster/bound.rs"]
mod bound;
#[allow(dead_code)] // the tests use more of it
#[path = "../tests/harness/cluster/control_plane.rs"]
mod control_plane;
#[path = "../tests/harness/cluster/daemon.rs"]
#[allow(dead_code)] // the tests use more of it
mod daemon;
#[allow(dead_code)] // other benches use more of it
mod expect;
/// Where the tests have it.
mod harness {
    pub(crate) use crate::daemon;
}
#[path = "../tests/ops/ui/http.rs"]
#[allow(dead_code)] // the tests use more of it
mod http;
#[path = "cluster/look.rs"]
mod look;
#[path = "cluster/nodes.rs"]
mod nodes;
#[path = "cluster/pods.rs"]
mod pods;
#[path = "cluster/roofline.rs"]
mod roofline;
#[path = "cluster/scenario.rs"]
mod scenario;
#[path = "cluster/server.rs"]
mod server;
#[path = "cluster/start.rs"]
mod start;
#[path = "../tests/harness/cluster/wait.rs"]
mod wait;

use expect::Expect;
use pods::Shape;
use scenario::Scenario;

/// The stock kube-scheduler on 5,000 nodes, one-GPU pods, on a machine with two cores: bound pods per second, milliseconds of
/// CPU per pod, resident MiB.
const STOCK: (f64, f64, f64) = (137.0, 5.2, 222.0);

/// Size of the cluster.
#[derive(Clone, Copy)]
struct Size {
    nodes: usize,
    pods: usize,
}

impl Size {
    fn of_arguments() -> Self {
        let arguments: Vec<String> = std::env::args().collect();
        let value = |name: &str| {
            let at = arguments.iter().position(|word| word == name)?;
            Some(arguments.get(at + 1)?.parse().unwrap_or_else(|_| panic!("{name} needs a number")))
        };
        let (nodes, pods) = match () {
            () if starts() => (20_000, 200_000),
            () if looks() => (5000, 50_000),
            () => (5000, 5000),
        };
        Self { nodes: value("--nodes").unwrap_or(nodes), pods: value("--pods").unwrap_or(pods) }
    }
}

/// Only the start of a scheduler is measured.
fn starts() -> bool {
    std::env::args().any(|word| word == "--start")
}

/// Only what an operator looks at is measured.
fn looks() -> bool {
    std::env::args().any(|word| word == "--look")
}

fn main() {
    if server::is_asked_for() {
        return server::serve();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(measure(Size::of_arguments()));
}

async fn measure(size: Size) {
    let mut expect = Expect::load("cluster");
    let server = server::Server::start().await;
    let began = baton::runtime::clock::mono();
    nodes::create(&server.client, size.nodes).await;
    let took = baton::runtime::clock::mono() - began;
    if starts() {
        start::measure(&server, size, &mut expect).await;
        return expect.finish();
    }
    if looks() {
        return look::measure(&server, size).await;
    }
    println!("{} nodes with 8 GPUs each, {} pods with one GPU each (set up in {:.0?})", size.nodes, size.pods, took);

    let plain = Scenario {
        name: "lock off",
        lock: "auto",
        shape: Shape::OneGpu,
        pods: size.pods,
        on: None,
        gangs_of: None,
        infeasible: 0,
    };
    let off = plain.run(&server).await;
    off.show();
    let bare = roofline::post(&server, &off.bindings).await;
    println!("  {:12} {:>9.1} pods/s", "bare client", bare);
    let on = Scenario { name: "lock on", lock: "always", ..plain.clone() }.run(&server).await;
    on.show();
    let one = Some(nodes::name(0));
    let shares =
        Scenario { name: "64 shares", lock: "always", shape: Shape::Share, pods: 64, on: one, ..plain.clone() };
    let shares = shares.run(&server).await;
    shares.show();
    // 500 gangs of 20, the same pods without gang, and feasible gangs beside gangs that go nowhere.
    let alone = Scenario { name: "pods alone", pods: 2 * size.pods, ..plain.clone() }.run(&server).await;
    alone.show();
    let gangs = Scenario { name: "gangs of 20", pods: 2 * size.pods, gangs_of: Some(20), ..plain.clone() };
    let gangs = gangs.run(&server).await;
    gangs.show();
    let few = Scenario {
        name: "few gangs",
        pods: (size.pods / 10).next_multiple_of(20),
        gangs_of: Some(20),
        ..plain.clone()
    };
    let undisturbed = few.run(&server).await;
    undisturbed.show();
    let beside = Scenario { name: "beside others", infeasible: 2 * size.pods, ..few }.run(&server).await;
    beside.show();

    let (stock_rate, stock_cpu, stock_memory) = STOCK;
    expect.at_least("rate_to_stock", off.rate / stock_rate);
    // The budget is of a real API server. The simulated one answers so fast that on few cores the bare client and the
    // scheduler compete with it for the processor: the ratio then is one of processor time, and has a limit of its own.
    let real = std::env::var_os("KUBEBUILDER_ASSETS").is_some();
    let ratio = if real { "rate_to_bare_client" } else { "simulated_rate_to_bare_client" };
    expect.at_least(ratio, off.rate / bare);
    expect.at_most("cpu_to_stock", off.cpu_ms / stock_cpu);
    expect.at_most("resident_to_stock", off.resident_mib / stock_memory);
    if !real {
        expect.exactly("writes_per_pod", off.writes_per_pod);
        expect.at_most("locked_writes_per_pod", on.writes_per_pod);
    }
    expect.at_least("locked_rate_to_stock", on.rate / stock_rate);
    expect.at_most("locked_cpu_to_stock", on.cpu_ms / stock_cpu);
    expect.at_most("locked_resident_to_stock", on.resident_mib / stock_memory);
    expect.at_most("shares_on_one_node_seconds", shares.seconds);
    expect.at_least("gang_rate_to_pods_alone", gangs.rate / alone.rate);
    println!("  {:.2} s undisturbed, {:.2} s beside pods that go nowhere", undisturbed.seconds, beside.seconds);
    expect.at_most("slowed_by_infeasible", beside.seconds / undisturbed.seconds);
    expect.finish();
}
