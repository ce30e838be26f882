//! Windows: device buffers that buckets use in turn. Only this file maps a bucket to its window, so that
//! consecutive buckets of a pass have different ones. It does not know what a window holds.

use base::DType;
use device::{Arena, Tensor};

/// Windows of weights: one is used while the next is filled.
pub const WEIGHT_WINDOWS: usize = 2;

/// Largest number of windows of a kind.
const MOST: usize = 3;

/// Windows of gradients: one is computed in and one is reduced. With gradients on the host, a third is
/// copied to or from it.
pub fn gradient_windows(on_host: bool) -> usize {
    if on_host { 3 } else { 2 }
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ring<T> {
    windows: usize,
    contents: [Option<T>; MOST],
}

impl<T> Ring<T> {
    /// Empty windows.
    pub fn new(windows: usize) -> Ring<T> {
        assert!((1..=MOST).contains(&windows), "{windows} windows");
        Ring { windows, contents: [const { None }; MOST] }
    }

    /// Contents of the window that bucket `index` uses.
    pub fn contents(&mut self, index: usize) -> &mut Option<T> {
        &mut self.contents[window(index, self.windows)]
    }

    /// Empties every window and returns the contents.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        let contents = &mut self.contents;
        contents.each_mut().map(Option::take).into_iter().flatten()
    }

    /// Whether every window is empty.
    pub fn is_empty(&self) -> bool {
        self.contents.iter().all(Option::is_none)
    }
}
