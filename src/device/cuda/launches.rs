//! What is launched while a profile is taken.

use super::driver::CUevent;
use parking_lot::{Mutex, MutexGuard};

/// A kernel or a product.
pub struct Launch {
    pub name: String,
    /// Of a product; 0 of a kernel.
    pub flops: f64,
    /// Behind it.
    pub event: CUevent,
}

/// Those so far, if a profile is taken.
#[derive(Default)]
pub struct Launches(Mutex<Option<Vec<Launch>>>);

impl Launches {
    pub fn lock(&self) -> MutexGuard<'_, Option<Vec<Launch>>> {
        self.0.lock()
    }
}
