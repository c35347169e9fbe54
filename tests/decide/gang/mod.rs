//! Gangs: scenarios, random cases, and a model of two of them on two locked nodes.

mod aged;
mod commits;
mod devices;
mod edges;
mod faults;
mod gathered;
mod generations;
mod groups;
mod half;
mod layers;
mod model;
mod moves;
mod open_commits;
mod packing;
mod phases;
mod queue_order;
mod random;
mod ranks;
mod shortage;
mod victims;
mod volumes;
mod whole;
mod words;
mod work;
