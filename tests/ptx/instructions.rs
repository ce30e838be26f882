//! Results of the instructions of one thread, from up to four operands, by name and types.
//!
//! Values are the bits of registers in 64; a result is cut to the width of the register it goes to. As the
//! PTX manual has it (*Instruction Set*). `approx` is computed exactly.

use crate::parse::bits;
use half::{bf16, f16};

/// Result of an instruction.
pub type Apply = Box<dyn Fn(&[u64; 4]) -> u64>;

/// None if the name is not that of an instruction of one thread, or is not known.
pub fn find(parts: &[&str]) -> Option<Apply> {
    let ty = *parts.last()?;
    match parts[0] {
        "mov" | "cvta" => Some(Box::new(|v| v[0])),
        "selp" => Some(Box::new(|v| if v[2] & 1 == 1 { v[0] } else { v[1] })),
        "setp" => comparison(parts, ty),
        "cvt" => conversion(parts),
        "and" | "or" | "xor" | "not" | "shl" | "shr" => bitwise(parts[0], ty),
        "lop3" | "prmt" | "shf" | "bfe" | "bfi" | "clz" | "popc" => word(parts),
        _ if is_float(ty) => float(parts, ty),
        _ => integer(parts, ty),
    }
}

fn is_float(ty: &str) -> bool {
    matches!(ty, "f16" | "bf16" | "f32" | "f64")
}

/// The lowest bits as a number.
fn whole(value: u64, width: u32, signed: bool) -> i128 {
    let rest = 64 - width;
    if signed {
        i128::from((value << rest) as i64 >> rest)
    } else {
        i128::from(value << rest >> rest)
    }
}

fn real(value: u64, ty: &str) -> f64 {
    match ty {
        "f16" => f16::from_bits(value as u16).to_f64(),
        "bf16" => bf16::from_bits(value as u16).to_f64(),
        "f32" => f64::from(f32::from_bits(value as u32)),
        _ => f64::from_bits(value),
    }
}

fn single(value: u64) -> f32 {
    f32::from_bits(value as u32)
}

fn integer(parts: &[&str], ty: &str) -> Option<Apply> {
    let (width, signed) = (bits(ty), ty.starts_with('s'));
    let (wide, high) = (parts.contains(&"wide"), parts.contains(&"hi"));
    let n = move |value| whole(value, width, signed);
    let product =
        move |v: &[u64; 4]| if high { (n(v[0]) * n(v[1])) >> width } else { n(v[0]) * n(v[1]) };
    Some(match parts[0] {
        "add" => Box::new(|v| v[0].wrapping_add(v[1])),
        "sub" => Box::new(|v| v[0].wrapping_sub(v[1])),
        "mul" => Box::new(move |v| product(v) as u64),
        "mad" => {
            let sum = if wide { 2 * width } else { width };
            Box::new(move |v| (product(v) + whole(v[2], sum, signed)) as u64)
        }
        // The results of a division by zero are not defined.
        "div" => Box::new(move |v| n(v[0]).checked_div(n(v[1])).unwrap_or(-1) as u64),
        "rem" => Box::new(move |v| n(v[0]).checked_rem(n(v[1])).unwrap_or(-1) as u64),
        "min" => Box::new(move |v| n(v[0]).min(n(v[1])) as u64),
        "max" => Box::new(move |v| n(v[0]).max(n(v[1])) as u64),
        "neg" => Box::new(|v| v[0].wrapping_neg()),
        "abs" => Box::new(move |v| n(v[0]).unsigned_abs() as u64),
        _ => return None,
    })
}

fn bitwise(name: &str, ty: &str) -> Option<Apply> {
    let (width, signed) = (bits(ty), ty.starts_with('s'));
    Some(match name {
        "and" => Box::new(|v| v[0] & v[1]),
        "or" => Box::new(|v| v[0] | v[1]),
        "xor" => Box::new(|v| v[0] ^ v[1]),
        "not" => Box::new(|v| !v[0]),
        "shl" => Box::new(move |v| match v[1] as u32 {
            by if by >= width => 0,
            by => v[0] << by,
        }),
        _ => Box::new(move |v| (whole(v[0], width, signed) >> (v[1] as u32).min(width)) as u64),
    })
}

