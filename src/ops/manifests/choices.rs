//! What an operator chooses of an installation.

use clap::ValueEnum;

use baton_contract::key;

/// Choices of an installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Values {
    /// Image of every daemon.
    pub image: String,
    /// Namespace of the daemons and of their Leases.
    pub namespace: String,
    /// Which CustomResourceDefinitions come along.
    pub crds: Kinds,
    /// Who may write what decides.
    pub admission: Admission,
    /// Addresses that reach the admin address; all where there is none.
    pub admin_from: Vec<String>,
    /// Collector, alerts and dashboards come along.
    pub monitoring: bool,
    /// Where the pages of `docs/` can be read; alerts link there. Without it they have no links.
    pub docs_url: Option<String>,
}

/// The admission policies of an installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// They come along.
    pub on: bool,
    /// Users that write assignments and node locks beside the scheduler of this installation.
    pub more_writers: Vec<String>,
    /// Namespaces whose pods may come with a node and ask for devices.
    pub pinned_namespaces: Vec<String>,
    /// Pods without an assignment are served, so pods that come with their node are let in.
    pub unassigned: bool,
    /// Node annotation of the lock.
    pub lock_key: String,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            on: true,
            more_writers: Vec::new(),
            pinned_namespaces: Vec::new(),
            unassigned: false,
            lock_key: key::NODE_LOCK.to_owned(),
        }
    }
}

impl Admission {
    /// Choices that exclude each other, and what to do.
    pub fn contradiction(&self) -> Option<String> {
        let (writers, pinned) = (self.more_writers.join(","), self.pinned_namespaces.join(","));
        let policies = |option, value| {
            format!(
                "{option}={value} is for the admission policies, and --admission=off leaves them out: drop one of the two"
            )
        };
        if !self.on && !writers.is_empty() {
            Some(policies("--assignment-writers", writers))
        } else if !self.on && !pinned.is_empty() {
            Some(policies("--pinned-namespaces", pinned))
        } else if self.unassigned && !pinned.is_empty() {
            Some(format!(
                "--pinned-namespaces={pinned} names exceptions, and --unassigned-pods=serve lets pods of every namespace in: drop \
                 one of the two"
            ))
        } else {
            None
        }
    }
}

impl Values {
    /// Name of a cluster-scoped object: with the namespace where that is not the usual one, so that two installations do not
    /// overwrite each other's.
    pub fn cluster_name(&self, name: &str) -> String {
        if self.namespace == NAMESPACE { name.to_owned() } else { format!("{name}-{}", self.namespace) }
    }
}

/// The usual namespace of the daemons.
const NAMESPACE: &str = "baton-system";

impl Default for Values {
    fn default() -> Self {
        let image = format!("baton:{}", env!("CARGO_PKG_VERSION"));
        Self {
            image,
            namespace: NAMESPACE.to_owned(),
            crds: Kinds::All,
            admission: Admission::default(),
            admin_from: Vec::new(),
            monitoring: false,
            docs_url: None,
        }
    }
}

/// A choice of CustomResourceDefinitions: other systems install two of ours under the same names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kinds {
    /// Device, PodGroup and TYJob.
    All,
    /// Those that no other system installs: TYJob.
    Own,
    /// None.
    None,
}
