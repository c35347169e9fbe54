//! The scheduler daemon, in process, against an API server over real sockets; the tests play the nodes' agents.

mod bind;
mod cluster;
mod crash;
mod faults;
