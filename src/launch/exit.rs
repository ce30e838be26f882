//! Exit code of the program, and its last line of output, for every command and rank.

use base::{Problems, WrongInput, escape_control};
use comm::Failed;
use std::fmt;

/// Error of `gptrain estimate` for a plan that needs more memory than available; printed with the
/// plan.
#[derive(Debug)]
pub struct DoesNotFit;

impl fmt::Display for DoesNotFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the plan does not fit")
    }
}

impl std::error::Error for DoesNotFit {}

/// Error of `gptrain bench` if something is slow; printed with the figures.
#[derive(Debug)]
pub struct Slow;

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a part of the machine is slow")
    }
}

impl std::error::Error for Slow {}

/// Exit code for wrong input.
pub const WRONG_INPUT: u8 = 2;

/// Error of a process that only exits with the same code, while another prints the reason.
#[derive(Debug)]
pub struct PeerExit {
    pub code: u8,
}

impl fmt::Display for PeerExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("another rank prints why the run ends")
    }
}

impl std::error::Error for PeerExit {}

/// Exit code for an error, and the line for standard error; None if it was printed already, or by
/// another process.
pub fn of_error(error: &anyhow::Error) -> (u8, Option<String>) {
    let (code, line) = code_and_line(error);
    (code, line.map(|line| escape_control(&line).into_owned()))
}

fn code_and_line(error: &anyhow::Error) -> (u8, Option<String>) {
    if let Some(problems) = error.downcast_ref::<Problems>() {
        (WRONG_INPUT, Some(problems.to_string()))
    } else if error.is::<WrongInput>() {
        (WRONG_INPUT, Some(format!("gptrain: {error:#}")))
    } else if let Some(failed) = error.downcast_ref::<Failed>() {
        (Failed::EXIT_CODE, failed.print.then(|| format!("gptrain: {failed}")))
    } else if let Some(PeerExit { code }) = error.downcast_ref() {
        (*code, None)
    } else if error.is::<DoesNotFit>() {
        (4, None)
    } else if error.is::<Slow>() {
        (5, None)
    } else {
        (1, Some(format!("gptrain: {error:#}")))
    }
}
