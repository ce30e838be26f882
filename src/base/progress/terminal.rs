//! Standard error as a terminal whose window may change its width. A narrower window wraps the line
//! drawn last into several rows, which are all cleared.

use crate::wrap::columns;
use indicatif::TermLike;
use parking_lot::Mutex;
use std::io::{self, Write};

/// Columns and rows if the terminal does not report them.
const SIZE: (u16, u16) = (80, 24);

#[derive(Debug, Default)]
pub struct Terminal {
    drawn: Mutex<Drawn>,
}

/// Text on the screen, and pending output.
#[derive(Debug, Default)]
struct Drawn {
    /// Columns of the last line.
    columns: usize,
    /// Output that is not flushed.
    pending: String,
}

impl Drawn {
    /// Writes the bar's line without indicatif's padding, which a narrower window would wrap.
    fn write(&mut self, text: &str) {
        let text = text.trim_end_matches(' ');
        self.columns += columns(text);
        self.pending += text;
    }

    /// Clears the line before the cursor, which a narrower window has wrapped into several.
    fn clear(&mut self, width: usize) {
        for _ in 1..self.columns.div_ceil(width) {
            self.pending += "\r\x1b[2K\x1b[1A";
        }
        self.pending += "\r\x1b[2K";
        self.columns = 0;
    }

    /// Moves the cursor: `A` up, `B` down, `C` right, `D` left.
    fn shift(&mut self, count: usize, direction: char) {
        if count > 0 {
            self.pending += &format!("\x1b[{count}{direction}");
        }
    }
}

fn size() -> (u16, u16) {
    let found = rustix::termios::tcgetwinsize(io::stderr()).ok();
    found.map_or(SIZE, |size| match (size.ws_col, size.ws_row) {
        (0, _) | (_, 0) => SIZE,
        size => size,
    })
}

impl TermLike for Terminal {
    fn width(&self) -> u16 {
        size().0
    }

    fn height(&self) -> u16 {
        size().1
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.drawn.lock().shift(n, 'A');
        Ok(())
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.drawn.lock().shift(n, 'B');
        Ok(())
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.drawn.lock().shift(n, 'C');
        Ok(())
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.drawn.lock().shift(n, 'D');
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        let mut drawn = self.drawn.lock();
        drawn.write(text);
        drawn.pending.push('\n');
        drawn.columns = 0;
        Ok(())
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.drawn.lock().write(text);
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.drawn.lock().clear(self.width().into());
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let pending = std::mem::take(&mut self.drawn.lock().pending);
        io::stderr().write_all(pending.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rows_of_a_line_that_a_narrower_window_wrapped_are_cleared() {
        let mut drawn = Drawn::default();
        let row = "\r\x1b[2K";
        drawn.write("\x1b[36m━━━\x1b[0m 100% step 7");
        drawn.write("                    "); // what indicatif adds
        assert_eq!(drawn.columns, 15);
        let pending = |drawn: &mut Drawn| std::mem::take(&mut drawn.pending);
        assert_eq!(pending(&mut drawn), "\x1b[36m━━━\x1b[0m 100% step 7");
        drawn.clear(15);
        assert_eq!(pending(&mut drawn), row);
        drawn.write("━━━ 100% step 7");
        drawn.clear(7); // 15 columns take three rows
        assert_eq!(
            pending(&mut drawn)["━━━ 100% step 7".len()..],
            format!("{row}\x1b[1A{row}\x1b[1A{row}")
        );
        drawn.clear(7);
        assert_eq!(pending(&mut drawn), row);
    }
}
