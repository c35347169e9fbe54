//! The extender as kube-scheduler meets it: the shipped binary over HTTP; the tests play kube-scheduler and the nodes' agents.

mod bind;
mod hostile;
mod process;
mod tls;
mod verbs;
