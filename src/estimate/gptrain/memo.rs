//! Results by key, each computed once however many threads ask for it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, OnceLock};

pub struct Memo<K, V> {
    cells: Mutex<HashMap<K, Arc<OnceLock<V>>>>,
}

impl<K, V> Default for Memo<K, V> {
    fn default() -> Memo<K, V> {
        Memo { cells: Mutex::default() }
    }
}

impl<K: Eq + Hash, V: Clone> Memo<K, V> {
    /// The value of `key`. Threads that ask meanwhile for the same key wait for it, others do not.
    pub fn get(&self, key: K, make: impl FnOnce() -> V) -> V {
        let cell = self
            .cells
            .lock()
            .expect("no panic")
            .entry(key)
            .or_default()
            .clone();
        cell.get_or_init(make).clone()
    }
}
