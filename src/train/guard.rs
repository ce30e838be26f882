//! What keeps a run safe from the outside: one run per folder, signals, numbers that are not finite.

use crate::base::Problems;
use crate::engine::{Engine, Outcome};
use anyhow::Context;
use rustix::fs::{FlockOperation, flock};
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The run's folder, ours alone until dropped (or until the process dies: the kernel lets go).
pub struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Creates the folder if need be, and locks it.
    pub fn take(folder: &Path) -> anyhow::Result<FolderLock> {
        let path = folder.join("run.lock");
        let open =
            || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = fs::create_dir_all(folder).and_then(|()| open()).with_context(|| {
            format!("cannot write in the run's folder {}: set log.folder", folder.display())
        })?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            return Err(Problems::one(
                folder.display().to_string(),
                format!("another run is writing here ({})", holder.trim()),
                "wait for it, stop it, or give this one its own folder: --set log.folder=DIR",
            )
            .into());
        }
        file.set_len(0)?;
        writeln!(file, "process {} on {}", std::process::id(), hostname())?;
        Ok(FolderLock { _file: file })
    }
}

fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Raised by SIGINT or SIGTERM: finish the step, save, and leave. A second one leaves at once.
pub fn stop_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, flag.clone())?;
        signal_hook::flag::register(signal, flag.clone())?;
    }
    // A file size limit of the user is an error to report, not a reason to die.
    signal_hook::flag::register(SIGXFSZ, Arc::default())?;
    Ok(flag)
}

/// Whether a stop was asked for.
pub fn stopping(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed)
}

/// An error naming the tensor and the step, if the outcome is not finite.
pub fn check_finite(
    outcome: &Outcome,
    engine: &Engine,
    step: u64,
    samples: std::ops::Range<u64>,
) -> anyhow::Result<()> {
    if outcome.is_finite() {
        return Ok(());
    }
    let culprits = engine.not_finite();
    let gradients = match culprits.as_slice() {
        [] => "every gradient is finite".to_string(),
        [only] => format!("the gradient of {only} is not finite"),
        [first, .., last] => format!(
            "{} gradients are not finite, from {first} to {last} (backward goes from last to first)",
            culprits.len()
        ),
    };
    anyhow::bail!(
        "step {step} (samples {}..{}): the loss is {}, the gradient norm {}; {gradients}. \
         The weights are still those of step {}. Lower lr.peak or lengthen lr.warmup_samples, \
         set optimizer.adamw.clip, and look at those samples with `gptrain data samples`",
        samples.start,
        samples.end,
        outcome.loss,
        outcome.grad_norm,
        step - 1
    )
}
