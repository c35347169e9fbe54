//! `baton ui`: its server over HTTP.

mod http;
mod load;
mod server;
