//! Memory of the machine: allocations with bounds in global memory, a block's shared memory, parameters.

use half::{bf16, f16};

/// Reason why an execution ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault(pub String);

pub fn fault<T>(text: impl Into<String>) -> Result<T, Fault> {
    Err(Fault(text.into()))
}

/// Generic addresses of shared memory and of parameters.
pub const SHARED: u64 = 1 << 56;
pub const PARAMETERS: u64 = 1 << 57;

/// Byte of memory before its first write, and until a copy has landed: NaN in every format.
pub const NOTHING: u8 = 0xff;

struct Allocation {
    name: &'static str,
    start: u64,
    bytes: Vec<u8>,
}

/// Global memory: an access must lie inside one allocation.
#[derive(Default)]
pub struct Global {
    all: Vec<Allocation>,
}

/// Numbers of tensors.
pub trait Number: Copy {
    fn bytes(self, to: &mut Vec<u8>);
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! number {
    ($($ty:ty)*) => {
        $(impl Number for $ty {
            fn bytes(self, to: &mut Vec<u8>) {
                to.extend(self.to_le_bytes());
            }
            fn from_bytes(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().unwrap())
            }
        })*
    };
}
number!(u8 u16 u32 i32 u64 i64 f32 f64 bf16 f16);

impl Global {
    /// Allocates, and returns the address.
    pub fn add<T: Number>(&mut self, name: &'static str, values: &[T]) -> u64 {
        let mut bytes = Vec::new();
        values.iter().for_each(|value| value.bytes(&mut bytes));
        // No two lie side by side, and no high bits are alike by chance.
        let start = match self.all.last() {
            Some(last) => (last.start + last.bytes.len() as u64 + 0x1000).next_multiple_of(256),
            None => 0x7f12_3456_7000,
        };
        self.all.push(Allocation { name, start, bytes });
        start
    }

    /// Numbers of the allocation at that address.
    pub fn read<T: Number>(&self, start: u64) -> Vec<T> {
        let of = self
            .all
            .iter()
            .find(|one| one.start == start)
            .expect("an address of `add`");
        let numbers = of.bytes.chunks_exact(size_of::<T>());
        numbers.map(T::from_bytes).collect()
    }

    /// Allocation and offset of an access.
    pub fn find(&self, address: u64, bytes: usize) -> Result<(usize, usize), Fault> {
        let after = self.all.partition_point(|one| one.start <= address);
        let Some(one) = after.checked_sub(1).map(|at| &self.all[at]) else {
            return fault(format!("address {address:#x} is below all memory"));
        };
        let offset = (address - one.start) as usize;
        let (name, size) = (one.name, one.bytes.len());
        if offset + bytes > size {
            return fault(format!("byte {offset} of {name}, which has {size}"));
        }
        Ok((after - 1, offset))
    }

    pub fn load(&self, address: u64, bytes: usize) -> Result<&[u8], Fault> {
        let (at, offset) = self.find(address, bytes)?;
        Ok(&self.all[at].bytes[offset..offset + bytes])
    }

    pub fn store(&mut self, address: u64, from: &[u8]) -> Result<(), Fault> {
        let (at, offset) = self.find(address, from.len())?;
        self.all[at].bytes[offset..offset + from.len()].copy_from_slice(from);
        Ok(())
    }
}

/// Space that an instruction names: `ld.shared`, `ld.global`, …
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Shared,
    Global,
    Parameters,
    Generic,
}

impl Space {
    pub fn of(parts: &[String]) -> Space {
        let has = |name: &str| {
            parts
                .iter()
                .any(|part| part == name || part.starts_with(&format!("{name}::")))
        };
        match () {
            () if has("shared") => Space::Shared,
            () if has("global") => Space::Global,
            () if has("param") => Space::Parameters,
            () => Space::Generic,
        }
    }
}

/// All that a block can access.
pub struct Memory<'a> {
    pub global: &'a mut Global,
    pub shared: Vec<u8>,
    pub parameters: &'a [u8],
}

impl Memory<'_> {
    /// The space of an address that may be generic, and the address in that space; an access must be a
    /// multiple of its size.
    fn place(&self, space: Space, address: u64, bytes: usize) -> Result<(Space, u64), Fault> {
        if !address.is_multiple_of(bytes as u64) {
            return fault(format!("{address:#x} is not a multiple of {bytes}"));
        }
        let (space, address) = match space {
            Space::Generic | Space::Parameters if address >= PARAMETERS => {
                (Space::Parameters, address - PARAMETERS)
            }
            Space::Generic if address >= SHARED => (Space::Shared, address - SHARED),
            Space::Generic => (Space::Global, address),
            space => (space, address),
        };
        let size = match space {
            Space::Shared => self.shared.len(),
            Space::Parameters => self.parameters.len(),
            _ => return Ok((space, address)),
        };
        match address.checked_add(bytes as u64) {
            Some(end) if end <= size as u64 => Ok((space, address)),
            _ => fault(format!("byte {address} of {space:?}, which has {size}")),
        }
    }

    pub fn load(&self, space: Space, address: u64, bytes: usize) -> Result<&[u8], Fault> {
        let (space, address) = self.place(space, address, bytes)?;
        let range = address as usize..address as usize + bytes;
        match space {
            Space::Shared => Ok(&self.shared[range]),
            Space::Parameters => Ok(&self.parameters[range]),
            _ => self.global.load(address, bytes),
        }
    }

    pub fn store(&mut self, space: Space, address: u64, from: &[u8]) -> Result<(), Fault> {
        let (space, address) = self.place(space, address, from.len())?;
        match space {
            Space::Shared => {
                self.shared[address as usize..address as usize + from.len()].copy_from_slice(from);
                Ok(())
            }
            Space::Parameters => fault("parameters are constant"),
            _ => self.global.store(address, from),
        }
    }
}

/// Bytes of an argument of a kernel, laid out as C does.
#[derive(Default)]
pub struct Arguments(Vec<u8>);

impl Arguments {
    pub fn with<T: Number>(mut self, values: &[T]) -> Arguments {
        self.0
            .resize(self.0.len().next_multiple_of(size_of::<T>()), 0);
        values.iter().for_each(|value| value.bytes(&mut self.0));
        self
    }

    /// The same, with zeros up to that many.
    pub fn padded<T: Number + Default>(self, values: &[T], count: usize) -> Arguments {
        let mut all = values.to_vec();
        all.resize(count, T::default());
        self.with(&all)
    }

    /// Bytes, padded to the kernel's size; panics if that is not the size of a struct with these fields.
    pub fn bytes(mut self, size: usize, align: usize) -> Vec<u8> {
        assert_eq!(self.0.len().next_multiple_of(align), size, "bytes of the arguments");
        self.0.resize(size, 0);
        self.0
    }
}
