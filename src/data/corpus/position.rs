//! Progress of reading a file.

use std::cell::Cell;
use std::io::Read;
use std::rc::Rc;

/// Bytes read from the file so far.
pub type Position = Rc<Cell<u64>>;

/// File that counts its bytes.
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