/// Instructions on the bits of 32-bit words.
fn word(parts: &[&str]) -> Option<Apply> {
    let pair = |v: &[u64; 4]| v[0] & 0xffff_ffff | v[1] << 32;
    Some(match parts {
        ["lop3", "b32"] => Box::new(|v| {
            let chosen = (0..8).filter(|row| v[3] >> row & 1 == 1);
            let term = |row: u64| {
                let take = |at: usize, bit: u64| if row & bit == 0 { !v[at] } else { v[at] };
                take(0, 4) & take(1, 2) & take(2, 1)
            };
            chosen.fold(0, |all, row| all | term(row))
        }),
        ["prmt", "b32"] => Box::new(move |v| {
            let byte = |at: u64| {
                let selector = v[2] >> (4 * at) & 15;
                let byte = pair(v) >> (8 * (selector & 7)) & 0xff;
                match selector & 8 {
                    0 => byte,
                    _ => 0xff * (byte >> 7),
                }
            };
            (0..4).fold(0, |all, at| all | byte(at) << (8 * at))
        }),
        ["shf", "l", "wrap", "b32"] => Box::new(move |v| pair(v) << (v[2] & 31) >> 32),
        ["shf", "r", "wrap", "b32"] => Box::new(move |v| pair(v) >> (v[2] & 31)),
        ["bfi", "b32"] => Box::new(|v| {
            let mask = ((1u64 << (v[3] & 0xff).min(32)) - 1) << (v[2] & 0xff).min(32);
            v[1] & !mask | v[0] << (v[2] & 0xff).min(32) & mask
        }),
        ["bfe", "u32"] => Box::new(|v| {
            (v[0] & 0xffff_ffff) >> (v[1] & 0xff).min(32) & ((1 << (v[2] & 0xff).min(32)) - 1)
        }),
        ["clz", "b32"] => Box::new(|v| u64::from((v[0] as u32).leading_zeros())),
        ["popc", "b32"] => Box::new(|v| u64::from((v[0] as u32).count_ones())),
        _ => return None,
    })
}

fn float(parts: &[&str], ty: &str) -> Option<Apply> {
    match ty {
        "f32" => float32(parts),
        "f64" => float64(parts),
        _ => None,
    }
}

/// Subnormal numbers become zeros with `ftz`.
fn flushed(x: f32, flush: bool) -> f32 {
    if flush && x.abs() < f32::MIN_POSITIVE { 0f32.copysign(x) } else { x }
}

/// The largest float that is at most `x`.
fn rounded_down(x: f64) -> f32 {
    let near = x as f32;
    if f64::from(near) > x { near.next_down() } else { near }
}

fn float32(parts: &[&str]) -> Option<Apply> {
    let down = parts.contains(&"rm");
    if parts.iter().any(|part| ["rz", "rp"].contains(part)) || down && parts[0] != "fma" {
        return None;
    }
    let apply: fn(f32, f32, f32) -> f32 = match parts[0] {
        "add" => |a, b, _| a + b,
        "sub" => |a, b, _| a - b,
        "mul" => |a, b, _| a * b,
        "fma" if down => |a, b, c| rounded_down(f64::from(a) * f64::from(b) + f64::from(c)),
        "fma" => |a, b, c| a.mul_add(b, c),
        "div" => |a, b, _| a / b,
        "min" => |a, b, _| a.min(b),
        "max" => |a, b, _| a.max(b),
        "neg" => |a, _, _| -a,
        "abs" => |a, _, _| a.abs(),
        "sqrt" => |a, _, _| a.sqrt(),
        "rsqrt" => |a, _, _| (1.0 / f64::from(a).sqrt()) as f32,
        "rcp" => |a, _, _| 1.0 / a,
        "ex2" => |a, _, _| f64::from(a).exp2() as f32,
        "lg2" => |a, _, _| f64::from(a).log2() as f32,
        "tanh" => |a, _, _| f64::from(a).tanh() as f32,
        // The sign of the first, the size of the second.
        "copysign" => |a, b, _| b.copysign(a),
        _ => return None,
    };
    let (flush, limit) = (parts.contains(&"ftz"), parts.contains(&"sat"));
    Some(Box::new(move |v| {
        let [a, b, c] = [0, 1, 2].map(|at| flushed(single(v[at]), flush));
        let y = flushed(apply(a, b, c), flush);
        u64::from(if limit { saturated(y.into()) as f32 } else { y }.to_bits())
    }))
}

