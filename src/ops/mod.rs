//! The operator's side: the command line, configuration, manifests, inspection, the demo. The only place that wires everything,
//! and the only one that uses anyhow.

pub mod admission;
pub mod audit;
pub mod cli;
mod complete;
pub mod config;
pub mod convert;
mod cordon;
mod daemon;
#[cfg(feature = "sim")]
pub mod demo;
pub mod doctor;
pub mod explain;
pub mod get;
mod leader;
mod live;
pub mod manifests;
mod say;
pub mod settings;
#[cfg(feature = "simulate")]
pub mod simulate;
mod ui;
mod values;
pub mod view;

pub use cli::{device_plugin, main, scheduler};
