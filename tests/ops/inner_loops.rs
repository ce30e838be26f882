//! The inner loops of the CPU's products, as the compiler made them: sums stay in registers.

use std::ops::RangeInclusive;
use std::process::Command;

/// Functions that multiply panels, with the multiply-add instruction and the sums in registers.
const LOOPS: [(&str, &str, usize); 3] = [
    ("panels_avx2", "vfmadd", 12),
    ("panels_avx512", "vfmadd", 24),
    ("panels_dot_bf16", "vdpbf16ps", 24),
];

/// A disassembled instruction.
struct Instruction {
    address: u64,
    name: String,
    operands: String,
}

/// A loop that moves its sums between registers, or keeps one on the stack, runs at half the speed:
/// both cost latency in the chain of each sum.
#[test]
#[cfg(target_arch = "x86_64")]
fn inner_loops_keep_their_sums_in_registers() {
    let program = std::env::current_exe().unwrap();
    let Ok(symbols) = Command::new("nm").arg(&program).output() else {
        return println!("skipped: no nm and objdump (install binutils)");
    };
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    for (function, multiply_add, sums) in LOOPS {
        let mut names = symbols.lines().filter_map(|line| line.split(' ').nth(2));
        let symbol = names.find(|name| name.contains(function)).expect(function);
        let code = disassembled(&program, symbol);
        let loops = innermost_loops(&code, multiply_add);
        assert!(!loops.is_empty(), "{function} has no loop of {multiply_add}");
        for body in loops {
            check(&code[body], function, multiply_add, sums);
        }
    }
}

fn disassembled(program: &std::path::Path, symbol: &str) -> Vec<Instruction> {
    let symbol = format!("--disassemble={symbol}");
    let mut objdump = Command::new("objdump");
    let output = objdump
        .args(["-d", "--no-show-raw-insn", &symbol])
        .arg(program)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(instruction).collect()
}

/// A line such as `46bd2: vfmadd231ps %ymm12,%ymm14,%ymm0`, with a tab behind the address.
fn instruction(line: &str) -> Option<Instruction> {
    let (address, rest) = line.trim_start().split_once(":\t")?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let (name, operands) = rest.split_once(' ').unwrap_or((rest, ""));
    Some(Instruction { address, name: name.into(), operands: operands.trim().into() })
}

/// Bodies that a jump back repeats, have that instruction, and hold no smaller such body.
fn innermost_loops(code: &[Instruction], name: &str) -> Vec<RangeInclusive<usize>> {
    let jumps = code
        .iter()
        .enumerate()
        .filter(|(_, i)| i.name.starts_with('j'));
    let bodies = jumps.filter_map(|(end, jump)| {
        let target = jump.operands.split(' ').next()?;
        let target = u64::from_str_radix(target, 16).ok()?;
        let start = code[..=end].iter().position(|i| i.address == target)?;
        let multiplies = code[start..=end].iter().any(|i| i.name.starts_with(name));
        multiplies.then_some(start..=end)
    });
    let bodies: Vec<_> = bodies.collect();
    let within = |a: &RangeInclusive<usize>, b: &RangeInclusive<usize>| {
        a != b && b.contains(a.start()) && b.contains(a.end())
    };
    let innermost = |body: &&RangeInclusive<usize>| !bodies.iter().any(|b| within(b, body));
    bodies.iter().filter(innermost).cloned().collect()
}

fn check(body: &[Instruction], function: &str, multiply_add: &str, sums: usize) {
    let products = body
        .iter()
        .filter(|i| i.name.starts_with(multiply_add))
        .count();
    assert!(products % sums == 0, "{function}: {products} {multiply_add} for {sums} sums");
    for i in body {
        let vector = i.operands.contains("%ymm") || i.operands.contains("%zmm");
        let on_stack = i.operands.contains("(%rsp") || i.operands.contains("(%rbp");
        assert!(!vector || !on_stack, "{function}: {} {} is on the stack", i.name, i.operands);
        let moved = i.name.starts_with("vmova") && !i.operands.contains('(');
        assert!(!moved, "{function}: {} {} moves a sum", i.name, i.operands);
    }
}

/// The rules find what LLVM made of 4 × 24 sums for AVX2, which has 16 registers.
#[test]
fn a_sum_that_is_moved_or_on_the_stack_is_found() {
    let body = |extra: &str| -> Vec<Instruction> {
        let lines = ["  10:\tvfmadd231ps %ymm1,%ymm2,%ymm0", extra, "  30:\tjne    10 <f+0x10>"];
        lines.into_iter().filter_map(instruction).collect()
    };
    let fails = |extra: &str| {
        let code = body(extra);
        let loops = innermost_loops(&code, "vfmadd");
        assert_eq!(loops, [0..=code.len() - 1]);
        std::panic::catch_unwind(|| check(&code, "f", "vfmadd", 1)).is_err()
    };
    assert!(!fails("  20:\tvmovups (%rax),%ymm2"));
    assert!(fails("  20:\tvmovaps %ymm3,%ymm4"));
    assert!(fails("  20:\tvmovups %ymm3,0x20(%rsp)"));
    assert!(fails("  20:\tvaddps 0x20(%rsp),%ymm3,%ymm3"));
}
