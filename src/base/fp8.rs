//! 8-bit floats (Micikevicius et al. 2022, "FP8 Formats for Deep Learning"), rounded as in PyTorch.

/// Format of an 8-bit float. Both formats have one sign bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp8 {
    /// 4 exponent bits, 3 fraction bits; no infinity, one NaN. PyTorch's float8_e4m3fn.
    E4M3,
    /// 5 exponent bits, 2 fraction bits; infinity and NaN as in IEEE 754. PyTorch's float8_e5m2.
    E5M2,
}

/// Sign bit of an f32 and of a code.
const SIGN: u32 = 1 << 31;
const CODE_SIGN: u8 = 1 << 7;
/// Fraction bits of an f32, and its exponent bias.
const FRACTION: u32 = 23;
const BIAS: u32 = 127;

impl Fp8 {
    /// Largest finite number: 448, 57344.
    pub const fn largest(self) -> f32 {
        match self {
            Fp8::E4M3 => 448.0,
            Fp8::E5M2 => 57_344.0,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Fp8::E4M3 => "e4m3",
            Fp8::E5M2 => "e5m2",
        }
    }

    /// Number of fraction bits.
    const fn fraction(self) -> u32 {
        match self {
            Fp8::E4M3 => 3,
            Fp8::E5M2 => 2,
        }
    }

    /// Difference of the exponent biases of f32 and this format.
    const fn rebias(self) -> u32 {
        BIAS - ((1 << (6 - self.fraction())) - 1)
    }

    /// Smallest subnormal: 2⁻⁹, 2⁻¹⁶.
    const fn unit(self) -> f32 {
        f32::from_bits((self.rebias() + 1 - self.fraction()) << FRACTION)
    }

    /// Code of the nearest number, ties to even. Numbers beyond the largest saturate in E4M3 and
    /// become infinite in E5M2, as in PyTorch 2.15.
    #[inline(always)]
    pub fn encode(self, x: f32) -> u8 {
        let sign = (x.to_bits() >> 24) as u8 & CODE_SIGN;
        let size = x.to_bits() & !SIGN;
        let drop = FRACTION - self.fraction();
        let rebias = self.rebias();
        let beyond: u32 = match self {
            Fp8::E4M3 => 0x7e,
            Fp8::E5M2 => 0x7c,
        };
        let code = if size < (rebias + 1) << FRACTION {
            // The last bit of the sum is one unit, so the addition rounds to whole units.
            let units = self.unit() * (1 << FRACTION) as f32;
            (f32::from_bits(size) + units).to_bits() - units.to_bits()
        } else {
            let even = size >> drop & 1;
            let rounded = (size + (1 << (drop - 1)) - 1 + even) >> drop;
            (rounded - (rebias << self.fraction())).min(beyond)
        };
        sign | if size > f32::INFINITY.to_bits() { 0x7f } else { code as u8 }
    }

    /// Number of a code; exact in bf16.
    #[inline(always)]
    pub fn decode(self, code: u8) -> f32 {
        let sign = u32::from(code & CODE_SIGN) << 24;
        let size = u32::from(code & !CODE_SIGN);
        let normal = (size + (self.rebias() << self.fraction())) << (FRACTION - self.fraction());
        let bits = match (self, size) {
            (Fp8::E4M3, 0x7f) | (Fp8::E5M2, 0x7d..) => f32::NAN.to_bits(),
            (Fp8::E5M2, 0x7c) => f32::INFINITY.to_bits(),
            _ if size >> self.fraction() == 0 => (size as f32 * self.unit()).to_bits(),
            _ => normal,
        };
        f32::from_bits(sign | bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    /// Runs of f32 bits that PyTorch casts to one code (`tests/fixtures/pytorch/fp8.py` cast every
    /// f32): format, first bits, code.
    fn runs() -> Vec<(Fp8, u32, u8)> {
        let text = include_str!("../../tests/fixtures/pytorch/fp8.csv");
        let hex = |text: &str| u32::from_str_radix(text, 16).unwrap();
        text.lines()
            .skip(1)
            .map(|line| match line.split(',').collect::<Vec<_>>()[..] {
                ["e4m3", first, code] => (Fp8::E4M3, hex(first), hex(code) as u8),
                ["e5m2", first, code] => (Fp8::E5M2, hex(first), hex(code) as u8),
                _ => panic!("{line}"),
            })
            .collect()
    }

    /// A cast is monotonic, so testing the ends of a run covers all numbers in between.
    #[test]
    fn every_number_has_the_code_that_pytorch_gives_it() {
        let runs = runs();
        assert_eq!(
            runs.len(),
            2 * (0x7f + 0x7d),
            "codes of both signs up to the largest, up to infinity"
        );
        for (at, (format, first, code)) in runs.iter().enumerate() {
            let end = match runs.get(at + 1) {
                Some((same, next, _)) if same == format && next ^ first < SIGN => next - 1,
                _ => f32::INFINITY.to_bits() | first & SIGN,
            };
            for bits in [*first, first.midpoint(end), end] {
                let ours = format.encode(f32::from_bits(bits));
                assert_eq!(ours, *code, "{format:?} of {:e}", f32::from_bits(bits));
            }
        }
        for format in [Fp8::E4M3, Fp8::E5M2] {
            for high in 0..=u16::MAX {
                let x = bf16::from_bits(high).to_f32();
                let of = |bits: u32| {
                    runs.partition_point(|run| (run.0 as u8, run.1) <= (format as u8, bits))
                };
                let code = if x.is_nan() {
                    0x7f | (high >> 8) as u8 & CODE_SIGN
                } else {
                    runs[of(x.to_bits()) - 1].2
                };
                assert_eq!(format.encode(x), code, "{format:?} of {x:e}");
            }
        }
    }

    #[test]
    fn every_code_is_the_number_that_it_decodes_to() {
        for format in [Fp8::E4M3, Fp8::E5M2] {
            let mut last = -1.0;
            for code in 0..=u8::MAX {
                let x = format.decode(code);
                assert!(x.is_nan() || format.encode(x) == code, "{format:?} {code:#x}: {x}");
                assert!(x.is_nan() || bf16::from_f32(x).to_f32() == x, "{x} as bf16");
                if code < CODE_SIGN && !x.is_nan() {
                    assert!(x > last, "in order");
                    last = x;
                }
            }
            let most = format.encode(format.largest());
            assert_eq!(format.decode(most), format.largest());
            assert!(!format.decode(most + 1).is_finite());
        }
    }
}
