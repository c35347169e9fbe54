//! Where the members of a gang are gathered: the domains of the layers that it asks for, and the nodes that its pods may use.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::confinement::{Confinement, MeasuredDomain};
use super::gangs::{Gang, GroupId, GroupTopology};
use super::node::Node;
use super::{NodeId, Pod, PodId, World};

impl World {
    /// Every domain of each of these lists of labels, in one walk over the nodes. Each list is the beginning of the one before it. Of what
    /// `measure` says of the nodes, each domain has the sums.
    pub fn domains(
        &self,
        levels: &[Vec<Box<str>>],
        measure: impl Fn((NodeId, &Node)) -> (i64, i64),
    ) -> Vec<Vec<MeasuredDomain>> {
        let mut walks: Vec<LevelWalk<'_>> = levels.iter().map(|labels| LevelWalk::of(labels)).collect();
        let longest = levels.first().map_or(&[][..], Vec::as_slice);
        let least = levels.last().map_or(0, Vec::len);
        let (mut values, mut before): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
        for (id, node) in self.nodes() {
            let Some(facts) = &node.facts else { continue };
            values.clear();
            values.extend(longest.iter().map_while(|label| facts.domain(label)));
            if values.len() < least {
                continue;
            }
            let amounts = measure((id, node));
            // Nodes of one domain mostly come one after the other.
            let same = values.iter().zip(&before).take_while(|(value, before)| value == before).count();
            for walk in walks.iter_mut().filter(|walk| walk.labels.len() <= values.len()) {
                walk.enter(id, &values, same, amounts);
            }
            std::mem::swap(&mut values, &mut before);
        }
        walks.into_iter().map(LevelWalk::domains).collect()
    }

    /// The nodes that pods confined to `at` may use, in order; all where they are not confined.
    pub fn nodes_in<'a>(&'a self, at: Option<&'a Confinement>) -> impl Iterator<Item = (NodeId, &'a Node)> {
        let looked_up = at.map(Confinement::looked_up).unwrap_or_default();
        let known = looked_up.iter().filter_map(|id| Some((*id, self.node(*id)?)));
        let all = looked_up.is_empty().then(|| self.nodes()).into_iter().flatten();
        known.chain(all).filter(move |(_, node)| at.is_none_or(|at| at.has(node)))
    }

    /// The domains where a group may be gathered: that of its members with a node, or else every one. Where a label has changed since and
    /// they are in several, that of the most.
    pub fn domains_for(&self, group: &GroupId, labels: &[Box<str>]) -> Vec<Confinement> {
        let all = self.domains(&[labels.to_vec()], |_| (0, 0));
        let placed = self.domain_of_placed(group, labels, None);
        let all = all.into_iter().flatten().map(|(domain, _)| domain);
        all.filter(|domain| placed.as_ref().is_none_or(|values| domain.values() == Some(values))).collect()
    }

    /// The domains in one of which all pods of this one's group must be, and the group; `None` where they may be anywhere.
    pub fn required_domains(&self, id: PodId) -> Option<(GroupId, Vec<Confinement>)> {
        let group = self.gangs.gang_of(id)?.group();
        let labels = self.gangs.topology_of(group)?.required;
        (!labels.is_empty()).then(|| (group.clone(), self.domains_for(group, &labels)))
    }

    /// Where a late member of a group that prefers to be gathered goes if there is room: beside the others, in the innermost layer first.
    pub fn preferred_places(&self, id: PodId) -> Vec<(GroupId, Confinement)> {
        let Some(group) = self.gangs.gang_of(id).filter(|_| self.gangs.gathers()).map(Gang::group) else {
            return Vec::new();
        };
        let topology = self.gangs.topology_of(group).filter(|topology| !topology.preferred.is_empty());
        let levels = topology.iter().flat_map(GroupTopology::levels);
        let place = |labels: Vec<Box<str>>| {
            let values = self.domain_of_placed(group, &labels, Some(id))?;
            Some((group.clone(), Confinement::new(labels, Some(values), Vec::new())))
        };
        levels.filter_map(place).collect()
    }

    /// The values of `labels` where members of a group have a node already, `except` this one.
    pub fn domain_of_placed(
        &self,
        group: &GroupId,
        labels: &[Box<str>],
        except: Option<PodId>,
    ) -> Option<Vec<Box<str>>> {
        let gangs = self.gangs().listing(group).filter(|gang| gang.counts().placed() + gang.counts().reserved > 0);
        let members = gangs.flat_map(Gang::members).filter(|member| member.state.has_node());
        let members = members.filter(|member| Some(member.pod) != except && !self.is_nominated_reservation(member.pod));
        self.domain_of_most(members.filter_map(|member| self.pod(member.pod).and_then(Pod::node)), labels)
    }

    /// The values of `labels` that most of these nodes have.
    pub fn domain_of_most(&self, nodes: impl Iterator<Item = NodeId>, labels: &[Box<str>]) -> Option<Vec<Box<str>>> {
        let mut counts: BTreeMap<Vec<&str>, usize> = BTreeMap::new();
        for values in nodes.filter_map(|id| values_of(self.node(id)?, labels)) {
            *counts.entry(values).or_default() += 1;
        }
        let most = counts.into_iter().rev().max_by_key(|(_, count)| *count);
        most.map(|(values, _)| values.into_iter().map(Box::from).collect())
    }

    /// Pods of this group use no other nodes until [`World::unconfine`].
    pub fn confine(&mut self, group: &GroupId, to: Arc<Confinement>) {
        self.gangs.set_confined(Some((group.clone(), to)));
    }

    /// Pods of the group that was confined use the nodes again that its running members leave to it.
    pub fn unconfine(&mut self) {
        self.gangs.set_confined(None);
    }

    /// The nodes that this pod may use; `None` for all. Running members fix them for late and replaced ones.
    pub fn confinement_of(&self, pod: &Pod) -> Option<Arc<Confinement>> {
        if !self.gangs.gathers() || pod.facts.spec.gang.is_none() {
            return None;
        }
        let group = self.gangs.gang_of(pod.id)?.group();
        if let Some(to) = self.gangs.confined(group) {
            return Some(Arc::clone(to));
        }
        let labels = self.gangs.topology_of(group)?.required;
        if labels.is_empty() {
            return None;
        }
        let values = self.domain_of_placed(group, &labels, Some(pod.id));
        Some(Arc::new(Confinement::new(labels, values, Vec::new())))
    }
}

