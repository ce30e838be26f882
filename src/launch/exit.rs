//! Exit code of the program, and its last line of output, for every command and rank.

use base::{Problems, WrongInput, escape_control, redact};
use comm::Failed;
use std::fmt;

/// Exit code for wrong input.
pub const WRONG_INPUT: u8 = 2;

/// Exit code of `gptrain estimate` for a plan that needs more memory than available.
pub const DOES_NOT_FIT: u8 = 4;

/// Exit code of `gptrain bench` if something is slow.
pub const SLOW: u8 = 5;

/// Error whose reason was already printed, by this process or by another rank's.
#[derive(Debug)]
pub struct AlreadyPrinted {
    pub code: u8,
}

impl fmt::Display for AlreadyPrinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reason was already printed")
    }
}

impl std::error::Error for AlreadyPrinted {}

/// Exit code for an error, and the line for standard error; None if it was already printed.
pub fn code_and_line(error: &anyhow::Error) -> (u8, Option<String>) {
    let (code, line) = if let Some(problems) = error.downcast_ref::<Problems>() {
        (WRONG_INPUT, Some(problems.to_string()))
    } else if error.is::<WrongInput>() {
        (WRONG_INPUT, Some(format!("gptrain: {error:#}")))
    } else if let Some(failed) = error.downcast_ref::<Failed>() {
        (Failed::EXIT_CODE, failed.print.then(|| format!("gptrain: {failed}")))
    } else if let Some(AlreadyPrinted { code }) = error.downcast_ref() {
        (*code, None)
    } else {
        (1, Some(format!("gptrain: {error:#}")))
    };
    (code, line.map(|line| escape_control(&redact(&line)).into_owned()))
}
