//! Signals of a run: requests to stop or to save.

use super::console::Console;
use comm::Place;
use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator;
use signal_hook::low_level::emulate_default_handler;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Requests by signal. Any rank's process may receive one; all ranks act on it between two steps.
pub struct Signals {
    stop: Arc<AtomicBool>,
    save: Arc<AtomicBool>,
    message: Arc<StopMessage>,
}

/// Message printed once when a stop is requested, because the step may take minutes.
struct StopMessage {
    /// None if another process prints it.
    console: Mutex<Option<Console>>,
    /// Current step; 0 before the first.
    step: AtomicU64,
    /// Whether the signal was Ctrl-C.
    interrupted: Arc<AtomicBool>,
}

impl StopMessage {
    fn print(&self) {
        let mut console = self.console.lock();
        let Some(console) = console.take() else { return };
        let mut text = match self.step.load(Ordering::Relaxed) {
            0 => "stopping before the first step".to_string(),
            step => format!("finishing step {step}, then saving"),
        };
        if self.interrupted.load(Ordering::Relaxed) {
            text += "; Ctrl-C again: leave now";
        }
        console.print(&text);
    }
}

/// Signals that request a stop: Ctrl-C, a scheduler's, or the close of the terminal. The last is
/// excluded if the process was started with it ignored (nohup).
pub fn stop_signals() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    let mut signals = vec![SIGINT, SIGTERM];
    if ignored >> (SIGHUP - 1) & 1 == 0 {
        signals.push(SIGHUP);
    }
    signals
}

/// Makes writes beyond the user's file size limit return an error; by default SIGXFSZ ends the
/// process.
pub fn ignore_size_limit_signal() -> anyhow::Result<()> {
    flag::register(SIGXFSZ, Arc::default())?;
    Ok(())
}

/// Handler of stop signals that ends the process at once, until it is dropped.
pub struct ExitOnSignal(iterator::Handle);

impl ExitOnSignal {
    /// Starts listening. Calls `clean_up` before a signal ends the process.
    pub fn listen(clean_up: impl FnOnce() + Send + 'static) -> anyhow::Result<ExitOnSignal> {
        let mut signals = iterator::Signals::new(stop_signals())?;
        let handle = signals.handle();
        base::threads::spawn("signals", move || {
            if let Some(signal) = signals.forever().next() {
                clean_up();
                emulate_default_handler(signal).ok();
            }
        })?;
        Ok(ExitOnSignal(handle))
    }
}

impl Drop for ExitOnSignal {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Signals {
    /// Makes `stop_signals` request a stop (finish the step, save, exit), which is printed on
    /// `console`, and SIGUSR1 a save. A second SIGINT exits at once. A second SIGTERM does not,
    /// because Slurm sends one to the step and one to the job at a time limit. A terminal's SIGINT
    /// also reaches the supervisor of a rank, which handles it.
    pub fn listen(console: Option<Console>) -> anyhow::Result<Signals> {
        let interrupted = Arc::<AtomicBool>::default();
        let message = Arc::new(StopMessage {
            console: Mutex::new(console),
            step: AtomicU64::new(0),
            interrupted: interrupted.clone(),
        });
        let signals = Signals { stop: Arc::default(), save: Arc::default(), message };
        let mut handled = stop_signals();
        if Place::is_given() {
            handled.retain(|signal| *signal != SIGINT);
        } else {
            flag::register_conditional_shutdown(SIGINT, 128 + SIGINT, interrupted.clone())?;
        }
        flag::register(SIGINT, interrupted)?;
        for signal in &handled {
            flag::register(*signal, signals.stop.clone())?;
        }
        let mut arriving = iterator::Signals::new(handled)?;
        let message = signals.message.clone();
        base::threads::spawn("signals", move || {
            if arriving.forever().next().is_some() {
                message.print();
            }
        })?;
        flag::register(SIGUSR1, signals.save.clone())?;
        ignore_size_limit_signal()?;
        Ok(signals)
    }

    /// Whether a stop was requested. If so, prints the message once.
    pub fn stop_requested(&self) -> bool {
        let stop = self.stop.load(Ordering::Relaxed);
        if stop {
            self.message.print();
        }
        stop
    }

    /// Suppresses the message, because the run is over.
    pub fn suppress_message(&self) {
        self.message.console.lock().take();
    }

    /// Sets the current step, which the message names.
    pub fn set_step(&self, step: u64) {
        self.message.step.store(step, Ordering::Relaxed);
    }

    /// Whether a save was requested since the last call of `clear_save`.
    pub fn save_requested(&self) -> bool {
        self.save.load(Ordering::Relaxed)
    }

    pub fn clear_save(&self) {
        self.save.store(false, Ordering::Relaxed);
    }
}
