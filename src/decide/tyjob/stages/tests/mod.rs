//! The life of a job, in verbs over a small cluster: a scheduler's words, a kubelet's words, and the time.

mod cases;
mod chaos;
mod faults;
mod pods;
mod restarts;
mod test_job;
mod transitions;
