//! Times that a program fixes, because no operator can choose them well. Each states why it is what it is.

use std::path::Path;
use std::time::Duration;

/// One struct of such times, each with its value; the text of a field is its reason.
#[macro_export]
macro_rules! timings {
    ($(#[$of:meta])* $name:ident { $($(#[$why:meta])* $field:ident: $value:expr,)+ }) => {
        $(#[$of])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name {
            $($(#[$why])* pub $field: ::std::time::Duration,)+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $value,)+ }
            }
        }

        impl $name {
            /// Each time by the name of its field.
            pub fn times(&mut self) -> Vec<(&'static str, &mut ::std::time::Duration)> {
                vec![$((stringify!($field), &mut self.$field),)+]
            }
        }
    };
}
pub use timings;

/// The options of a program that has such times.
pub trait Timed {
    /// Each time by its name. Tests shorten them.
    fn times(&mut self) -> Vec<(&'static str, &mut Duration)>;
    /// Credentials for the API server that the program works with; `None` is the pod's service account.
    fn kubeconfig(&self) -> Option<&Path>;
}

/// So many seconds.
pub const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// So many milliseconds.
pub const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}
