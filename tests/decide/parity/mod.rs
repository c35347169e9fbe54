//! What a real kube-scheduler answered for recorded clusters: the feasible nodes are those that it found with its default filters,
//! and the ratings of every plugin that both have equal its scores. `BATON_FIXTURES` names another directory of the same layout.

mod feasible;
mod recorded;
mod scores;
