//! Launches recorded during a profile.

use super::driver::CUevent;
use crate::Section;
use parking_lot::{Mutex, MutexGuard};

/// Launched kernel or product.
pub struct Launch {
    pub name: String,
    /// FLOPs of a product; 0 for a kernel.
    pub flops: f64,
    pub section: Section,
    /// Recorded after it.
    pub event: CUevent,
}

/// Launches so far; None outside of a profile. The first marks its start.
#[derive(Default)]
pub struct Launches {
    all: Mutex<Option<Vec<Launch>>>,
    section: Mutex<Section>,
}

impl Launches {
    pub fn lock(&self) -> MutexGuard<'_, Option<Vec<Launch>>> {
        self.all.lock()
    }

    /// Sets the section of the step that the following launches belong to.
    pub fn enter(&self, section: Section) {
        *self.section.lock() = section;
    }

    pub fn section(&self) -> Section {
        *self.section.lock()
    }
}
