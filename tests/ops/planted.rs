//! Faults of each kind that the stand-in detects, one in each program of `tests/softgpu/planted.cpp`.

use crate::bench::Bench;
use crate::softgpu;
use gptrain::base::DType;
use gptrain::device::cpu::Cpu;
use gptrain::device::{Tensor, op};
use std::process::{Command, Output};

fn run(fault: &str, variables: &[(&str, &str)]) -> Output {
    let program = softgpu::folder().join("planted");
    let variables = [&[("SOFTGPU_PATIENCE", "1")], variables].concat();
    Command::new(program)
        .arg(fault)
        .envs(variables)
        .output()
        .expect("it runs")
}

/// Checks that the program aborts with this message.
fn aborts(fault: &str, variables: &[(&str, &str)], message: &str) {
    let done = run(fault, variables);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains(message), "{fault}: {done:?}");
}

/// Checks that the program succeeds and prints this.
fn says(fault: &str, variables: &[(&str, &str)], what: &str) {
    let done = run(fault, variables);
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains(what), "{fault}: {done:?}");
}

#[test]
fn launches_beyond_a_limit_are_refused() {
    says("bound_of_64", &[], "refused with 1");
    says("large_argument", &[], "refused with 1");
    let message = "53248 bytes of shared memory, 45056 of them dynamic, in a block that has 49152";
    aborts("static_shared", &[], message);
}

#[test]
fn shared_memory_starts_as_nan_and_ends_at_canaries() {
    says("uninitialised", &[], "64 not a number");
    aborts("static_overrun", &[], "wrote outside its 256 bytes of static shared memory");
    aborts("dynamic_overrun", &[], "wrote outside its 1024 bytes of dynamic shared memory");
}

#[test]
fn the_order_of_blocks_and_copies_changes() {
    says("order_of_blocks", &[], "differs");
    for fault in ["early_copy", "late_copy"] {
        let done = run(fault, &[]);
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && !said.contains(" 0 wrong"), "{fault}: {done:?}");
    }
}

#[test]
fn undefined_arithmetic_and_addresses_abort() {
    aborts("misaligned_copy", &[], "multiples of 16 bytes");
    aborts("misaligned_load", &[], "undefined in C++");
    aborts("wide_shift", &[], "undefined in C++");
    aborts("different_collectives", &[], "syncwarp where another lane of the warp is in shfl");
}

/// Each rank begins a receive before the send that its peer waits for. The receive blocks the send if both share a
/// hardware queue, and the load of a kernel if loading is lazy.
#[test]
fn streams_that_must_progress_independently_hang_in_one_queue() {
    const EAGER: (&str, &str) = ("CUDA_MODULE_LOADING", "EAGER");
    let hangs = "every stream waits for an operation that no stream runs";
    let patient = ("SOFTGPU_PATIENCE", "60");
    says("receive_first", &[EAGER, patient], "ended");
    aborts("receive_first", &[EAGER, ("SOFTGPU_QUEUES", "1")], hangs);
    aborts("receive_first", &[], hangs);
    let message = "bound_of_64 is loaded while a receive is in flight";
    aborts("receive_first", &[("SOFTGPU_LOADS", "apart")], message);
}

#[test]
fn communicators_in_different_orders_hang_where_collectives_are_serial() {
    says("crossed_collectives", &[("SOFTGPU_PATIENCE", "60")], "ended");
    let hangs = "every stream waits for an operation that no stream runs";
    aborts("crossed_collectives", &[("SOFTGPU_NCCL_SERIAL", "1")], hangs);
}

#[test]
fn a_write_behind_a_tensor_is_found() {
    let cpu = Cpu::new(Some(1));
    let bench = Bench::new(&cpu, DType::F32, true);
    let [first, _] = [0; 2].map(|_| bench.blank(1, 65, DType::F32));
    bench.run(op::Zero { x: first.set() });
    assert_eq!(bench.wrong(), [""; 0]);
    bench.run(op::Zero { x: Tensor::at(first.addr(), 1, 66, DType::F32).set() });
    assert!(bench.wrong()[0].contains("behind the tensor that was made as number 0"));
}
