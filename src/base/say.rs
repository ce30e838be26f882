//! Output for the user. The reader may close it early (`| head -1`, a closed terminal) without
//! ending the command. A full disk is remembered for the exit code.

use super::progress;
use super::wrap::{error_width, output_width, wrap};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::fmt::Arguments;
use std::io::{self, Write};

/// First error of writing to standard output.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints a line on standard output, as `println!` does, broken at spaces where a terminal is narrower.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::say::output(format_args!($($text)*)) };
}

/// Prints a line on standard error, as `eprintln!` does, broken likewise.
#[macro_export]
macro_rules! warn {
    ($($text:tt)*) => { $crate::say::error(format_args!($($text)*)) };
}

/// Implementation of `say!`.
pub fn output(text: Arguments<'_>) {
    let text = text.to_string();
    let lines = wrap(&text, output_width());
    record_failed_write(progress::print_above_bar(|| {
        io::stdout().write_fmt(format_args!("{lines}\n"))
    }));
}

/// Implementation of `warn!`. An error of standard error itself is ignored, because it cannot be
/// reported.
pub fn error(text: Arguments<'_>) {
    let text = text.to_string();
    let lines = wrap(&text, error_width());
    let _ = progress::print_above_bar(|| io::stderr().write_fmt(format_args!("{lines}\n")));
}

/// Records a failed write to standard output, unless the reader closed it.
pub fn record_failed_write(written: io::Result<()>) {
    if let Err(error) = written
        && !reader_left(&error)
    {
        FAILED.lock().get_or_insert(error);
    }
}

/// Returns the error that made lines of standard output incomplete, if there was one.
pub fn write_error() -> Option<io::Error> {
    record_failed_write(io::stdout().flush());
    FAILED.lock().take()
}

/// Whether the pipe is closed or the terminal is gone.
fn reader_left(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::PIPE | Errno::IO))
}