fn float64(parts: &[&str]) -> Option<Apply> {
    let apply: fn(f64, f64, f64) -> f64 = match parts[0] {
        "add" => |a, b, _| a + b,
        "sub" => |a, b, _| a - b,
        "mul" => |a, b, _| a * b,
        "fma" => |a, b, c| a.mul_add(b, c),
        "div" => |a, b, _| a / b,
        "min" => |a, b, _| a.min(b),
        "max" => |a, b, _| a.max(b),
        "neg" => |a, _, _| -a,
        "abs" => |a, _, _| a.abs(),
        "sqrt" => |a, _, _| a.sqrt(),
        "rcp" => |a, _, _| 1.0 / a,
        _ => return None,
    };
    Some(Box::new(move |v| {
        let [a, b, c] = [0, 1, 2].map(|at| f64::from_bits(v[at]));
        apply(a, b, c).to_bits()
    }))
}

/// Within 0..1; NaN becomes 0.
fn saturated(x: f64) -> f64 {
    if x > 0.0 { x.min(1.0) } else { 0.0 }
}

fn comparison(parts: &[&str], ty: &str) -> Option<Apply> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let (width, signed) = (bits(ty), ty.starts_with('s'));
    let ty = ty.to_string();
    let order = move |v: &[u64; 4]| {
        if is_float(&ty) {
            real(v[0], &ty).partial_cmp(&real(v[1], &ty))
        } else {
            Some(whole(v[0], width, signed).cmp(&whole(v[1], width, signed)))
        }
    };
    // Orders that are true; None is that of a NaN.
    let holds: &[_] = match parts[1] {
        "eq" => &[Some(Equal)],
        "ne" => &[Some(Less), Some(Greater)],
        "lt" | "lo" => &[Some(Less)],
        "le" | "ls" => &[Some(Less), Some(Equal)],
        "gt" | "hi" => &[Some(Greater)],
        "ge" | "hs" => &[Some(Greater), Some(Equal)],
        "equ" => &[Some(Equal), None],
        "neu" => &[Some(Less), Some(Greater), None],
        "ltu" => &[Some(Less), None],
        "leu" => &[Some(Less), Some(Equal), None],
        "gtu" => &[Some(Greater), None],
        "geu" => &[Some(Greater), Some(Equal), None],
        "num" => &[Some(Less), Some(Equal), Some(Greater)],
        "nan" => &[None],
        _ => return None,
    };
    let with: fn(bool, bool) -> bool = match parts[2] {
        "and" => |a, b| a && b,
        "or" => |a, b| a || b,
        "xor" => |a, b| a != b,
        _ => |a, _| a,
    };
    Some(Box::new(move |v| u64::from(with(holds.contains(&order(v)), v[2] & 1 == 1))))
}

