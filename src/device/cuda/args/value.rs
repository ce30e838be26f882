//! Arguments of kernels from the values of ops.

use super::DropoutMask;
use crate::{Dropout, Out, Tensor};

/// Value of an op as an argument of a kernel: a tensor as its address, null if it is missing; a
/// number in the kernel's width; a flag as 0 or 1.
pub trait Argument<T> {
    fn argument(self) -> T;
}

/// Struct of this module with converted fields: `arguments!(Copy { x, y, numel: x.numel() })`.
macro_rules! arguments {
    ($name:ident { $($field:ident $(: $value:expr)?),* $(,)? }) => {
        $crate::cuda::args::$name { $($field: arguments!(@ $field $(, $value)?)),* }
    };
    ($name:ident { $($field:ident $(: $value:expr)?,)* ..$others:expr }) => {
        $crate::cuda::args::$name { $($field: arguments!(@ $field $(, $value)?),)* ..$others }
    };
    (@ $field:ident) => { arguments!(@ $field, $field) };
    (@ $field:ident, $value:expr) => { $crate::cuda::args::Argument::argument($value) };
}
pub(in crate::cuda) use arguments;

impl<T> Argument<T> for T {
    fn argument(self) -> T {
        self
    }
}

macro_rules! addresses {
    ($($value:ident: $type:ty => $address:expr,)*) => { $(
        impl<T> Argument<*const T> for $type {
            fn argument(self) -> *const T {
                let $value = self;
                $address as *const T
            }
        }

        impl<T> Argument<*mut T> for $type {
            fn argument(self) -> *mut T {
                let $value = self;
                $address as *mut T
            }
        }
    )* };
}
addresses! {
    address: usize => address,
    x: Tensor => x.addr(),
    x: Option<Tensor> => x.map_or(0, Tensor::addr),
    y: Out => y.to.addr(),
    y: Option<Out> => y.map_or(0, |y| y.to.addr()),
}

macro_rules! numbers {
    ($($from:ty => $to:ty,)*) => { $(
        impl Argument<$to> for $from {
            fn argument(self) -> $to {
                self.try_into().expect("a number in the width of the kernel's argument")
            }
        }
    )* };
}
numbers! { usize => u32, usize => u64, usize => i64, u64 => i64, bool => u32, }

impl Argument<DropoutMask> for Dropout {
    fn argument(self) -> DropoutMask {
        DropoutMask::new(&self)
    }
}
