//! Launches that are recorded while a profile is taken.

use super::driver::CUevent;
use crate::Section;
use parking_lot::{Mutex, MutexGuard};

/// A kernel or a product.
pub struct Launch {
    pub name: String,
    /// Operations of a product; 0 of a kernel.
    pub flops: f64,
    pub section: Section,
    /// Recorded behind it.
    pub event: CUevent,
}

/// Launches so far, if a profile is taken. The first is its begin.
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
