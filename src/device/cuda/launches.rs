//! Launches that are recorded while a profile is taken.

use super::driver::CUevent;
use parking_lot::{Mutex, MutexGuard};

/// A kernel or a product.
pub struct Launch {
    pub name: String,
    /// Operations of a product; 0 of a kernel.
    pub flops: f64,
    /// Recorded behind it.
    pub event: CUevent,
}

/// Launches so far, if a profile is taken.
#[derive(Default)]
pub struct Launches(Mutex<Option<Vec<Launch>>>);

impl Launches {
    pub fn lock(&self) -> MutexGuard<'_, Option<Vec<Launch>>> {
        self.0.lock()
    }
}
