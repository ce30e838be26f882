//! DeepSpeed's own rules for the memory of its states, as its `estimate_zero*_model_states_mem_needs`
//! print them, to compare with.

use super::setup::Offload;

/// Bytes of a GPU, and of a node's host memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct States {
    pub gpu: f64,
    pub host: f64,
}

/// Memory of `parameters` over `gpus`, `per_node` per node; `largest` is the largest layer's parameters.
/// ZeRO-2 and 3. `zero_init`: the model is built in pieces, not whole by every process.
pub fn states(
    zero: u8,
    (parameters, largest): (f64, f64),
    (gpus, per_node): (f64, f64),
    offload: Offload,
    zero_init: bool,
) -> States {
    const BUFFER: f64 = 1.5;
    let whole = 4.0 * per_node;
    if zero == 2 {
        return if offload.optimizer {
            States { gpu: 2.0 * parameters, host: parameters * whole.max(16.0) * BUFFER }
        } else {
            States {
                gpu: 4.0 * parameters + 16.0 * parameters / gpus,
                host: parameters * whole * BUFFER,
            }
        };
    }
    let share = per_node / gpus;
    let (gpu, kept) = match (offload.optimizer, offload.weights) {
        (true, true) => (4.0 * largest, 18.0 * share),
        (true, false) => (4.0 * largest + 2.0 * parameters / gpus, 16.0 * share),
        (false, _) => (4.0 * largest + 18.0 * parameters / gpus, 0.0),
    };
    let host = match (offload.optimizer, zero_init) {
        (true, true) => parameters * kept * BUFFER,
        (true, false) => parameters * whole.max(kept / share) * BUFFER,
        (false, true) => largest * whole * BUFFER,
        (false, false) => parameters * whole * BUFFER,
    };
    States { gpu, host }
}
