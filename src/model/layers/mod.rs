//! Layers: forward beside backward.

pub mod attention;
pub mod embedding;
pub mod feed_forward;
pub mod fp8;
pub mod head;
pub mod linear;
pub mod norm;
