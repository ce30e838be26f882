//! What happened to a run, in `events.jsonl` of its folder: starts, ends, restarts, copies, warnings. One
//! JSON object a line, appended by rank 0's process and by the supervisors. `gptrain report` shows it.

use anyhow::Result;
use base::unix_time;
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
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

/// Appends what happens now. A folder that is full or gone for a while loses it, and never the run.
pub fn add(folder: &Path, kind: Kind, text: &str) {
    let _ = append(folder, &Event { at: unix_time().as_secs_f64(), kind, text: text.to_string() });
}

/// The same, of what happened before. After an error it can be tried again.
pub fn append(folder: &Path, event: &Event) -> io::Result<()> {
    let options = OpenOptions::new().create(true).append(true).read(true).clone();
    let mut file = options.open(folder.join(NAME))?;
    let mut line = serde_json::to_vec(event).expect("numbers and names");
    line.push(b'\n');
    // What a kill or a full disk has torn is a line of its own, which is not read.
    let (end, mut last) = (file.metadata()?.len(), [b'\n']);
    if end > 0 {
        file.read_exact_at(&mut last, end - 1)?;
    }
    if last != [b'\n'] {
        line.insert(0, b'\n');
    }
    file.write_all(&line)
}

/// All events of a run, oldest first; lines that are none are left out.
pub fn read(folder: &Path) -> Result<Vec<Event>> {
    match fs::read_to_string(folder.join(NAME)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        read => Ok(read?.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_line_costs_no_other_and_what_could_not_be_written_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        add(folder, Kind::Start, "one");
        let whole = fs::read(folder.join(NAME)).unwrap();
        fs::write(folder.join(NAME), [&whole[..], b"{\"at\": 1"].concat()).unwrap();
        add(folder, Kind::End, "two");
        let texts: Vec<_> = read(folder).unwrap().into_iter().map(|event| event.text).collect();
        assert_eq!(texts, ["one", "two"]);
        let away = folder.join("away");
        let event = Event { at: 7.0, kind: Kind::Warning, text: "three".into() };
        assert_eq!(append(&away, &event).unwrap_err().kind(), ErrorKind::NotFound);
        fs::create_dir(&away).unwrap();
        append(&away, &event).unwrap();
        assert_eq!(read(&away).unwrap(), [event]);
    }
}
