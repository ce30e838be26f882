//! Reports of past runs: an HTML page with the curves of one, and the comparison of several.

pub mod page;
pub mod compare;
mod curves;
