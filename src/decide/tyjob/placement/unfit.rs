//! Whether a job can ever fit: on all known nodes as if nothing ran there, cordoned and NotReady ones included. Only what is
//! certain counts: each condition here is necessary for any placement, so a job that could be placed is never called unfit.

use super::folded::Folded;

/// Nodes that offer the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeOffer {
    /// What each offers.
    pub amounts: Folded,
    /// Most pods on each.
    pub pods: i64,
    /// How many such nodes.
    pub nodes: i64,
}

impl NodeOffer {
    /// How many pods that ask for this fit on one such node, when it is empty.
    fn room(&self, wanted: &Folded) -> i64 {
        let asked = wanted.iter().filter(|(_, amount)| *amount > 0);
        asked.map(|(name, amount)| self.amounts.get(name) / amount).fold(self.pods, i64::min).max(0)
    }
}

/// What one part of a job asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartDemand {
    /// Name of the part.
    pub name: Box<str>,
    /// What each pod asks for.
    pub amounts: Folded,
    /// How many pods.
    pub counts: i64,
}

/// Why `leader` and `needed` of the workers cannot all be placed, whatever else runs; `None` when that is not certain. With
/// `all`, every worker is needed.
pub fn unfit(
    leader: &PartDemand,
    workers: &[PartDemand],
    needed: i64,
    all: bool,
    offers: &[NodeOffer],
) -> Option<String> {
    let room = |demand: &PartDemand| -> i64 {
        offers
            .iter()
            .fold(0i64, |sum, offer| sum.saturating_add(offer.room(&demand.amounts).saturating_mul(offer.nodes)))
    };
    let nodes: i64 = offers.iter().map(|offer| offer.nodes).sum();
    if room(leader) < 1 {
        return Some(format!(
            "the leader {} fits on none of {nodes} nodes, even if empty{}",
            leader.name,
            most(leader, offers)
        ));
    }
    let rooms: Vec<i64> = workers.iter().map(|set| room(set).min(set.counts)).collect();
    if all {
        let short = workers.iter().zip(&rooms).find(|(set, room)| **room < set.counts);
        if let Some((set, room)) = short {
            let (name, counts) = (&set.name, set.counts);
            let text = format!("{room} of {counts} workers {name} fit on {nodes} nodes, even if empty, all are needed");
            return Some(text + &most(set, offers));
        }
    }
    let found: i64 = rooms.iter().sum();
    if found < needed {
        let hint = workers.iter().zip(&rooms).find(|(set, room)| **room < set.counts);
        let hint = hint.map(|(set, _)| most(set, offers)).unwrap_or_default();
        return Some(format!("{found} workers fit on {nodes} nodes, even if empty, {needed} are needed{hint}"));
    }
    sum_is_short(leader, workers, needed, offers)
}

/// The leader and the least demanding workers ask for more of something than all nodes have.
fn sum_is_short(leader: &PartDemand, workers: &[PartDemand], needed: i64, offers: &[NodeOffer]) -> Option<String> {
    let names = || workers.iter().chain([leader]).flat_map(|part| part.amounts.iter().map(|(name, _)| name));
    for name in names() {
        let mut parts: Vec<(i64, i64)> = workers.iter().map(|set| (set.amounts.get(name), set.counts)).collect();
        parts.sort_unstable();
        let (mut left, mut wanted) = (needed, leader.amounts.get(name));
        for (amount, counts) in parts {
            let taken = counts.min(left);
            wanted = wanted.saturating_add(amount.saturating_mul(taken));
            left -= taken;
        }
        let total: i64 =
            offers.iter().fold(0, |sum, offer| sum.saturating_add(offer.amounts.get(name).saturating_mul(offer.nodes)));
        if wanted > total {
            return Some(format!("the job needs {wanted} {}, all nodes together have {total}", unit(name)));
        }
    }
    let pods: i64 = offers.iter().map(|offer| offer.pods.saturating_mul(offer.nodes)).sum();
    (needed.saturating_add(1) > pods)
        .then(|| format!("the job needs {} pods, all nodes together take {pods}", needed + 1))
}

/// `: asks for 1600 percent of GPU, the most on a node is 800`.
fn most(demand: &PartDemand, offers: &[NodeOffer]) -> String {
    for (name, wanted) in demand.amounts.iter() {
        let most = offers.iter().map(|offer| offer.amounts.get(name)).max().unwrap_or(0);
        if wanted > most {
            return format!(": it asks for {wanted} {}, the most on a node is {most}", unit(name));
        }
    }
    String::new()
}

fn unit(name: &str) -> String {
    match name {
        "cpu" => "thousandths of a CPU".to_owned(),
        "memory" | "ephemeral-storage" => format!("bytes of {name}"),
        super::folded::GPU_PERCENT => "percent of GPU".to_owned(),
        name => name.to_owned(),
    }
}