fn conversion(parts: &[&str]) -> Option<Apply> {
    let [.., to, from] = *parts else { return None };
    match (to, from) {
        ("bf16x2", "f32") => {
            return Some(pair(16, |x| bf16::from_f32(x).to_bits().into()));
        }
        ("f16x2", "f32") => return Some(pair(16, |x| f16::from_f32(x).to_bits().into())),
        ("e4m3x2", "f32") => return Some(pair(8, |x| eight_bits(x, 3, 448.0))),
        ("e5m2x2", "f32") => return Some(pair(8, |x| eight_bits(x, 2, 57_344.0))),
        _ => (),
    }
    let limit = parts.contains(&"sat");
    let round: fn(f64) -> f64 = match () {
        () if parts.contains(&"rni") => f64::round_ties_even,
        () if parts.contains(&"rmi") => f64::floor,
        () if parts.contains(&"rpi") => f64::ceil,
        () if parts.contains(&"rzi") => f64::trunc,
        () if parts.iter().any(|part| ["rz", "rm", "rp"].contains(part)) => return None,
        () => |x| x,
    };
    let (width, signed) = (bits(to), to.starts_with('s'));
    let (source, negative) = (bits(from), from.starts_with('s'));
    let (to, from) = (to.to_string(), from.to_string());
    Some(match (is_float(&to), is_float(&from)) {
        (true, true) => Box::new(move |v| {
            let x = round(real(v[0], &from));
            encoded(if limit { saturated(x) } else { x }, &to)
        }),
        // One rounding: to the type itself.
        (true, false) => Box::new(move |v| {
            let n = whole(v[0], source, negative);
            match to.as_str() {
                "f32" => u64::from((n as f32).to_bits()),
                _ => encoded(n as f64, &to),
            }
        }),
        (false, true) => Box::new(move |v| {
            let (low, high) = range(width, signed);
            ((round(real(v[0], &from)) as i128).clamp(low, high)) as u64
        }),
        (false, false) => Box::new(move |v| {
            let n = whole(v[0], source, negative);
            let (low, high) = range(width, signed);
            let n = if limit { n.clamp(low, high) } else { n };
            // A narrower result is extended to its register.
            whole(n as u64, width, signed) as u64
        }),
    })
}

/// Least and largest number of a type.
fn range(width: u32, signed: bool) -> (i128, i128) {
    if signed { (-(1 << (width - 1)), (1 << (width - 1)) - 1) } else { (0, (1 << width) - 1) }
}

fn encoded(x: f64, ty: &str) -> u64 {
    match ty {
        "f16" => f16::from_f64(x).to_bits().into(),
        "bf16" => bf16::from_f64(x).to_bits().into(),
        "f32" => u64::from((x as f32).to_bits()),
        _ => x.to_bits(),
    }
}

/// Two results in one register: that of the first operand in the upper half.
fn pair(width: u32, encode: fn(f32) -> u64) -> Apply {
    Box::new(move |v| encode(single(v[0])) << width | encode(single(v[1])))
}

/// An 8-bit float with that many bits of mantissa, rounded to the nearest even code; at most `largest`.
fn eight_bits(x: f32, mantissa: i32, largest: f64) -> u64 {
    let sign = u64::from(x.is_sign_negative()) << 7;
    if x.is_nan() {
        return 0x7f;
    }
    let bias = (1 << (6 - mantissa)) - 1;
    let size = f64::from(x.abs()).min(largest);
    // Binary exponent; subnormal numbers have that of the smallest normal one.
    let exponent = ((size.to_bits() >> 52) as i32 - 1023).max(1 - bias);
    let units = (size / 2f64.powi(exponent - mantissa)).round_ties_even() as u64;
    // A mantissa that rounds up to the next power of two carries into the exponent.
    let code = ((exponent + bias - 1) as u64) * (1 << mantissa) + units;
    sign | code.min(top(largest, mantissa, bias))
}

/// Code of the largest number.
fn top(largest: f64, mantissa: i32, bias: i32) -> u64 {
    let exponent = largest.log2().floor() as i32;
    let units = (largest / 2f64.powi(exponent - mantissa)) as u64;
    ((exponent + bias - 1) as u64) * (1 << mantissa) + units
}
