//! The only place that picks a backend.

use crate::device::{Backend, cpu::Cpu};
use crate::manifest::Manifest;

pub fn backend(manifest: &Manifest) -> Box<dyn Backend> {
    Box::new(Cpu::new(manifest.train.threads))
}
