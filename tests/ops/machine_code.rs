//! Hazards of wgmma in the machine code for sm_90a, as NVIDIA's disassembler prints it.
//!
//! wgmma is asynchronous: until a kernel has waited for its group, nothing may touch the registers of its
//! sums, nor write those of its first operand. ptxas keeps that order, or serializes every product and says
//! so (`kernels/build.sh` refuses that); here the order of its output is read. Not seen: jumps back, since a
//! kernel is read from top to bottom, and registers of operands in shared memory.

use crate::kernels;
use crate::resources::cubins;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::process::Command;

/// An asynchronous product in flight.
struct Product {
    sums: BTreeSet<u32>,
    operand: BTreeSet<u32>,
}

/// An instruction: `@!P0 IADD3 R8, P1, R8, 0x10, RZ` without its predicate.
struct Instruction<'a> {
    text: &'a str,
    name: &'a str,
    arguments: Vec<&'a str>,
}

impl<'a> Instruction<'a> {
    /// Reads a line `/*13a0*/  NAME ARGUMENTS ;`; None for labels and directives.
    fn read(line: &'a str) -> Option<Instruction<'a>> {
        let (address, text) = line.trim().strip_prefix("/*")?.split_once("*/")?;
        u32::from_str_radix(address, 16).ok()?;
        let text = text.split(';').next()?.trim();
        let guarded = text.strip_prefix('@').and_then(|text| text.split_once(' '));
        let body = guarded.map_or(text, |(_, body)| body.trim());
        let (name, arguments) = body.split_once(' ').unwrap_or((body, ""));
        let arguments = arguments.split(',').map(str::trim).collect();
        Some(Instruction { text, name, arguments })
    }

    fn operation(&self) -> &str {
        self.name.split('.').next().unwrap()
    }

    /// Whether its first registers are read, not written.
    fn has_no_result(&self) -> bool {
        let stores =
            ["ST", "RED", "BAR", "SYNCS", "UTM", "R2UR", "BRA", "BSYNC", "WARPSYNC", "RET"];
        let tests = ["ISETP", "FSETP", "PLOP3", "VOTEU", "R2P"];
        let name = self.operation();
        stores.iter().any(|start| name.starts_with(start)) || tests.contains(&name)
    }

    /// Registers that are written: one argument, after the predicates that are results.
    fn written(&self) -> BTreeSet<u32> {
        if self.has_no_result() {
            return BTreeSet::new();
        }
        let mut results = self
            .arguments
            .iter()
            .skip_while(|argument| is_predicate(argument));
        let Some(first) = results.next().and_then(|argument| register(argument)) else {
            return BTreeSet::new();
        };
        let parts: Vec<&str> = self.name.split('.').collect();
        let count = match () {
            () if parts.contains(&"128") => 4,
            () if parts.contains(&"64") || parts.contains(&"WIDE") => 2,
            () if parts == ["CS2R"] => 2,
            () => 1,
        };
        (first..first + count).collect()
    }

    /// Registers that are named, except that of the result.
    fn read_registers(&self) -> BTreeSet<u32> {
        let result = usize::from(!self.written().is_empty());
        let words = self.arguments[result..].iter();
        let words = words.flat_map(|argument| argument.split(|c: char| !c.is_alphanumeric()));
        words.filter_map(register).collect()
    }
}

fn is_predicate(argument: &str) -> bool {
    let name = argument.trim_start_matches('!');
    name == "PT"
        || name
            .strip_prefix('P')
            .is_some_and(|digits| digits.parse::<u32>().is_ok())
}

/// Number of `R8` or `R8.reuse`; None of RZ and of uniform registers.
fn register(argument: &str) -> Option<u32> {
    argument.split('.').next()?.strip_prefix('R')?.parse().ok()
}

/// Products by kernel, and instructions that touch a product in flight.
#[derive(Default)]
struct Report {
    products: BTreeMap<String, usize>,
    hazards: Vec<String>,
}

fn read_code(code: &str) -> Report {
    let mut report = Report::default();
    let mut kernel = String::new();
    let mut groups = VecDeque::<Vec<Product>>::new();
    let mut open = Vec::<Product>::new();
    for line in code.lines() {
        if let Some(name) = line.strip_prefix(".text.") {
            kernel = name.trim_end_matches(':').to_string();
            report.products.insert(kernel.clone(), 0);
            (groups, open) = Default::default();
            continue;
        }
        let Some(instruction) = Instruction::read(line) else { continue };
        if instruction.name == "WARPGROUP.DEPBAR.LE" {
            let left = instruction.arguments[1].trim_start_matches("0x");
            let left = usize::from_str_radix(left, 16).unwrap();
            while groups.len() > left {
                groups.pop_front();
            }
            continue;
        }
        let in_flight = || groups.iter().flatten().chain(&open);
        let mut note = |what: &str| {
            report
                .hazards
                .push(format!("{kernel}: {} {what}", instruction.text));
        };
        if instruction.operation() != "HGMMA" {
            let written = instruction.written();
            let read = instruction.read_registers();
            if in_flight()
                .any(|of| !of.sums.is_disjoint(&written) || !of.operand.is_disjoint(&written))
            {
                note("writes a register of a product in flight");
            }
            if in_flight().any(|of| !of.sums.is_disjoint(&read)) {
                note("reads sums in flight");
            }
            continue;
        }
        let product = product(&instruction);
        let clash = |of: &Product| {
            of.sums != product.sums
                && (!of.sums.is_disjoint(&product.sums) || !of.sums.is_disjoint(&product.operand))
        };
        if in_flight().any(clash) {
            note("shares registers with the sums of another product in flight");
        }
        open.push(product);
        *report.products.get_mut(&kernel).unwrap() += 1;
        if instruction.arguments.contains(&"gsb0") {
            groups.push_back(std::mem::take(&mut open));
        }
    }
    report
}

/// `HGMMA.64x128x16.F32.BF16 R24, R4, gdesc[UR8], R24`: sums of 64 rows over four warps, N/2 registers of a
/// thread; the first operand is 4 registers, or in shared memory.
fn product(instruction: &Instruction) -> Product {
    let shape = instruction.name.split('.').nth(1).unwrap();
    let columns: u32 = shape.split('x').nth(1).unwrap().parse().unwrap();
    let sums = register(instruction.arguments[0]).unwrap();
    let operand =
        register(instruction.arguments[1]).map_or(BTreeSet::new(), |at| (at..at + 4).collect());
    Product { sums: (sums..sums + columns / 2).collect(), operand }
}

/// The disassembler of the compiler from PyPI, of CUDA_HOME or of PATH.
fn disassembler() -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join(".toolchain/cuda/nvidia/cu13/bin");
    let home = std::env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = [own]
        .into_iter()
        .chain(home)
        .chain(std::env::split_paths(&path));
    folders
        .map(|folder| folder.join("nvdisasm"))
        .find(|file| file.exists())
}

