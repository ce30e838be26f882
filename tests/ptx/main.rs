//! The compiled kernels, executed: an emulator of the PTX that `kernels/build.sh` leaves in target/kernels.
//!
//! It sees what the software stand-in replaces: inline assembly, descriptors, fragments, byte counts. It does
//! not see ptxas, weak memory order, or time. A fifth of attention's cases run; all with GPTRAIN_EVERY_PTX=1.
//!
//! | module | |
//! |---|---|
//! | `parse` | text to registers, labels and statements |
//! | `actions`, `instructions` | statements to what they do; instructions of single threads |
//! | `machine` | blocks, warps, branches, barriers, orders |
//! | `memory` | allocations, bounds, alignment; bytes of arguments |
//! | `mma`, `wgmma`, `tensor_map` | tensor cores of Ampere and Hopper, and what copies for them |
//! | `modules`, `random` | the compiled kernels; random numbers |
//! | `attention`, `cases` | attention by its definition; the cases |
//! | `others` | the kernels without tensor cores |
//! | `planted` | faults that must be seen |
//! | `budget` | attention's instructions may not grow |

mod actions;
mod attention;
mod budget;
mod cases;
mod instructions;
#[path = "../common/kernels.rs"]
mod kernels;
mod machine;
mod memory;
mod mma;
mod modules;
mod others;
mod parse;
mod planted;
mod random;
mod tensor_map;
mod wgmma;
