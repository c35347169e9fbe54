//! `baton ui`: its server over HTTP, and its pages in a real browser.

mod browser;
mod http;
mod load;
mod proxy;
mod real;
mod screens;
mod server;
mod webdriver;
