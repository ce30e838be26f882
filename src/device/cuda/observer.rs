//! Observer that records the collectives of a captured CUDA graph at each of its launches.

use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// Function that runs one launch of a graph, its argument.
pub type GraphLaunch = Box<dyn Fn(&dyn Fn())>;

/// Observer of captured collectives; called at every graph launch so that the flight recorder sees
/// them.
pub trait GraphObserver: Send + Sync {
    /// Takes the collectives captured since the last call, which are of one graph. Returns the function
    /// that runs each launch of that graph.
    fn take_captured(self: Arc<Self>) -> GraphLaunch;
}

/// The observer of a device's graphs, if its rank has collectives on the GPU.
#[derive(Default)]
pub struct Observed(Mutex<Option<Weak<dyn GraphObserver>>>);

impl Observed {
    /// Sets the observer of graphs captured from now on.
    pub fn set(&self, observer: Weak<dyn GraphObserver>) {
        *self.0.lock() = Some(observer);
    }

    /// Function that runs the launches of the graph that was captured last.
    pub fn take_captured(&self) -> Option<GraphLaunch> {
        let observer = self.0.lock();
        observer
            .as_ref()
            .and_then(Weak::upgrade)
            .map(|observer| observer.take_captured())
    }
}
