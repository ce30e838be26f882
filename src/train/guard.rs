//! Guards of a run: one process per run folder, signals, losses and gradients that are not finite.

use super::rank::Rank;
use anyhow::Context;
use base::{DType, Problems};
use engine::{Engine, Outcome};
use rustix::fs::{FlockOperation, OFlags, flock};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::flag;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An exclusive lock of the run's folder, released when dropped (or by the kernel when the process
/// dies).
pub struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Creates the folder if it is missing, and locks it.
    pub fn take(folder: &Path) -> anyhow::Result<FolderLock> {
        let path = folder.join("run.lock");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.custom_flags(OFlags::NOFOLLOW.bits() as i32); // it may lead to a file of worth
        let open = || options.open(&path);
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
        let holder = format!("process {} on {}\n", std::process::id(), hostname());
        let written = file.set_len(0).and_then(|()| file.write_all(holder.as_bytes()));
        written.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(FolderLock { _file: file })
    }
}

fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Requests by signal. Any rank's process may receive one; all ranks act on it between two steps.
pub struct Signals {
    stop: Arc<AtomicBool>,
    save: Arc<AtomicBool>,
}

/// From now on a write beyond the user's file size limit returns an error, where SIGXFSZ ended the
/// process.
pub fn heed_size_limits() -> anyhow::Result<()> {
    flag::register(SIGXFSZ, Arc::default())?;
    Ok(())
}

impl Signals {
    /// From now on SIGINT and SIGTERM request a stop (finish the step, save, exit) and SIGUSR1 a
    /// save. A second SIGINT exits at once. A second SIGTERM does not: at a time limit Slurm sends
    /// one to the step and one to the job.
    pub fn listen() -> anyhow::Result<Signals> {
        let signals = Signals { stop: Arc::default(), save: Arc::default() };
        let interrupted = Arc::<AtomicBool>::default();
        flag::register_conditional_shutdown(SIGINT, 128 + SIGINT, interrupted.clone())?;
        flag::register(SIGINT, interrupted)?;
        for signal in [SIGINT, SIGTERM] {
            flag::register(signal, signals.stop.clone())?;
        }
        flag::register(SIGUSR1, signals.save.clone())?;
        heed_size_limits()?;
        Ok(signals)
    }

    /// Whether a stop was requested.
    pub fn stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether a save was requested since the last call of `saved`.
    pub fn save(&self) -> bool {
        self.save.load(Ordering::Relaxed)
    }

    pub fn saved(&self) {
        self.save.store(false, Ordering::Relaxed);
    }
}

/// An error with the step, tensors and ranks, if the loss or a gradient is not finite (in fp16:
/// with the lowest loss scale). A collective: all ranks call this with the same, latest outcome.
pub fn check(
    rank: &Rank,
    outcome: &Outcome,
    engine: &Engine,
    step: u64,
    samples: std::ops::Range<u64>,
) -> anyhow::Result<()> {
    if outcome.is_finite() || (outcome.skipped && !outcome.stuck) {
        return Ok(());
    }
    let culprits: Vec<(usize, String)> = rank
        .gather(&engine.not_finite())?
        .into_iter()
        .enumerate()
        .flat_map(|(rank, names)| names.into_iter().map(move |name| (rank, name)))
        .collect();
    let whole = |(number, name): &(usize, String)| match rank.grid.size() {
        1 => name.clone(),
        _ => format!("{name} on rank {number} ({})", rank.grid.coord(*number).name()),
    };
    let gradients = match culprits.as_slice() {
        [] => "every gradient is finite".to_string(),
        [only] => format!("the gradient of {} is not finite", whole(only)),
        [first, .., last] => format!(
            "{} gradients are not finite, from {} to {} (backward goes from last to first)",
            culprits.len(),
            whole(first),
            whole(last)
        ),
    };
    let (scale, remedy) = match engine.store().model_dtype() {
        DType::F16 if outcome.stuck => (
            format!(", with the lowest loss scale allowed, {}", outcome.loss_scale),
            "Take precision: bf16, lower loss_scale.min, ",
        ),
        _ => (String::new(), ""),
    };
    let lower = if remedy.is_empty() { "Lower" } else { "lower" };
    rank.agree(match rank.is_first() {
        false => Ok(()),
        true => Err(anyhow::anyhow!(
            "step {step} (samples {}..{}): the loss is {}, the gradient norm {}{scale}; \
             {gradients}. The weights are still those of step {}. {remedy}{lower} lr.peak or \
             lengthen lr.warmup_samples, set optimizer.adamw.clip, and look at those samples with \
             `gptrain data samples`",
            samples.start,
            samples.end,
            outcome.loss,
            outcome.grad_norm,
            step - 1
        )),
    })
}
