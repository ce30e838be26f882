//! How far a file has been read.

use std::cell::Cell;
use std::io::Read;
use std::rc::Rc;

/// Bytes taken from the file so far.
pub type Position = Rc<Cell<u64>>;

/// A file whose bytes are counted.
pub struct Counted {
    pub inner: Box<dyn Read>,
    pub position: Position,
}

impl Read for Counted {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(out)?;
        self.position.set(self.position.get() + read as u64);
        Ok(read)
    }
}
