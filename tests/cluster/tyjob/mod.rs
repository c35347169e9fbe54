//! TYJobs through the real `baton controller`; the scheduler's and the kubelets' parts are played by the test, which writes what
//! they write. In `placed`, the scheduler is the real one too, and in `restarts` the kubelets are simulated ones.

mod docs;
mod faults;
mod killed;
mod life;
mod placed;
mod quotas;
mod restarts;
mod schema;
mod verbs;
