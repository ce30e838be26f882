//! What happened to a run, in `events.jsonl` of its folder: starts, ends, restarts, copies, warnings. One
//! JSON object a line, appended by rank 0's process and by the supervisors. `gptrain report` shows it.

use anyhow::Result;
use base::unix_time;
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

/// The file's name in a run's folder.
pub const NAME: &str = "events.jsonl";

/// What an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Ranks begin to train.
    Start,
    /// They have left, as it says.
    End,
    /// All ranks begin anew, in the same job.
    Restart,
    /// A checkpoint is in the other place too.
    Copy,
    /// A person should know.
    Warning,
}

impl Kind {
    /// For a person.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Start => "start",
            Kind::End => "end",
            Kind::Restart => "restart",
            Kind::Copy => "copy",
            Kind::Warning => "warning",
        }
    }
}

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Seconds since 1970.
    pub at: f64,
    pub kind: Kind,
    pub text: String,
}

/// Appends what happens now. A folder that is full or gone for a while loses events, never the run.
pub fn add(folder: &Path, kind: Kind, text: &str) {
    append(folder, &Event { at: unix_time().as_secs_f64(), kind, text: text.to_string() });
}

/// The same, of what happened before.
pub fn append(folder: &Path, event: &Event) {
    let mut line = serde_json::to_vec(event).expect("numbers and names");
    line.push(b'\n');
    let file = OpenOptions::new().create(true).append(true).open(folder.join(NAME));
    // One write: a kill leaves at most a torn last line, which is not read.
    let _ = file.and_then(|mut file| file.write_all(&line));
}

/// All events of a run, oldest first; lines that are none are left out.
pub fn read(folder: &Path) -> Result<Vec<Event>> {
    match fs::read_to_string(folder.join(NAME)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        read => Ok(read?.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()),
    }
}
