//! Log of the ops that a thread gives to a device, with their cost and seconds.

use super::{Access, Op, Tensor, Work};
use std::cell::RefCell;
use std::time::Instant;

/// One op that ran.
#[derive(Clone, Debug)]
pub struct LoggedOp {
    /// `Op::name` and `Op::kind`.
    pub name: &'static str,
    pub kind: &'static str,
    pub tensors: Vec<(Tensor, Access)>,
    pub cost: Work,
    /// None on a device that runs ops later.
    pub seconds: Option<f64>,
}

thread_local! {
    /// None if this thread does not log.
    static LOG: RefCell<Option<Vec<LoggedOp>>> = const { RefCell::new(None) };
}

/// Discards this thread's log, and logs its following ops.
pub fn begin_op_log() {
    LOG.set(Some(Vec::new()));
}

/// Stops, and returns the ops since `begin_op_log`.
pub fn take_op_log() -> Vec<LoggedOp> {
    LOG.take().unwrap_or_default()
}

/// Runs an op by `enqueue`, and logs it if this thread logs. Its seconds are those of `enqueue` if
/// the device is `synchronous`.
pub(super) fn log_op(op: &Op, synchronous: bool, enqueue: impl FnOnce()) {
    if LOG.with_borrow(Option::is_none) {
        return enqueue();
    }
    let began = Instant::now();
    enqueue();
    let seconds = synchronous.then(|| began.elapsed().as_secs_f64());
    let name = op.name();
    let kind = op.kind();
    let tensors = op.tensors().0;
    let cost = op.cost();
    LOG.with_borrow_mut(|log| {
        log.iter_mut().for_each(|log| {
            log.push(LoggedOp { name, kind, tensors: tensors.clone(), cost, seconds })
        });
    });
}
