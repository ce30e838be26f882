//! Ctrl-C, SIGTERM and SIGHUP end every command at once and leave no half-written file. Only `run`
//! has its own handler: it finishes its step and saves.

use anyhow::Context;
use base::output;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// Installs the handler: a signal removes unfinished output and ends the process by that signal.
pub fn listen() -> anyhow::Result<()> {
    let mut signals =
        Signals::new(launch::signals::stop_signals()).context("cannot listen to signals")?;
    let end = move || {
        for signal in signals.forever() {
            let kept = if output::abandon() > 0 { "; nothing of the output is kept" } else { "" };
            base::warn!("gptrain: interrupted{kept}");
            emulate_default_handler(signal).ok();
        }
    };
    base::threads::spawn("signals", end).map(drop)
}
