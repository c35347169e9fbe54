//! Pods of one shape are alike: one order of them stands for all.

use super::state::{Lock, PODS, State};

/// Renumbers alike pods so that the least of all orders remains.
pub fn sort_pods(state: &mut State) {
    const ORDERS: [[usize; PODS]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let key = |pod: usize| {
        let locks = state.nodes.iter().flat_map(|node| [node.lock, node.release]);
        let flights = state.schedulers.iter().map(|of| of.flight.map(|flight| (flight.pod, flight.step)));
        let named = locks.map(|lock| lock.filter(|lock| usize::from(lock.pod) == pod).map(|lock| lock.time));
        let flown = flights.filter(|flight| flight.is_some_and(|(flown, _)| usize::from(flown) == pod)).count();
        (state.pods[pod].life, state.pods[pod].phase, state.pods[pod].bound, named.collect::<Vec<_>>(), flown)
    };
    let keys: [_; PODS] = std::array::from_fn(key);
    let least = ORDERS.iter().min_by_key(|order| order.map(|pod| &keys[pod])).expect("there are orders");
    let new = |old: u8| least.iter().position(|pod| *pod == usize::from(old)).unwrap_or_default() as u8;
    let lock = |old: Lock| Lock { pod: new(old.pod), ..old };
    let before = state.clone();
    for (to, from) in least.iter().enumerate() {
        (state.pods[to], state.kube[to], state.books[to]) =
            (before.pods[*from], before.kube[*from], before.books[*from]);
        for (after, of) in state.schedulers.iter_mut().zip(&before.schedulers) {
            after.queued[to] = of.queued[*from];
        }
    }
    for of in &mut state.schedulers {
        of.release = of.release.map(|(node, value)| (node, lock(value)));
        if let Some(flight) = &mut of.flight {
            flight.pod = new(flight.pod);
            if let super::state::Step::Write { old, .. } = &mut flight.step {
                *old = old.map(lock);
            }
        }
    }
    for node in &mut state.nodes {
        (node.lock, node.release, node.granted) = (node.lock.map(lock), node.release.map(lock), node.granted.map(lock));
    }
}
