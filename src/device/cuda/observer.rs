//! How collectives that a CUDA graph captured become known at each of its launches.

use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// Runs one launch of a graph, which it is given.
pub type GraphLaunch = Box<dyn Fn(&dyn Fn())>;

/// Observer of captured collectives; called at every graph launch so that the flight recorder sees
/// them.
pub trait GraphObserver: Send + Sync {
    /// Takes the collectives captured since the last call, which are of one graph; what it returns
    /// runs each launch of that graph.
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

    /// What runs the launches of the graph that was captured last.
    pub fn take_captured(&self) -> Option<GraphLaunch> {
        let observer = self.0.lock();
        observer.as_ref().and_then(Weak::upgrade).map(|observer| observer.take_captured())
    }
}
