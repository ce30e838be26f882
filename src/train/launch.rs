//! The only place that picks a backend.

use crate::device::{
    Backend,
    cpu::Cpu,
    cuda::{self, Cuda},
};
use crate::manifest::{DeviceChoice, Manifest};

/// The device that the manifest asks for, and what it is called.
pub fn backend(manifest: &Manifest) -> anyhow::Result<(Box<dyn Backend>, String)> {
    let options = cuda::Options::of_machine(0);
    let gpu = match manifest.train.device {
        DeviceChoice::Cpu => false,
        DeviceChoice::Cuda => true,
        // One GPU serves one rank.
        DeviceChoice::Auto => manifest.topology.ranks() == 1 && cuda::is_there(&options),
    };
    if gpu {
        let cuda = Cuda::open(&options)?;
        let description = cuda.description().to_string();
        return Ok((Box::new(cuda), description));
    }
    let cpu = Cpu::new(manifest.train.threads);
    let description = format!("CPU, {} threads", cpu.threads());
    Ok((Box::new(cpu), description))
}
