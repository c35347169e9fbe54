//! What a real server fills in: defaults while decoding, admission, and what creation sets.

mod admission;
mod creation;
mod pod;
mod types;

pub use admission::admit_new;
pub use creation::prepare;
pub use types::decode_time;
