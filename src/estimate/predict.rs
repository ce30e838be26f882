//! Interface to the planner of other programs, which is another crate.

use super::setup::Setup;
use super::verdict::MemoryFit;
use super::view::{Terms, View};
use base::table::Printout;
use manifest::Manifest;

/// Planner of another program.
pub trait Predict: Sync {
    /// Whether a setup fits, without other results.
    fn verdict(&self, setup: &Setup) -> MemoryFit;

    fn needs(&self, setup: &Setup) -> Needs;

    fn view(&self, m: &Manifest, setup: Setup, terms: Terms) -> View;

    /// Adds advice to a plan: changes that make it fit if it does not, else faster
    /// plans; and findings about its shape.
    /// `m` is the manifest of the plan, which permits each change.
    fn advise(&self, m: &Manifest, v: &View, out: &mut Printout);
}

/// Predicted needs of a setup.
pub struct Needs {
    /// Seconds of a step, and its error bar.
    pub seconds: f64,
    pub seconds_error: f64,
    /// Peak memory of a device over all ranks, as nvidia-smi shows it.
    pub bytes: f64,
    pub verdict: MemoryFit,
}
