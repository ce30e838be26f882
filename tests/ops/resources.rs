//! Registers, bounds and static shared memory of the compiled kernels, as their cubins have them, beside
//! the largest launches. A launch that a GPU would refuse is found here without one.
//!
//! A kernel without a stack neither spills registers nor has arrays in local memory: none has one.
//!
//! `kernels/build.sh` leaves fat binaries: entries of a header, then an ELF file (or PTX), as a zstd frame
//! where it is compressed. `cuobjdump --dump-resource-usage` reads the same; no wheel of the compiler
//! has it.

use crate::kernels;
use gptrain::device::cuda::{LargestLaunch, largest_launches};
use std::collections::BTreeMap;
use std::io::Read;

/// 32-bit registers of a multiprocessor, of which a block has all its own at once, and the number that
/// a thread's are rounded up to.
const REGISTERS: usize = 65_536;
const REGISTER_UNIT: usize = 8;

/// Shared memory that a block may have, and what it may declare statically.
const SHARED: [(u32, usize); 3] = [(80, 163 << 10), (90, 227 << 10), (100, 227 << 10)];
const STATIC: usize = 48 << 10;

/// Attributes of a kernel in a cubin's sections `.nv.info`: format with a length, most threads of a block,
/// bytes of its stack, registers of a thread.
const SIZED: u8 = 4;
const MOST_THREADS: u8 = 0x05;
const STACK: u8 = 0x11;
const REGISTER_COUNT: u8 = 0x2f;

/// A compiled kernel.
#[derive(Clone, Debug)]
struct Resources {
    kernel: String,
    /// Compute capability, times ten.
    arch: u32,
    registers: usize,
    /// `__launch_bounds__`.
    threads: usize,
    /// Bytes of static shared memory.
    fixed: usize,
    /// Bytes of local memory of a thread: spilled registers, and arrays that are not in registers.
    stack: usize,
}

fn number(bytes: &[u8], at: usize, size: usize) -> usize {
    bytes[at..at + size]
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | *byte as usize)
}

/// Compute capability and ELF file of each entry of machine code.
pub fn cubins(fatbin: &[u8]) -> Vec<(u32, Vec<u8>)> {
    assert_eq!(number(fatbin, 0, 4), 0xba55_ed50, "magic number of a fat binary");
    let (mut at, mut found) = (number(fatbin, 6, 2), Vec::new());
    let end = at + number(fatbin, 8, 8);
    while at < end {
        let entry = &fatbin[at..];
        let (header, size) = (number(entry, 4, 4), number(entry, 8, 8));
        let (packed, arch) = (number(entry, 16, 4), number(entry, 28, 4) as u32);
        let image = &entry[header..header + size];
        if number(entry, 0, 2) == 2 {
            let mut elf = image.to_vec();
            if packed > 0 {
                elf.clear();
                let frame = ruzstd::decoding::StreamingDecoder::new(&image[..packed]).unwrap();
                { frame }.read_to_end(&mut elf).unwrap();
            }
            found.push((arch, elf));
        }
        at += header + size;
    }
    found
}

/// Name and contents of an ELF file's sections, and the size of those without contents.
fn sections(elf: &[u8]) -> Vec<(String, &[u8], usize)> {
    assert_eq!(&elf[..4], b"\x7fELF");
    let (table, each) = (number(elf, 40, 8), number(elf, 58, 2));
    let (count, names) = (number(elf, 60, 2), number(elf, 62, 2));
    let field = |section: usize, at: usize, size| number(elf, table + section * each + at, size);
    let names = field(names, 24, 8);
    let section = |section| {
        let (offset, size) = (field(section, 24, 8), field(section, 32, 8));
        let contents = if field(section, 4, 4) == 8 { &[] } else { &elf[offset..offset + size] };
        (text(elf, names + field(section, 0, 4)), contents, size)
    };
    (0..count).map(section).collect()
}

fn text(bytes: &[u8], at: usize) -> String {
    let end = bytes[at..].iter().position(|byte| *byte == 0).unwrap();
    String::from_utf8(bytes[at..at + end].to_vec()).unwrap()
}

