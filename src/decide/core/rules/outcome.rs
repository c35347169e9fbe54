//! What a rule may answer. "No" is not an error: it explains itself and says what may turn it.

use std::time::Duration;

use crate::help::Help;
use crate::text::Text;
use crate::world::Wake;

/// A rule's "no".
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refusal {
    /// Name of the rule.
    pub rule: &'static str,
    /// Why, as it is counted over nodes: `have fewer than 4 free GPUs`. It begins with `have ` where it can, and names no pod and no number
    /// that differs from node to node.
    pub text: Text,
    /// Changes that may turn it.
    pub wake: Wake,
    /// What an operator can do.
    pub help: Help,
}

impl Refusal {
    /// The pod itself keeps away from the node: what the nodes that it would take lack matters more.
    pub fn is_of_the_pod(&self) -> bool {
        matches!(self.rule, "NodeAffinity" | "NodeName")
    }
}

/// A rule's answer. It says who retries and when.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Outcome {
    /// Yes.
    #[default]
    Fit,
    /// No, as the world stands; one of [`Refusal::wake`] may turn it, and so may preemption.
    Unfit(Refusal),
    /// No, whatever other pods do; only [`Refusal::wake`] may turn it.
    Never(Refusal),
    /// Not before this monotonic time: the pod is tried again then. A Filter judges one node, and there the time is not read: the node
    /// refuses the pod, and [`Refusal::wake`] may turn that.
    WaitUntil(Duration, Refusal),
    /// The rule could not be judged; tried again after the back-off.
    Fault(Text),
}

impl Outcome {
    /// A refusal that other pods' leaving may turn.
    pub fn unfit(rule: &'static str, text: impl Into<Text>, wake: Wake) -> Self {
        Self::Unfit(Refusal { rule, text: text.into(), wake, help: Help::Rule })
    }

    /// A refusal that other pods' leaving cannot turn.
    pub fn never(rule: &'static str, text: impl Into<Text>, wake: Wake) -> Self {
        Self::Never(Refusal { rule, text: text.into(), wake, help: Help::Rule })
    }

    /// Not before this monotonic time.
    pub fn wait_until(at: Duration, rule: &'static str, text: impl Into<Text>, wake: Wake) -> Self {
        Self::WaitUntil(at, Refusal { rule, text: text.into(), wake, help: Help::Rule })
    }

    /// The same answer, with what would help.
    #[must_use]
    pub fn helped_by(mut self, help: Help) -> Self {
        if let Self::Unfit(no) | Self::Never(no) | Self::WaitUntil(_, no) = &mut self {
            no.help = help;
        }
        self
    }

    /// `true` for yes.
    pub fn is_fit(&self) -> bool {
        matches!(self, Self::Fit)
    }
}
