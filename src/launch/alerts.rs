//! The user's command for events of a run (`log.on_event`): its end, its failure, a divergence, a
//! restart, a warning. A command that fails or hangs does not affect the run: it has a time limit, and
//! its first failure is a warning.

use super::events::Event;
use base::{Moment, threads};
use manifest::Manifest;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time limit of a command.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Poll interval of its process.
const POLL: Duration = Duration::from_millis(20);

/// Maximum number of events that wait for the command; further events are dropped.
const QUEUE: usize = 16;

/// Calls the command for events, in a thread. Without `log.on_event`, does nothing.
pub struct Alerts {
    queue: Option<SyncSender<Event>>,
    thread: Option<JoinHandle<()>>,
}

/// Command, and the name and folder of its run.
#[derive(Clone)]
struct AlertCommand {
    command: String,
    run: String,
    folder: String,
}

impl Alerts {
    pub fn start(m: &Manifest) -> anyhow::Result<Alerts> {
        let Some(command) = AlertCommand::for_run(m) else {
            return Ok(Alerts { queue: None, thread: None });
        };
        let (queue, events) = sync_channel::<Event>(QUEUE);
        Ok(Alerts {
            queue: Some(queue),
            thread: Some(threads::spawn("alerts", move || {
                let mut has_failed = false;
                for event in events {
                    if let Err(why) = command.call(&event)
                        && !std::mem::replace(&mut has_failed, true)
                    {
                        warn(&why);
                    }
                }
            })?),
        })
    }

    /// Calls the command soon.
    pub fn send(&self, event: &Event) {
        if let Some(queue) = &self.queue {
            let _ = queue.try_send(event.clone());
        }
    }
}

impl Drop for Alerts {
    /// Waits for the events that were sent, at most the command's time limit for each.
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok(); // a panic has been printed
        }
    }
}

/// Calls the command of a run whose ranks have ended, and waits for it.
pub fn call(m: &Manifest, event: &Event) {
    if let Some(command) = AlertCommand::for_run(m)
        && let Err(why) = command.call(event)
    {
        warn(&why);
    }
}

fn warn(why: &str) {
    tracing::warn!(
        "log.on_event: the command {why}; the run continues, and later failures are not shown"
    );
}

impl AlertCommand {
    fn for_run(m: &Manifest) -> Option<AlertCommand> {
        let run = m.name.clone();
        let folder = m.log.folder.display().to_string();
        Some(AlertCommand { command: m.log.on_event.clone()?, run, folder })
    }

    /// Runs the command with the event on standard input and in variables. The error completes "the
    /// command …".
    fn call(&self, event: &Event) -> Result<(), String> {
        let AlertCommand { command, run, folder } = self;
        let Event { at, kind, text } = event;
        let kind = kind.to_string();
        let object = json!({ "at": at, "kind": kind, "text": text, "run": run, "folder": folder });
        let mut child = Command::new("/bin/sh")
            .arg("-c")
            .arg(command)
            .process_group(0)
            .env("GPTRAIN_EVENT", &kind)
            .env("GPTRAIN_EVENT_TEXT", text.replace('\0', " "))
            .env("GPTRAIN_RUN", run)
            .env("GPTRAIN_FOLDER", folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start: {error}"))?;
        if let Some(mut input) = child.stdin.take() {
            let _ = writeln!(input, "{object}"); // it need not read
        }
        let since = Moment::now();
        loop {
            match child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("ended with {status}")),
                Ok(None) if since.elapsed() < TIMEOUT => std::thread::sleep(POLL),
                Ok(None) => {
                    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
                    let _ = child.wait();
                    return Err(format!("took longer than {} s and was ended", TIMEOUT.as_secs()));
                }
                Err(error) => return Err(format!("cannot be waited for: {error}")),
            }
        }
    }
}
