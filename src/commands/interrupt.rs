//! Ctrl-C, SIGTERM and SIGHUP end every command at once and leave no half-written file. Only `run`,
//! `sweep` and `tune` have their own handlers: a run finishes its step and saves.

use anyhow::Context;
use base::output;
use launch::signals::ExitOnSignal;

/// Installs the handler: a signal removes unfinished output and ends the process by that signal.
pub fn listen() -> anyhow::Result<()> {
    let handler = ExitOnSignal::listen(|| {
        let kept = if output::abandon() > 0 { "; nothing of the output is kept" } else { "" };
        base::warn!("gptrain: interrupted{kept}");
    })
    .context("cannot listen to signals")?;
    std::mem::forget(handler); // it serves until the process ends
    Ok(())
}
