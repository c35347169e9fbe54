//! Pods, nodes and locks, one scenario or one random stream at a time.

mod agreement;
mod cordons;
mod explained;
mod extender;
mod faults;
mod gatekeepers;
mod holders;
mod indexed;
mod leaving;
mod lock_line;
mod one_move;
mod order;
mod other_schedulers;
mod placement;
mod preemption;
mod recovery;
mod requested;
mod scores;
mod shares;
mod storage;
mod suspects;
mod volumes;
mod woken;
