//! The command line of `baton get`.

use std::ffi::OsStr;
use std::time::Duration;

use clap::builder::{EnumValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Args, Command, ValueEnum};

use crate::complete;
use crate::leader::LeaderArgs;
use crate::live::Access;
use crate::values;
use crate::view::{Row, Rules};
use baton_contract::hint::LabelSelector;
use baton_contract::key;
use baton_decide::world::DeviceState;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Resource {
    /// GPUs and NICs in all, free and unhealthy; node daemon; lock.
    #[value(alias = "node", alias = "no")]
    Nodes,
    /// GPUs, MIG devices and NICs: model, health, holders; wide adds the reason, the place and the id.
    #[value(alias = "device", alias = "dev", alias = "gpus", alias = "gpu")]
    Devices,
    /// Pods that ask for devices: node, devices, lock.
    #[value(alias = "pod", alias = "po")]
    Pods,
    /// Namespaces: GPUs and NICs that their pods hold, and what pods wait for.
    #[value(alias = "namespace", alias = "ns")]
    Namespaces,
    /// Node locks: holder, age, state, and what to do; wide adds when each is taken over.
    #[value(alias = "lock")]
    Locks,
    /// TYJobs: stage, placement, ready workers; wide adds nodes and why.
    #[value(alias = "job", alias = "tyjobs", alias = "tyjob", alias = "tyj")]
    Jobs,
    /// Gangs: members reserved and bound, cycle, attempts and why. Answered by the scheduler.
    #[value(alias = "gang")]
    Gangs,
    /// The scheduler's queue: state, attempts, next try, refusing rules. Answered by the scheduler.
    Queue,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GetOutput {
    /// The table with more columns.
    Wide,
    /// One JSON object with `apiVersion`, `kind` and `items`; with --watch, one line `{"type":"ADDED","object":{…}}` per change.
    Json,
    /// The same as YAML.
    Yaml,
    /// One line a row, `pod/default/train`, that `baton get` takes as an argument.
    Name,
}

#[derive(Debug, Args)]
pub struct GetArgs {
    /// What to list; `pod/NAME` lists that one.
    #[arg(value_parser = TargetParser, value_name = "RESOURCE[/NAME]")]
    pub target: GetTarget,
    /// Only these: names, or namespace/name; a device is node/gpu-3 or its id; a lock goes by the name of its node.
    #[arg(value_name = "NAME", add = complete::names())]
    pub names: Vec<String>,
    /// Another format than the table.
    #[arg(short, long, value_enum)]
    pub output: Option<GetOutput>,
    /// Show changes as they come, until Ctrl-C.
    #[arg(short, long)]
    pub watch: bool,
    /// Only what has these labels: `a=b,c!=d,e in (f,g),!h`. Of devices, labels of the device or of its Device object count.
    #[arg(short = 'l', long, value_parser = values::selector)]
    pub selector: Option<LabelSelector>,
    /// Only what is on this node.
    #[arg(long, value_name = "NODE", add = complete::nodes())]
    pub node: Option<String>,
    /// Of devices, only those in this state.
    #[arg(long, value_parser = states())]
    pub state: Option<DeviceState>,
    /// Order of the rows: a column (`AGE`), or the path of a field of -o json (`.gpu.free`).
    #[arg(long, value_name = "COLUMN")]
    pub sort_by: Option<String>,
    /// No line that names the columns.
    #[arg(long)]
    pub no_headers: bool,
    /// Namespace of the pods, jobs or gangs to list; else that of the kubeconfig's context. The queue is that of all namespaces.
    #[arg(short, long, value_parser = values::namespace)]
    pub namespace: Option<String>,
    /// Pods, jobs or gangs of every namespace.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    #[command(flatten)]
    pub access: Access,
    #[command(flatten)]
    pub daemons: RulesArgs,
    /// Where the daemons are; the scheduler is asked for gangs and the queue.
    #[command(flatten)]
    pub scheduler: LeaderArgs,
}

/// Settings of this cluster's daemons.
#[derive(Debug, Clone, Args)]
pub struct RulesArgs {
    /// Node annotation of the lock.
    #[arg(long, default_value = key::NODE_LOCK, value_name = "KEY", value_parser = values::annotation_key)]
    pub node_lock_key: String,
    /// As the scheduler has it: a lock of this age is expired.
    #[arg(long, default_value = "5m", value_name = "DURATION", value_parser = values::duration)]
    pub node_lock_expiry: Duration,
}

impl RulesArgs {
    pub(crate) fn rules(&self) -> Rules {
        Rules { lock_key: self.node_lock_key.clone(), expiry: self.node_lock_expiry }
    }
}

fn states() -> impl TypedValueParser<Value = DeviceState> {
    PossibleValuesParser::new(DeviceState::ALL.iter().map(|state| state.word())).try_map(|word| word.parse())
}

/// `pods`, or `pod/NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetTarget {
    resource: Resource,
    name: Option<String>,
}

/// Reads a [`GetTarget`]; its possible values are the resources.
#[derive(Clone)]
struct TargetParser;

impl TypedValueParser for TargetParser {
    type Value = GetTarget;
    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<GetTarget, clap::Error> {
        let text = value.to_string_lossy();
        let (resource, name) = match text.split_once('/') {
            Some((resource, name)) => (resource, Some(name.to_owned())),
            None => (&*text, None),
        };
        let resource = EnumValueParser::<Resource>::new().parse_ref(command, arg, OsStr::new(resource))?;
        Ok(GetTarget { resource, name })
    }
    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Resource::value_variants().iter().filter_map(ValueEnum::to_possible_value)))
    }
}

impl GetArgs {
    pub(super) fn resource(&self) -> Resource {
        self.target.resource
    }

    /// The names that are selected.
    pub(super) fn names(&self) -> Vec<&str> {
        let first = self.target.name.as_deref();
        let more = self.names.iter().map(|name| match (first, name.split_once('/')) {
            // `pod/a pod/b`
            (Some(_), Some((word, name))) if Resource::from_str(word, true) == Ok(self.resource()) => name,
            _ => name,
        });
        first.into_iter().chain(more).collect()
    }

    /// The namespace that is listed; `None` for all, which a name with its own namespace needs too.
    pub(super) fn within(&self) -> Option<&str> {
        let elsewhere = self.names().iter().any(|name| name.contains('/'));
        (!self.all_namespaces && !elsewhere).then_some(self.namespace())
    }

    fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }

    /// A name without namespace is one of the namespace that is listed.
    pub(super) fn means(&self, row: &impl Row, given: &str) -> bool {
        let elsewhere =
            row.id().namespace.is_some_and(|namespace| !self.all_namespaces && namespace != self.namespace());
        row.is(given) && (given.contains('/') || !elsewhere || self.resource() == Resource::Queue)
    }
}
