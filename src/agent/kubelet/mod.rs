//! The kubelet's side of the daemon: sockets, the five calls, registration and its renewal.

pub mod advertised;
pub mod directory;
pub mod plugin;
pub mod plugins;
pub mod register;
pub mod server;
pub mod service;
pub mod socket;

pub use advertised::{Advertised, AdvertisedDevice, IdUnits, TooMany};
pub use plugin::{PluginState, PluginStates};
pub use plugins::{PluginsConfig, ResourcePlugins};
pub use service::DeviceCalls;
pub use socket::{SOCKET_NAME_MAX, SOCKET_PATH_MAX};
