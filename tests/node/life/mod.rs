//! The life of the node daemon: registration, devices and their health, CDI files, what it reports, hostile neighbours.

mod cdi;
mod functions;
mod health;
mod hostile;
mod kubelet;
mod mig;
mod nics;
mod registering;
mod registrar;
mod reported;
mod running;
mod schema;
mod shares;
mod test_node;