/// Attributes of a section `.nv.info` that have a length.
fn attributes(mut info: &[u8]) -> Vec<(u8, &[u8])> {
    let mut found = Vec::new();
    while info.len() >= 4 {
        let size = if info[0] == SIZED { number(info, 2, 2) } else { 0 };
        found.push((info[1], &info[4..4 + size]));
        info = &info[4 + size..];
    }
    found
}

fn resources_of(arch: u32, elf: &[u8]) -> Vec<Resources> {
    let sections = sections(elf);
    let named = |name: &str| sections.iter().find(|(found, ..)| found == name);
    let contents = |name: &str| named(name).map_or(&[][..], |(_, contents, _)| *contents);
    let (symbols, strings) = (contents(".symtab"), contents(".strtab"));
    let symbol = |index: usize| text(strings, number(symbols, 24 * index, 4));
    let facts = attributes(contents(".nv.info"));
    let value_of = |wanted: u8, kernel: usize| {
        let found = facts
            .iter()
            .find(|(kind, fact)| *kind == wanted && number(fact, 0, 4) == kernel);
        number(found.expect("every kernel has it").1, 4, 4)
    };
    let counts = facts.iter().filter(|(kind, _)| *kind == REGISTER_COUNT);
    let resources = |(_, count): &(u8, &[u8])| {
        let index = number(count, 0, 4);
        let kernel = symbol(index);
        let info = attributes(contents(&format!(".nv.info.{kernel}")));
        let bound = info.into_iter().find(|(kind, _)| *kind == MOST_THREADS);
        let (_, bound) = bound.unwrap_or_else(|| panic!("{kernel} has no launch bound"));
        let threads = (0..3).map(|axis| number(bound, 4 * axis, 4)).product();
        let fixed = named(&format!(".nv.shared.{kernel}")).map_or(0, |(_, _, size)| *size);
        let registers = number(count, 4, 4);
        Resources { kernel, arch, registers, threads, fixed, stack: value_of(STACK, index) }
    };
    counts.map(resources).collect()
}

/// Kernels of `target/kernels`; None if they were not built.
fn compiled() -> Option<Vec<Resources>> {
    let files = std::fs::read_dir(kernels::folder())
        .ok()?
        .map(|entry| entry.unwrap().path());
    let files = files.filter(|file| file.extension().is_some_and(|kind| kind == "fatbin"));
    let cubins = files.flat_map(|file| cubins(&std::fs::read(file).unwrap()));
    let all: Vec<_> = cubins
        .flat_map(|(arch, elf)| resources_of(arch, &elf))
        .collect();
    (!all.is_empty()).then_some(all)
}

/// Reason why a GPU refuses the largest launch of a kernel, or why it is slow; None if it runs.
fn refusal(of: &Resources, launches: &[LargestLaunch]) -> Option<String> {
    let Resources { kernel, arch, registers, threads: bound, fixed, stack } = of;
    if *stack > 0 {
        return Some(format!("{kernel} for sm_{arch}: {stack} bytes of a stack"));
    }
    let own = launches
        .iter()
        .filter(|launch| kernel.starts_with(launch.kernel));
    let launch = own.max_by_key(|launch| launch.kernel.len())?;
    let threads = launch.threads.unwrap_or(*bound);
    let (_, limit) = SHARED
        .iter()
        .find(|(known, _)| known == arch)
        .expect("a known GPU");
    let used = registers.next_multiple_of(REGISTER_UNIT) * threads.next_multiple_of(32);
    let shared = fixed + launch.shared;
    let what = match () {
        () if threads > *bound => format!("{threads} threads, and its bound is {bound}"),
        () if used > REGISTERS => format!("{registers} registers of {threads} threads: {used}"),
        () if *fixed > STATIC => format!("{fixed} bytes of static shared memory"),
        () if shared > *limit => format!("{shared} bytes of shared memory of {limit}"),
        () => return None,
    };
    Some(format!("{kernel} for sm_{arch}: {what}"))
}

