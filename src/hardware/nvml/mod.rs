//! NVML, loaded at run time and kept on threads of its own.
//!
//! ```text
//!   caller ──ask(question)──▶ query thread ──▶ libnvidia-ml        answers, or a deadline passes:
//!          ◀──answer────────                                       the thread is abandoned and replaced
//!                             event thread ──▶ wait ──▶ EventSink  (XIDs, at once)
//! ```
//!
//! Nothing but these two threads ever enters the library, so a call that hangs takes one GPU's answer with it and not the
//! daemon.

mod events;
mod library;
mod provider;
mod raw;
mod read;
mod worker;

pub use library::{NvmlOptions, candidates};
pub use provider::NvmlProvider;
pub use read::profile_name;
