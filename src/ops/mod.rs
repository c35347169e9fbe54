//! The operator's side: the command line, configuration, manifests, inspection, the demo. The only place that wires everything,
//! and the only one that uses anyhow.

mod admission;
pub mod audit;
mod cli;
mod complete;
pub mod config;
mod convert;
mod cordon;
mod daemon;
#[cfg(feature = "sim")]
pub mod demo;
mod doctor;
pub mod explain;
mod get;
mod leader;
mod live;
pub mod manifests;
mod say;
pub mod settings;
#[cfg(feature = "simulate")]
pub mod simulate;
mod ui;
mod values;
mod view;

pub use cli::{device_plugin, main, scheduler};
