//! TYJobs through the real `baton controller`; the scheduler's and the kubelets' parts are played by the test, which writes what
//! they write. In `placed`, the scheduler is the real one too.

mod docs;
mod faults;
mod killed;
mod life;
mod placed;
mod quotas;
mod rivals;
mod schema;
mod verbs;
