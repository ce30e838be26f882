//! Reports of past runs: an HTML page with the curves.

pub mod page;
pub mod curves;
pub mod command;
