//! Explains a job: its turn, its share, and each node's verdict on each of its pods.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::answer::serialized_name;
use crate::core::rules::{Text, View};
use crate::core::select::choose::prepare;
use crate::core::timers::Moment;
use crate::scheduler::Scheduler;
use crate::tyjob::JobRecord;
use crate::tyjob::allowance::present;
use crate::tyjob::gather::{asked, no_domain};
use crate::tyjob::place::{JobContext, judge_other_parts, pod_to_place, refusal_text, template_pod};
use crate::tyjob::placement::{JobClass, JobFacts, JobSpec, Metric, Rank, Seat, dominant_share};
use crate::tyjob::round::{cluster_total, demand_of, missing_by_part, pods_by_node, unplaced_guests};
use crate::tyjob::table::JobTable;
use crate::world::{Confinement, NodeId, World};
use baton_contract::PodKey;
use baton_contract::tyjob::{BasicPolicy, ScheduleState};

/// The answer for one job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobExplanation {
    /// `namespace/name`.
    pub job: String,
    /// `waiting`, `placed`, `resting` (its places were given back), `unfit`, `invalid` or `over`.
    pub class: String,
    /// `status.scheduleState`, as decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_state: Option<ScheduleState>,
    /// Message of condition `Scheduled`.
    pub message: String,
    /// Position among waiting jobs, from 1, and their number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<(usize, usize)>,
    /// `spec.priority`.
    pub priority: i32,
    /// `spec.jobQueuePolicy`.
    pub job_queue_policy: String,
    /// `spec.basicPolicy`.
    pub basic_policy: String,
    /// The largest share of a resource of the cluster that the whole job requests.
    pub dominant_share: f64,
    /// That resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dominant_resource: Option<String>,
    /// `status.attempt`.
    pub attempt: i32,
    /// Its pods.
    pub seats: Vec<SeatExplanation>,
}

/// One pod of the job, or several of one part without a place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SeatExplanation {
    /// Name of the (first) pod.
    pub pod: String,
    /// Number of these pods.
    pub pods: usize,
    /// The node of its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// `reserved`, `taken`, `ended` or `missing`.
    pub state: String,
    /// Without a place: each node's verdict, the best node first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeRating>,
    /// Without a place: why it fits nowhere, before any node is judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// One node for one pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRating {
    /// Node.
    pub node: String,
    /// How the policy ranks it; none where the pod does not fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// Why the pod does not fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

impl Scheduler {
    /// Explains the job of that name; `None` when there is none.
    pub fn explain_job(&self, key: &PodKey, now: Moment) -> Option<JobExplanation> {
        let job = self.world().job(key)?;
        let record = self.tyjobs().records().get(key);
        let class = record.map_or(JobClass::Waiting, |record| record.judged.class);
        let reported = record.and_then(|record| record.report.last.as_ref()).map(|(_, message, _)| message.clone());
        let reported = reported.or_else(|| job.scheduled.as_ref().map(|condition| condition.message.to_string()));
        let order = self.tyjobs().in_order(self.world());
        let turn = order.iter().position(|other| other == key).map(|at| (at + 1, order.len()));
        let mut explanation = JobExplanation {
            job: key.to_string(),
            class: class_name(class).to_owned(),
            schedule_state: record.and_then(|record| record.state).or(job.state),
            message: reported.unwrap_or_default(),
            turn,
            priority: 0,
            job_queue_policy: String::new(),
            basic_policy: String::new(),
            dominant_share: 0.0,
            dominant_resource: None,
            attempt: job.attempt,
            seats: Vec::new(),
        };
        match &job.spec {
            Err(why) => explanation.message = format!("the spec is invalid: {why}"),
            Ok(spec) => {
                let (total, size) = cluster_total(self.world());
                let demand = demand_of(spec, size);
                let (share, resource) = dominant_share(&demand, &total);
                explanation.dominant_share = share.value();
                explanation.dominant_resource = resource.map(str::to_owned);
                explanation.priority = spec.priority;
                explanation.job_queue_policy = serialized_name(&spec.queue);
                explanation.basic_policy = serialized_name(&spec.basic);
                if job.is_over() {
                    // Its places and its share are free.
                    explanation.message =
                        format!("the job is over and holds nothing; `baton get jobs {key} -o wide` says how it ended");
                    (explanation.dominant_share, explanation.dominant_resource) = (0.0, None);
                    return Some(explanation);
                }
                explanation.seats = self.seats(job, spec, record, now);
            }
        }
        Some(explanation)
    }

