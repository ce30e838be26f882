//! Instruction set for computation: the best of the processor, or the one named by `GPTRAIN_CPU`.

use base::Problems;
use std::fmt;
use std::sync::LazyLock;

/// Environment variable that selects an instruction set instead of the processor's best.
pub const CHOICE: &str = "GPTRAIN_CPU";

/// Instruction set with its registers. Each includes the previous ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Instructions {
    /// Four lanes of f32, available on every processor.
    Baseline,
    /// Eight lanes, and fused multiply-add (FMA).
    Avx2,
    /// Sixteen lanes: AVX-512 F, BW, DQ and VL.
    Avx512,
    /// Products of pairs of bf16, added to f32.
    Avx512Bf16,
    /// Products of tiles of bf16, if Linux permits this process to use them.
    Amx,
}

/// Value of `GPTRAIN_CPU` for each instruction set, and its name in messages.
const NAMES: [(&str, &str); 5] = [
    ("baseline", "no AVX2"),
    ("avx2", "AVX2"),
    ("avx512", "AVX-512"),
    ("avx512-bf16", "AVX-512 BF16"),
    ("amx", "AMX"),
];

/// Best instruction set of the processor, detected once.
static BEST: LazyLock<Instructions> = LazyLock::new(|| {
    let supported = Instructions::ALL
        .into_iter()
        .take_while(|set| is_detected(*set));
    supported.last().unwrap_or(Instructions::Baseline)
});

/// Choice of the environment variable, read once.
static CHOSEN: LazyLock<Result<Instructions, String>> =
    LazyLock::new(|| match std::env::var_os(CHOICE) {
        None => Ok(*BEST),
        Some(name) => Instructions::from_name(&name.to_string_lossy()),
    });

impl Instructions {
    pub const ALL: [Instructions; 5] = [
        Instructions::Baseline,
        Instructions::Avx2,
        Instructions::Avx512,
        Instructions::Avx512Bf16,
        Instructions::Amx,
    ];

    /// Best instruction set of this processor.
    pub fn best() -> Instructions {
        *BEST
    }

    /// Instruction set in use: that of `GPTRAIN_CPU`, otherwise the best.
    #[inline]
    pub fn in_use() -> Instructions {
        CHOSEN.as_ref().copied().unwrap_or(*BEST)
    }

    /// Fails if `GPTRAIN_CPU` names an instruction set that does not exist or is not supported
    /// here.
    pub fn check() -> Result<(), Problems> {
        let remedy = "unset it for the best of this processor, or name one of these";
        CHOSEN
            .as_ref()
            .map(|_| ())
            .map_err(|what| Problems::one(CHOICE, what.clone(), remedy))
    }

    fn from_name(name: &str) -> Result<Instructions, String> {
        let supported = NAMES[..=*BEST as usize].iter().map(|(name, _)| *name);
        let known = supported.clone().position(|known| known == name);
        known.map(|at| Instructions::ALL[at]).ok_or_else(|| {
            let names: Vec<&str> = supported.collect();
            format!("is {name:?}; this processor has {}", names.join(", "))
        })
    }

    /// Instruction set for products of bf16, or of f32, which do not use pairs of bf16.
    pub(super) fn for_products(bf16: bool) -> Instructions {
        let in_use = Instructions::in_use();
        if bf16 { in_use } else { in_use.min(Instructions::Avx512) }
    }

    /// Whether bf16 are multiplied in pairs; otherwise they are widened to f32 first.
    pub fn multiplies_bf16(self) -> bool {
        self >= Instructions::Avx512Bf16
    }
}

impl fmt::Display for Instructions {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(NAMES[*self as usize].1)
    }
}

#[cfg(target_arch = "x86_64")]
fn is_detected(set: Instructions) -> bool {
    match set {
        Instructions::Baseline => true,
        Instructions::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
        Instructions::Avx512 => {
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
        }
        Instructions::Avx512Bf16 => is_x86_feature_detected!("avx512bf16"),
        Instructions::Amx => amx(),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn is_detected(set: Instructions) -> bool {
    set == Instructions::Baseline
}

/// Whether the processor has tiles of bf16, and Linux permits this process to use them.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn amx() -> bool {
    // Bits of leaf 7's EDX: AMX-BF16 and AMX-TILE.
    const BITS: u32 = 1 << 22 | 1 << 24;
    let has_tiles = std::arch::x86_64::__cpuid_count(7, 0).edx & BITS == BITS;
    // ARCH_REQ_XCOMP_PERM for XTILEDATA: it enlarges each thread's state by 8 KiB, once used.
    const REQUEST: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: the arguments are numbers; the call grants a permission and writes no memory.
    has_tiles && unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) } == 0
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn amx() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_if_the_processor_has_it() {
        assert_eq!(Instructions::from_name("baseline"), Ok(Instructions::Baseline));
        for (set, (name, _)) in Instructions::ALL.into_iter().zip(NAMES) {
            assert_eq!(Instructions::from_name(name).is_ok(), set <= Instructions::best());
        }
        let said = Instructions::from_name("sse9").unwrap_err();
        assert!(said.starts_with("is \"sse9\"; this processor has baseline"), "{said}");
    }

    #[test]
    fn names_are_in_the_order_of_the_sets() {
        for (i, set) in Instructions::ALL.into_iter().enumerate() {
            assert_eq!(set as usize, i);
        }
    }
}
