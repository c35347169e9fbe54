//! `baton ui`: its server over HTTP, and its pages in a real browser.

pub mod http;
mod load;
pub mod proxy;
mod real;
mod screens;
mod server;
pub mod webdriver;
