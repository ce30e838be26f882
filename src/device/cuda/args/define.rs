//! Macro that defines the structs of the table of arguments, and their description.

/// Defines the structs for the host, and their description for the header. A field's type is its type
/// in the kernel: pointers are addresses in device memory.
macro_rules! kernel_args {
    ($($(#[doc = $doc:literal])* struct $name:ident {
        $($(#[doc = $about:literal])* $field:ident: $type:ty,)*
    })*) => {
        $(
            $(#[doc = $doc])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name { $($(#[doc = $about])* pub $field: $type,)* }
        )*

        #[cfg(test)]
        mod described {
            use super::*;
            use super::tests::{CType, Field, Struct};
            use std::mem::offset_of;

            $(impl CType for $name {
                fn name() -> String {
                    stringify!($name).to_string()
                }
            })*

            /// All structs of the table, in its order.
            pub fn structs() -> Vec<Struct> {
                vec![$(Struct {
                    name: stringify!($name),
                    docs: &[$($doc),*],
                    bytes: size_of::<$name>(),
                    fields: vec![$(Field {
                        name: stringify!($field),
                        docs: &[$($about),*],
                        type_name: <$type as CType>::name(),
                        offset: offset_of!($name, $field),
                    }),*],
                }),*]
            }
        }
    };
}
