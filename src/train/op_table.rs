//! `gptrain run --ops`: the ops of a step as a table, one per row.

use base::output::{self, Existing};
use device::{Access, LoggedOp, take_op_log};
use std::fmt::Write;
use std::path::Path;

/// Columns of the table. Ops of one purpose share a name; a kind is one op.
const COLUMNS: &str = "op,kind,name,reads,writes,flops,bytes,seconds\n";

/// Writes the ops that this thread has logged, and stops logging. An error does not end the run.
pub fn write(file: &Path, step: u64) {
    let ops = take_op_log();
    match output::write(file, Existing::Replaced, table(&ops).as_bytes()) {
        Ok(()) => tracing::info!("{} ops of step {step}: {}", ops.len(), file.display()),
        Err(error) => tracing::warn!("no ops of step {step} in {}: {error:#}", file.display()),
    }
}

fn table(ops: &[LoggedOp]) -> String {
    let mut text = COLUMNS.to_string();
    for (number, op) in (1..).zip(ops) {
        let LoggedOp { kind, name, cost, .. } = op;
        let reads = shapes(op, |access| access != Access::Write);
        let writes = shapes(op, |access| access != Access::Read);
        let seconds = op
            .seconds
            .map_or(String::new(), |seconds| format!("{seconds:.9}"));
        let flops = cost.flops;
        let bytes = cost.bytes;
        let row = writeln!(
            text,
            "{number},{kind},{name},{reads},{writes},{flops:.0},{bytes:.0},{seconds}"
        );
        row.expect("a string grows");
    }
    text
}

/// Dtypes and shapes of the tensors with some uses: "f32[64x128] f32[1x128]".
fn shapes(op: &LoggedOp, with: impl Fn(Access) -> bool) -> String {
    op.tensors
        .iter()
        .filter(|(_, access)| with(*access))
        .map(|(x, _)| format!("{}[{}x{}]", x.dtype, x.rows, x.cols))
        .collect::<Vec<_>>()
        .join(" ")
}
