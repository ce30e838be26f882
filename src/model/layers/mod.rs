//! Layers: forward beside backward.

pub mod embedding;
pub mod head;
pub mod linear;
