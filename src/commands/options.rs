//! Options that several commands have.

use base::output::Existing;
use serde::Serialize;

/// Output format: text for people, or one JSON object for scripts, alone on standard output. Errors
/// are lines on standard error, with the exit code, in both formats.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Json {
    /// Print one JSON object instead
    #[arg(long)]
    pub json: bool,
}

impl Json {
    pub fn say(self, lines: impl FnOnce(), object: impl Serialize) {
        self.lines(lines);
        self.object(object);
    }

    pub fn lines(self, lines: impl FnOnce()) {
        if !self.json {
            lines();
        }
    }

    pub fn object(self, object: impl Serialize) {
        if self.json {
            base::say!("{:#}", serde_json::to_value(object).expect("numbers and names"));
        }
    }
}

/// Permission to replace existing files.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Overwrite {
    /// Replace files that exist already
    #[arg(long)]
    pub overwrite: bool,
}

impl Overwrite {
    pub fn existing(self) -> Existing {
        if self.overwrite { Existing::Replaced } else { Existing::Refused }
    }
}
