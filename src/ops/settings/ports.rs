//! The settings that daemons share: their addresses, and how they run for leadership.

use crate::config::Value;
use baton_runtime::admin::AdminListen;

impl Value for AdminListen {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "pod" => Ok(Self::InPod),
            _ => Value::read(text).map(Self::At).map_err(|bad| bad + ", or pod or none"),
        }
    }
    fn show(&self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::InPod => "pod".to_owned(),
            Self::At(address) => address.show(),
        }
    }
}

/// The setting of the admin address of a daemon that has one; `$paths` are what it answers.
macro_rules! admin {
    ($port:literal, $paths:literal) => {
        $crate::settings::log::settings! {
            "listen" "ADDRESS|pod|none" options.ports.listen
                concat!("The admin address, on loopback, which `kubectl port-forward` reaches: ", $paths, "; pod is 127.0.0.1:", $port,
                    " in the network of a pod, and none in the host's, where an address must be named");
        }
    };
}
pub(super) use admin;

/// The settings of the addresses that every daemon has.
macro_rules! ports {
    () => {
        $crate::settings::log::settings! {
            "probe-listen" "ADDRESS" options.ports.probe_listen
                "Address of the probes over plain HTTP; [::] is every address of both families, none opens no port";
            "metrics-listen" "ADDRESS" options.ports.metrics_listen
                "Address of /metrics over plain HTTP, for collectors; none opens no port";
        }
    };
}
pub(super) use ports;

/// The settings of `options.leader`.
macro_rules! leading {
    () => {
        $crate::settings::log::settings! {
            "leader-elect" "BOOL" options.leader.elect "Work only while holding the Lease";
        }
    };
}
pub(super) use leading;
