//! Events of a run, in `events.jsonl` of its folder: starts, ends, restarts, copies, warnings. One
//! JSON object per line, appended by rank 0's process and by the supervisors. `gptrain report`
//! shows them.

use anyhow::{Context, Result};
use base::{input, redact, unix_time};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Name of the file in a run's folder.
pub const NAME: &str = "events.jsonl";

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Ranks start to train.
    Start,
    /// Ranks have ended, for the reason in the text.
    End,
    /// Failed rank and node, and the error.
    Failure,
    /// The job, or its successor, is queued.
    Queued,
    /// All ranks restart within the same job.
    Restart,
    /// A checkpoint was copied to the other place.
    Copy,
    /// Loss spike, divergence or rollback.
    Divergence,
    /// Setting that changed between two starts.
    Setting,
    /// Warning for the user.
    Warning,
}

/// Target of messages that are events of the kind `Divergence`.
pub const DIVERGENCE: &str = "train::divergence";

/// Kind of a recorded warning that has none.
pub(super) fn warning() -> Kind {
    Kind::Warning
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Seconds since 1970.
    pub at: f64,
    pub kind: Kind,
    pub text: String,
}

/// Appends an event of this moment, and returns it. If the folder is full or missing, the event is
/// lost, but the run continues.
pub fn add(folder: &Path, kind: Kind, text: &str) -> Event {
    let event = Event { at: unix_time().as_secs_f64(), kind, text: text.to_string() };
    let _ = append(folder, &event);
    event
}

/// Appends an earlier event. Can be retried after an error.
pub fn append(folder: &Path, event: &Event) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).read(true);
    // Does not follow a link, which may lead to a valuable file, nor wait for a pipe.
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    let mut file = options.open(folder.join(NAME))?;
    input::is_regular(&file)?;
    let event = Event { text: redact(&event.text).into_owned(), ..event.clone() };
    let mut line = serde_json::to_vec(&event).expect("numbers and names");
    line.push(b'\n');
    // A line torn by a kill or a full disk is terminated; it is not read.
    let end = file.metadata()?.len();
    let mut last = [b'\n'];
    if end > 0 {
        file.read_exact_at(&mut last, end - 1)?;
    }
    if last != [b'\n'] {
        line.insert(0, b'\n');
    }
    file.write_all(&line)
}

/// All events of a run, oldest first; invalid lines are skipped.
pub fn read(folder: &Path) -> Result<Vec<Event>> {
    let path = folder.join(NAME);
    let text = match input::read(&path, u64::MAX) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.with_context(|| format!("cannot read {}", path.display()))?,
    };
    Ok(text
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_torn_line_is_skipped_and_a_failed_write_can_be_retried() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        add(folder, Kind::Start, "one");
        let whole = fs::read(folder.join(NAME)).unwrap();
        fs::write(folder.join(NAME), [&whole[..], b"{\"at\": 1"].concat()).unwrap();
        add(folder, Kind::End, "two");
        let texts: Vec<_> = read(folder)
            .unwrap()
            .into_iter()
            .map(|event| event.text)
            .collect();
        assert_eq!(texts, ["one", "two"]);
        let away = folder.join("away");
        let event = Event { at: 7.0, kind: Kind::Warning, text: "three".into() };
        assert_eq!(append(&away, &event).unwrap_err().kind(), ErrorKind::NotFound);
        fs::create_dir(&away).unwrap();
        append(&away, &event).unwrap();
        assert_eq!(read(&away).unwrap(), [event]);
    }
}
