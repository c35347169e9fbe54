//! Device choice, from Device objects and container limits to annotations and back.

mod accepted;
mod annotations;
mod apart;
mod bounded;
mod cordoned;
mod exact;
mod hints;
mod joint;
mod nodes;
mod optimal;
mod phases;
mod pool;
mod shares;
mod together;
