//! Placement of TYJobs: the rules on values, and the scheduler against a cluster of plain values.

mod classes;
mod docs;
mod edits;
mod faults;
mod fit;
mod gathered;
mod order;
mod placing;
mod quotas;
mod scores;
