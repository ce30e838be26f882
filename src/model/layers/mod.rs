//! Layers. Each file has a layer's forward and backward side by side.

pub mod attention;
pub mod embedding;
pub mod feed_forward;
pub mod fp8;
pub mod head;
pub mod linear;
pub mod norm;
