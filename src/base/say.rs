//! Lines for a person. Whoever reads them may leave early (`| head -1`, a closed terminal), which
//! never ends a command; a full disk is remembered, for the exit code.

use parking_lot::Mutex;
use rustix::io::Errno;
use std::fmt::Arguments;
use std::io::{self, Write};

/// Why standard output took no more.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints a line on standard output, as `println!` does.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::say::output(format_args!($($text)*)) };
}

/// Prints a line on standard error, as `eprintln!` does.
#[macro_export]
macro_rules! warn {
    ($($text:tt)*) => { $crate::say::error(format_args!($($text)*)) };
}

/// What `say!` calls.
pub fn output(text: Arguments<'_>) {
    until_closed(io::stdout().write_fmt(format_args!("{text}\n")));
}

/// What `warn!` calls. Where standard error fails there is nobody left to tell.
pub fn error(text: Arguments<'_>) {
    let _ = io::stderr().write_fmt(format_args!("{text}\n"));
}

/// The result of writing to standard output, of which only a failing disk counts.
pub fn until_closed(written: io::Result<()>) {
    if let Err(error) = written
        && !reader_left(&error)
    {
        FAILED.lock().get_or_insert(error);
    }
}

/// Why lines of this process are missing from standard output, if they are.
pub fn failed() -> Option<io::Error> {
    until_closed(io::stdout().flush());
    FAILED.lock().take()
}

/// A closed pipe, or a terminal that is gone.
fn reader_left(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::PIPE | Errno::IO))
}