/// Code of a source of `kernels/` for sm_90a; None without compiled kernels or a disassembler.
fn code_of(source: &str) -> Option<String> {
    let fatbin = kernels::folder().join(format!("{source}.fatbin"));
    let (Ok(fatbin), Some(disassembler)) = (std::fs::read(fatbin), disassembler()) else {
        eprintln!(
            "skipped: no compiled kernels, or no nvdisasm (`make kernels` gets both from PyPI)"
        );
        return None;
    };
    let (_, elf) = cubins(&fatbin)
        .into_iter()
        .find(|(arch, _)| *arch == 90)
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kernels.cubin");
    std::fs::write(&file, elf).unwrap();
    let shown = Command::new(disassembler)
        .arg("-c")
        .arg(&file)
        .output()
        .unwrap();
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    Some(String::from_utf8(shown.stdout).unwrap())
}

const SOURCES: [&str; 2] = ["attention_hopper", "attention_hopper_backward"];

#[test]
fn no_register_of_a_product_in_flight_is_touched() {
    for source in SOURCES {
        let Some(code) = code_of(source) else { return };
        let Report { products, hazards } = read_code(&code);
        assert_eq!(hazards, Vec::<String>::new());
        assert!(products.len() >= 4, "{products:?}");
        for (kernel, count) in products {
            assert!(count >= 8, "{kernel}: {count} products of wgmma");
        }
    }
}

/// The code without one of its waits, and with a move into a sum behind a product.
#[test]
fn planted_hazards_are_found() {
    let Some(code) = code_of(SOURCES[1]) else { return };
    let wait = code
        .lines()
        .find(|line| line.contains("WARPGROUP.DEPBAR"))
        .unwrap();
    let early = read_code(&code.replace(wait, ""));
    assert!(!early.hazards.is_empty(), "a wait is missing");
    assert!(
        early
            .hazards
            .iter()
            .all(|hazard| hazard.contains("in flight"))
    );

    let line = code.lines().find(|line| line.contains("HGMMA")).unwrap();
    let sum = register(Instruction::read(line).unwrap().arguments[0]).unwrap();
    let moved = format!("{line}\n        /*0000*/  @P0 MOV R{}, RZ ;", sum + 1);
    let moved = read_code(&code.replacen(line, &moved, 1));
    let word = format!("@P0 MOV R{}, RZ writes a register of a product in flight", sum + 1);
    assert!(moved.hazards.len() == 1 && moved.hazards[0].ends_with(&word), "{:?}", moved.hazards);
}