fn refusals(all: &[Resources]) -> Vec<String> {
    let launches = largest_launches();
    all.iter().filter_map(|of| refusal(of, &launches)).collect()
}

#[test]
fn compiled_kernels_fit_their_largest_launches() {
    let Some(all) = compiled() else {
        return eprintln!("skipped: no compiled kernels in target/kernels (`make kernels`)");
    };
    let mut kernels = BTreeMap::<&str, Vec<u32>>::new();
    all.iter()
        .for_each(|of| kernels.entry(&of.kernel).or_default().push(of.arch));
    assert!(kernels.len() > 100, "{} kernels", kernels.len());
    let archs: Vec<u32> = SHARED.iter().map(|(arch, _)| *arch).collect();
    for (kernel, found) in &mut kernels {
        found.sort();
        assert_eq!(*found, archs, "{kernel}");
    }
    for launch in largest_launches() {
        let known = kernels
            .keys()
            .any(|kernel| kernel.starts_with(launch.kernel));
        assert!(known, "no kernel is called {}", launch.kernel);
    }
    assert_eq!(refusals(&all), Vec::<String>::new());
}

/// A bound below the launch, as norms had it for rows of 14,336 and 16,384, and the other kinds.
#[test]
fn planted_violations_are_found() {
    let Some(all) = compiled() else {
        return eprintln!("skipped: no compiled kernels in target/kernels (`make kernels`)");
    };
    let planted = |kernel: &str, arch: u32, change: &dyn Fn(&mut Resources)| {
        let mut all = all.clone();
        let found = all
            .iter_mut()
            .find(|of| of.kernel == kernel && of.arch == arch);
        change(found.unwrap_or_else(|| panic!("no {kernel} for sm_{arch}")));
        refusals(&all)
    };
    let bound = planted("layernorm_backward_long_bf16", 90, &|of| of.threads = 480);
    let word = "layernorm_backward_long_bf16 for sm_90: 512 threads, and its bound is 480";
    assert_eq!(bound, [word]);
    let registers = planted("norm_residual_backward_wide16_bf16", 90, &|of| of.registers = 80);
    assert_eq!(registers.len(), 1, "{registers:?}");
    assert!(registers[0].contains("80 registers of 896 threads: 71680"), "{registers:?}");
    let fixed = planted("column_sums", 80, &|of| of.fixed = 50 << 10);
    assert_eq!(fixed, ["column_sums for sm_80: 51200 bytes of static shared memory"]);
    let stack = planted("column_sums", 90, &|of| of.stack = 8);
    assert_eq!(stack, ["column_sums for sm_90: 8 bytes of a stack"]);
    let shared = planted("attention_kv_16_f32", 80, &|of| of.fixed = 40_000);
    assert!(shared.len() == 1 && shared[0].ends_with("of 166912"), "{shared:?}");
}

/// The same fault in the machine code itself: the attribute of one kernel is changed in its cubin.
#[test]
fn a_changed_cubin_is_found() {
    let Some(_) = compiled() else {
        return eprintln!("skipped: no compiled kernels in target/kernels (`make kernels`)");
    };
    let fatbin = std::fs::read(kernels::folder().join("elementwise.fatbin")).unwrap();
    let (arch, mut elf) = cubins(&fatbin)
        .into_iter()
        .find(|(arch, _)| *arch == 80)
        .unwrap();
    let name = ".nv.info.column_sums";
    let info = sections(&elf)
        .into_iter()
        .find(|(found, ..)| found == name)
        .unwrap()
        .1;
    let bound = attributes(info)
        .into_iter()
        .find(|(kind, _)| *kind == MOST_THREADS)
        .unwrap()
        .1;
    let at = bound.as_ptr() as usize - elf.as_ptr() as usize;
    assert_eq!(number(&elf, at, 4), 256);
    elf[at..at + 4].copy_from_slice(&128u32.to_le_bytes());
    let found = refusals(&resources_of(arch, &elf));
    assert_eq!(found, ["column_sums for sm_80: 256 threads, and its bound is 128"]);
}
