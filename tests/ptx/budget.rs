//! A budget: instructions that a warp issues per 128 streamed positions in each kernel of attention. These
//! kernels are bound by them.

use crate::attention::{Kind, PARTS, Part, instructions_per_tile};
use crate::modules::{Modules, release};
use std::fmt::Write;
use std::path::Path;

#[test]
fn instructions_of_attention_do_not_grow() {
    let Some(modules) = Modules::compiled() else { return };
    let release = release();
    let mut table = format!(
        "# PTX instructions of a warp per 128 streamed positions, nvcc {release}, causal\n"
    );
    table += "# kernels                forward    keys queries\n";
    for (kind, widths) in
        [(Kind::Mma, &[32, 64, 80, 96, 128, 160][..]), (Kind::Wgmma, &[64, 80, 96, 128])]
    {
        for d in widths {
            write!(table, "{:<22}", format!("{kind:?} {d}").to_lowercase()).unwrap();
            for part in PARTS {
                let issued = instructions_per_tile(&modules, kind, *d, part);
                write!(table, "{:>8}", issued.unwrap_or_else(|fault| panic!("{fault:?}"))).unwrap();
            }
            table.push('\n');
        }
    }
    let forward = instructions_per_tile(&modules, Kind::Wgmma, 160, Part::Forward).unwrap();
    writeln!(table, "{:<22}{forward:>8}", "wgmma 160").unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/ptx/instructions.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        return std::fs::write(&file, table).unwrap();
    }
    let known = std::fs::read_to_string(&file).unwrap();
    if !known.contains(&format!("nvcc {release},")) {
        return eprintln!("skipped: the table is that of another nvcc than {release}");
    }
    let different = known
        .lines()
        .zip(table.lines())
        .filter(|(known, now)| known != now);
    let different: Vec<String> = different
        .map(|(known, now)| format!("{known}\n{now}   now"))
        .collect();
    assert!(
        known == table,
        "instructions of attention changed. If fewer, or for a reason: \
         UPDATE=1 cargo nextest run --test ptx -E 'test(budget)'\n{}",
        different.join("\n")
    );
}
