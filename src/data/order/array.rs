//! Numbers in memory, or in a mapped file, with the same interface.

use std::sync::Arc;

use anyhow::Result;
use bytemuck::Pod;

use super::super::indexed::Mapped;

/// List of numbers with random access.
#[derive(Debug)]
pub enum Array<T> {
    Memory(Vec<T>),
    /// `count` values in a file, starting at byte `from`.
    Mapped {
        file: Arc<Mapped>,
        from: usize,
        count: usize,
    },
}

impl<T: Pod> Array<T> {
    pub fn count(&self) -> usize {
        match self {
            Array::Memory(values) => values.len(),
            Array::Mapped { count, .. } => *count,
        }
    }

    /// Bytes in memory; 0 for a file.
    pub fn bytes(&self) -> u64 {
        match self {
            Array::Memory(values) => size_of_val(&**values) as u64,
            Array::Mapped { .. } => 0,
        }
    }

    /// Value `i`. Fails if the file has shrunk since it was mapped.
    pub fn at(&self, i: usize) -> Result<T> {
        match self {
            Array::Memory(values) => Ok(values[i]),
            Array::Mapped { file, from, count } => {
                assert!(i < *count, "value {i} of {count}");
                let mut value = T::zeroed();
                file.copy(from + i * size_of::<T>(), bytemuck::bytes_of_mut(&mut value))?;
                Ok(value)
            }
        }
    }

    /// All values.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        (0..self.count()).map(|i| self.at(i)).collect()
    }
}

impl<T> From<Vec<T>> for Array<T> {
    fn from(values: Vec<T>) -> Array<T> {
        Array::Memory(values)
    }
}
