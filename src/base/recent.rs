//! The last few items of a sequence.

use std::collections::VecDeque;

/// Appends an item, and removes the first if there are more than `limit`.
pub fn push_recent<T>(items: &mut VecDeque<T>, item: T, limit: usize) {
    if items.len() == limit {
        items.pop_front();
    }
    items.push_back(item);
}
