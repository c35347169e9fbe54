//! `VolumeBinding`: claims must be there, and their volumes reachable from the node; claims that wait for their first consumer
//! are bound to a volume, or have one made, for the node that is chosen.

mod claims;
mod match_volume;
mod pre_bind;
mod rule;
mod zone;

pub use rule::VolumeBinding;