fn values_of<'a>(node: &'a Node, labels: &[Box<str>]) -> Option<Vec<&'a str>> {
    let facts = node.facts.as_ref()?;
    labels.iter().map(|label| facts.domain(label)).collect()
}

/// The domains of one list of labels, while the nodes are walked.
struct LevelWalk<'a> {
    labels: &'a [Box<str>],
    /// Places in `found` by the labels' values.
    places: BTreeMap<Vec<&'a str>, usize>,
    found: Vec<(Vec<NodeId>, (i64, i64))>,
    last: Option<usize>,
}

impl<'a> LevelWalk<'a> {
    fn of(labels: &'a [Box<str>]) -> Self {
        Self { labels, places: BTreeMap::new(), found: Vec::new(), last: None }
    }

    /// A node that begins with these values, the first `same` of them those of the node before it.
    fn enter(&mut self, id: NodeId, values: &[&'a str], same: usize, amounts: (i64, i64)) {
        let values = &values[..self.labels.len()];
        let last = self.last.filter(|_| same >= values.len());
        let known = last.or_else(|| self.places.get(values).copied());
        let place = known.unwrap_or_else(|| {
            self.places.insert(values.to_vec(), self.found.len());
            self.found.push((Vec::new(), (0, 0)));
            self.found.len() - 1
        });
        let (nodes, sums) = &mut self.found[place];
        nodes.push(id);
        *sums = (sums.0.saturating_add(amounts.0), sums.1.saturating_add(amounts.1));
        self.last = Some(place);
    }

    /// In the order of the values.
    fn domains(mut self) -> Vec<MeasuredDomain> {
        let domain = |(values, place): (Vec<&str>, usize)| {
            let (nodes, sums) = std::mem::take(&mut self.found[place]);
            let values = values.into_iter().map(Box::from).collect();
            (Confinement::new(self.labels.to_vec(), Some(values), nodes), sums)
        };
        self.places.into_iter().map(domain).collect()
    }
}
