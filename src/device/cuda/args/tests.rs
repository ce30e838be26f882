use super::*;
use std::fmt::Write;

/// A type of a field, as the header writes it.
pub trait CType {
    fn name() -> String;
}

pub struct Struct {
    pub name: &'static str,
    pub docs: &'static [&'static str],
    pub bytes: usize,
    pub fields: Vec<Field>,
}

pub struct Field {
    pub name: &'static str,
    pub docs: &'static [&'static str],
    pub type_name: String,
    pub offset: usize,
}

macro_rules! c_types {
    ($($rust:ty = $c:literal)*) => {
        $(impl CType for $rust {
            fn name() -> String {
                $c.to_string()
            }
        })*
    };
}
c_types! { c_void = "void" u8 = "uint8_t" i32 = "int32_t" i64 = "int64_t" u32 = "uint32_t"
u64 = "uint64_t" f32 = "float" f64 = "double" TensorMap = "TensorMap" }

impl<T: CType> CType for *const T {
    fn name() -> String {
        format!("const {}*", T::name())
    }
}

impl<T: CType> CType for *mut T {
    fn name() -> String {
        format!("{}*", T::name())
    }
}

/// C writes the length behind the field's name.
impl<T: CType, const N: usize> CType for [T; N] {
    fn name() -> String {
        format!("{}[{N}]", T::name())
    }
}

/// Text of `kernels/args.cuh`.
fn header() -> String {
    let mut text = "\
// Arguments of the kernels. Made from src/device/cuda/args.rs:
//     UPDATE=1 cargo test --lib kernel_arguments
#pragma once

// Tensor map of cuTensorMapEncodeTiled; must be passed as a kernel's argument.
struct alignas(64) TensorMap {
    uint64_t opaque[16];
};

#define AT(STRUCT, FIELD) __builtin_offsetof(STRUCT, FIELD)
"
    .to_string();
    let comment = |indent: &str, docs: &[&str]| -> String {
        docs.iter()
            .map(|line| format!("{indent}//{line}\n"))
            .collect()
    };
    for Struct { name, docs, bytes, fields } in described::structs() {
        let _ = write!(text, "\n{}struct {name} {{\n", comment("", docs));
        for Field { name, docs, type_name, .. } in &fields {
            let (one, length) = type_name.split_at(type_name.find('[').unwrap_or(type_name.len()));
            let _ = writeln!(text, "{}    {one} {name}{length};", comment("    ", docs));
        }
        text += "};\n";
        let mut line = "static_assert(".to_string();
        for field in &fields {
            let offset = format!("AT({name}, {}) == {} && ", field.name, field.offset);
            if line.len() + offset.len() > 100 {
                let _ = writeln!(text, "{}", line.trim_end());
                line = " ".repeat(14);
            }
            line += &offset;
        }
        let _ = writeln!(text, "{}", line.trim_end());
        let _ = writeln!(text, "              sizeof({name}) == {bytes}, \"layout\");");
    }
    text
}

#[test]
fn the_header_of_kernel_arguments_is_made_from_this_table() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels/args.cuh");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(file, header()).unwrap();
    }
    let remedy = "stale: UPDATE=1 cargo test --lib kernel_arguments";
    assert!(std::fs::read_to_string(file).unwrap() == header(), "kernels/args.cuh is {remedy}");
}