    fn seats(&self, job: &JobFacts, spec: &JobSpec, record: Option<&JobRecord>, now: Moment) -> Vec<SeatExplanation> {
        let places = record.map(|record| &record.places);
        let seats: Vec<Seat> = spec.seats(&job.job.key.name).collect();
        let placed = |seat: &Seat| places.and_then(|places| places.get(&seat.pod));
        let missing: Vec<Seat> =
            seats.iter().filter(|seat| placed(seat).is_none() && !job.ended.contains_key(&seat.pod)).cloned().collect();
        let mut explained: Vec<SeatExplanation> = Vec::new();
        // Quotas count a pod that is there already.
        let mut of_part: BTreeMap<(usize, bool), usize> = BTreeMap::new();
        for seat in &seats {
            let place = placed(seat);
            let state = match place {
                _ if job.ended.contains_key(&seat.pod) => "ended",
                Some(place) if place.reservation.is_some() => "reserved",
                Some(_) => "taken",
                None => "missing",
            };
            let node = place.map(|place| place.node.to_string());
            let mut line = SeatExplanation {
                pod: seat.pod.to_string(),
                pods: 1,
                node,
                state: state.to_owned(),
                nodes: Vec::new(),
                refused: None,
            };
            if state == "missing" {
                let like = (seat.part, present(self.world(), job, &seat.pod, now.wall).is_some());
                if let Some(at) = of_part.get(&like) {
                    explained[*at].pods += 1;
                    continue;
                }
                of_part.insert(like, explained.len());
                match self.rate(job, spec, seat, (&missing, record), now) {
                    Ok(nodes) => line.nodes = nodes,
                    Err(why) => line.refused = Some(why),
                }
            }
            explained.push(line);
        }
        explained
    }

    /// Every node's verdict on a seat.
    fn rate(
        &self,
        job: &JobFacts,
        spec: &JobSpec,
        seat: &Seat,
        (missing, record): (&[Seat], Option<&JobRecord>),
        now: Moment,
    ) -> Result<Vec<NodeRating>, String> {
        let part = spec.parts.get(seat.part).ok_or("the job has no such part")?;
        let here = pods_by_node(self.world(), job, record);
        let within = fixed_domain(self.world(), spec, &here)?;
        let namespace = &job.job.key.namespace;
        let allowance = self.tyjobs().allowance(self.world(), namespace, now.wall);
        let whole = allowance.charge(self.world(), namespace, part);
        let beside = present(self.world(), job, &seat.pod, now.wall).map(|present| whole.beside(present));
        if let Some(excess) = allowance.excess(beside.as_ref().unwrap_or(&whole)) {
            return Err(excess);
        }
        let facts = pod_to_place(self.world(), job, spec, seat);
        let pod = template_pod(facts.unwrap_or_else(|| part.pod_of(&job.job, seat)));
        let view = View { world: self.world(), now: now.mono };
        let mut slots = prepare(view, self.rules(), &pod).map_err(refusal_text)?;
        let mut table = JobTable::new(&pod, Metric::of(spec.basic, part.role));
        let judged = table.catch_up(view, self.rules(), &pod, &mut slots, &self.config().jobs.weights);
        judged.map_err(Text::into_owned)?;
        let unplaced = if spec.basic == BasicPolicy::JobAffinity {
            unplaced_guests(self.world(), (job, spec), seat.part, &missing_by_part(spec, missing))
        } else {
            Vec::new()
        };
        let settings = (self.rules(), &self.config().jobs.weights);
        let others = judge_other_parts(view, settings, (job, spec), (seat, &pod), &unplaced, |pod, metric, _| {
            JobTable::new(pod, metric)
        });
        let (policy, within) = (spec.basic, within.as_ref());
        let context = JobContext { policy, here: &here, missing: &unplaced, within, others: &others };
        let mut nodes: Vec<NodeRating> = Vec::new();
        for (id, node) in self.world().nodes() {
            let outside = within.filter(|within| !within.has(node)).map(|within| format!("outside {}", within.name()));
            let rank = table.rank(id).filter(|_| outside.is_none());
            let rank = rank.map(|(metric, _, _)| context.rank(self.world(), id, metric.0));
            let refused = table.refusal(id).map(|refusal| refusal.text.clone().into_owned()).or(outside);
            nodes.push(NodeRating { node: node.name.to_string(), rank, refused });
        }
        nodes.sort_by(|a, b| b.rank.cmp(&a.rank).then_with(|| a.node.cmp(&b.node)));
        Ok(nodes)
    }
}

/// The domain where pods without a place must go: that of the pods with a place, where the job requires one.
fn fixed_domain(world: &World, spec: &JobSpec, here: &BTreeMap<NodeId, i64>) -> Result<Option<Confinement>, String> {
    if let Err(bad) = &spec.topology {
        return Err(bad.to_string());
    }
    let Some(labels) = asked(world, spec).map(|topology| topology.required).filter(|labels| !labels.is_empty()) else {
        return Ok(None);
    };
    let domains: Vec<Confinement> = world
        .domains(std::slice::from_ref(&labels), |_| (0, 0))
        .into_iter()
        .flatten()
        .map(|(domain, _)| domain)
        .collect();
    if domains.is_empty() {
        return Err(no_domain(&labels));
    }
    let values = world.domain_of_most(here.keys().copied(), &labels);
    Ok(values.and_then(|values| domains.into_iter().find(|domain| domain.values() == Some(&values))))
}

fn class_name(class: JobClass) -> &'static str {
    match class {
        JobClass::Over => "over",
        JobClass::Invalid => "invalid",
        JobClass::Unfit => "unfit",
        JobClass::Placed => "placed",
        JobClass::Resting => "resting",
        JobClass::Waiting => "waiting",
    }
}
