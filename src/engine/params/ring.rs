//! Windows: device buffers that buckets use in turn. Only this file maps a bucket to its window, so that
//! as many consecutive buckets as there are windows have different ones. It does not know what a window
//! holds.

use base::DType;
use device::{Arena, Tensor};

/// Windows of shards that are copied from the host: one is gathered while the next is filled.
pub const SHARE_WINDOWS: usize = 2;

/// Numbers of windows of a rank.
#[derive(Clone, Copy, Debug)]
pub struct WindowCounts {
    pub weights: usize,
    /// Number of buckets by which the gather of weights precedes their use.
    pub ahead: usize,
    pub gradients: usize,
}

impl WindowCounts {
    /// Blocks in turn. Of weights, one is used while the next is filled; of gradients, one is computed
    /// and one is reduced. With gradients on the host, a third is copied to or from it.
    pub fn by_block(grads_on_host: bool) -> WindowCounts {
        WindowCounts { weights: 2, ahead: 1, gradients: if grads_on_host { 3 } else { 2 } }
    }
}

/// Number of the window that bucket `index` uses.
fn window(index: usize, windows: usize) -> usize {
    index % windows
}

/// Buffers of the windows of a kind.
#[derive(Clone)]
pub struct Windows(Vec<Tensor>); // each [1, len]

impl Windows {
    /// Lays out windows of `len` elements.
    pub fn plan(windows: usize, len: usize, dtype: DType, arena: &Arena) -> Windows {
        Windows((0..windows).map(|_| arena.matrix(1, len, dtype)).collect())
    }

    /// The first `len` elements of the window of bucket `index`.
    pub fn view(&self, index: usize, len: usize) -> Tensor {
        self.0[window(index, self.0.len())].span(0, len)
    }
}

/// Contents of the windows of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ring<T>(Vec<Option<T>>);

impl<T> Ring<T> {
    /// Empty windows.
    pub fn new(windows: usize) -> Ring<T> {
        Ring((0..windows).map(|_| None).collect())
    }

    /// Contents of the window that bucket `index` uses.
    pub fn contents(&mut self, index: usize) -> &mut Option<T> {
        let windows = self.0.len();
        &mut self.0[window(index, windows)]
    }

    /// Empties every window and returns the contents.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.0.iter_mut().filter_map(Option::take)
    }

    /// Whether every window is empty.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }
}
