//! Decoded instructions, and those that move data: loads, stores, atomics, exchanges between lanes.

use crate::instructions::{self, Apply};
use crate::machine::{Block, Lanes};
use crate::memory::{Fault, Space, fault};
use crate::mma::Format;
use crate::parse::{Kernel, Operand, Statement, bits};

/// Effect of an instruction.
pub enum Action {
    Compute {
        to: usize,
        from: Vec<Operand>,
        apply: Apply,
    },
    /// Parts of that many bits to one register, the first lowest.
    Pack {
        to: usize,
        from: Vec<Operand>,
        width: u32,
    },
    Unpack {
        to: Vec<Operand>,
        from: Operand,
        width: u32,
    },
    Load {
        space: Space,
        width: u32,
        signed: bool,
        to: Vec<Operand>,
        address: Operand,
    },
    Store {
        space: Space,
        width: u32,
        from: Vec<Operand>,
        address: Operand,
    },
    Atomic {
        space: Space,
        width: u32,
        to: Operand,
        address: Operand,
        value: Operand,
        apply: Apply,
    },
    Branch {
        to: usize,
    },
    Exit,
    Shuffle {
        mode: String,
        to: usize,
        valid: Option<usize>,
        from: [Operand; 4],
    },
    Vote {
        all: bool,
        to: usize,
        from: [Operand; 2],
    },
    /// A barrier of a warp.
    Converge,
    /// A barrier of the block, or of some of its threads.
    Barrier {
        arrives: bool,
        number: Operand,
        threads: Option<Operand>,
    },
    LoadMatrices {
        to: Vec<Operand>,
        address: Operand,
        transposed: bool,
    },
    Multiply {
        format: Format,
        to: Vec<Operand>,
        from: [Vec<Operand>; 3],
    },
    Copy {
        to: Operand,
        from: Operand,
        bytes: usize,
        there: Option<Operand>,
    },
    CommitCopies,
    WaitForCopies {
        pending: usize,
    },
    Registers {
        count: u64,
    },
    InitBarrier {
        at: Operand,
        arrivals: Operand,
    },
    ArriveAt {
        at: Operand,
        expects: Option<Operand>,
    },
    WaitFor {
        to: usize,
        at: Operand,
        parity: Operand,
    },
    LoadBox {
        to: Operand,
        map: Operand,
        barrier: Operand,
    },
    Wgmma(Wgmma),
    CommitProducts,
    WaitForProducts {
        pending: usize,
    },
    /// Orders memory, of which this machine has only one order.
    Fence,
}

/// A product of a warpgroup.
pub struct Wgmma {
    pub columns: usize,
    pub to: Vec<usize>,
    /// Registers, or one descriptor.
    pub a: Vec<Operand>,
    pub b: Operand,
    pub adds: Operand,
    /// Whether B is contiguous along its columns.
    pub transposed: bool,
}

pub struct Instruction {
    pub predicate: Option<(usize, bool)>,
    pub action: Action,
    pub text: String,
}

/// A kernel that the machine runs.
pub struct Program {
    pub kernel: Kernel,
    pub instructions: Vec<Instruction>,
}

impl Program {
    pub fn new(module: &str, name: &str) -> Result<Program, Fault> {
        let mut kernel = crate::parse::kernel(module, name);
        let statements = std::mem::take(&mut kernel.statements).into_iter();
        let decoded = statements.map(|statement| {
            let action = decode(&statement);
            let action = action.ok_or_else(|| Fault(format!("not known: {}", statement.text)))?;
            Ok(Instruction { predicate: statement.predicate, action, text: statement.text })
        });
        Ok(Program { instructions: decoded.collect::<Result<_, _>>()?, kernel })
    }
}

fn register(operand: &Operand) -> Option<usize> {
    match operand {
        Operand::Register(number) => Some(*number),
        _ => None,
    }
}

fn vector(operand: &Operand) -> Vec<Operand> {
    match operand {
        Operand::Vector(all) => all.clone(),
        other => vec![other.clone()],
    }
}

fn immediate(operand: &Operand) -> Option<u64> {
    match operand {
        Operand::Immediate(number) => Some(*number),
        _ => None,
    }
}

/// None if the instruction is not known.
fn decode(statement: &Statement) -> Option<Action> {
    let parts: Vec<&str> = statement.parts.iter().map(String::as_str).collect();
    let operands = &statement.operands;
    let last = *parts.last()?;
    match parts[..] {
        ["bra", ..] => match operands[0] {
            Operand::Label(to) => Some(Action::Branch { to }),
            _ => None,
        },
        ["ret" | "exit"] => Some(Action::Exit),
        ["mov", ty] if matches!(operands[0], Operand::Vector(_)) => {
            let (to, from) = (vector(&operands[0]), operands[1].clone());
            Some(Action::Unpack { width: bits(ty) / to.len() as u32, to, from })
        }
        ["mov", ty] if matches!(operands[1], Operand::Vector(_)) => {
            let from = vector(&operands[1]);
            let width = bits(ty) / from.len() as u32;
            Some(Action::Pack { to: register(&operands[0])?, from, width })
        }
        ["ld", ..] => Some(Action::Load {
            space: Space::of(&statement.parts),
            width: bits(last),
            signed: last.starts_with('s'),
            to: vector(&operands[0]),
            address: operands[1].clone(),
        }),
        ["st", ..] => Some(Action::Store {
            space: Space::of(&statement.parts),
            width: bits(last),
            from: vector(&operands[1]),
            address: operands[0].clone(),
        }),
        ["atom", _, operation, ty] => Some(Action::Atomic {
            space: Space::of(&statement.parts),
            width: bits(ty),
            to: operands[0].clone(),
            address: operands[1].clone(),
            value: operands[2].clone(),
            apply: instructions::find(&[operation, ty])?,
        }),
        ["fence", ..] | ["membar", ..] | ["wgmma", "fence", "sync", "aligned"] => {
            Some(Action::Fence)
        }
        ["shfl" | "vote", ..] => exchange(&parts, operands),
        ["bar" | "barrier", ..] => barrier(&parts, operands),
        ["ldmatrix" | "mma" | "cp" | "mbarrier" | "wgmma" | "setmaxnreg", ..] => {
            unit(&parts, operands)
        }
        _ => Some(Action::Compute {
            to: register(&operands[0])?,
            from: operands[1..].to_vec(),
            apply: instructions::find(&parts)?,
        }),
    }
}

fn exchange(parts: &[&str], operands: &[Operand]) -> Option<Action> {
    match *parts {
        ["shfl", "sync", mode, "b32"] => {
            let (to, valid) = match &operands[0] {
                Operand::Both(to, valid) => (register(to)?, register(valid)),
                to => (register(to)?, None),
            };
            let from = [1, 2, 3, 4].map(|at| operands[at].clone());
            Some(Action::Shuffle { mode: mode.to_string(), to, valid, from })
        }
        ["vote", "sync", how @ ("any" | "all"), "pred"] => Some(Action::Vote {
            all: how == "all",
            to: register(&operands[0])?,
            from: [operands[1].clone(), operands[2].clone()],
        }),
        _ => None,
    }
}

fn barrier(parts: &[&str], operands: &[Operand]) -> Option<Action> {
    match *parts {
        ["bar", "warp", "sync"] => Some(Action::Converge),
        ["bar", how @ ("sync" | "arrive")] | ["barrier", how @ ("sync" | "arrive"), ..] => {
            Some(Action::Barrier {
                arrives: how == "arrive",
                number: operands[0].clone(),
                threads: operands.get(1).cloned(),
            })
        }
        _ => None,
    }
}

/// Instructions of tensor cores and of the units that copy for them.
fn unit(parts: &[&str], operands: &[Operand]) -> Option<Action> {
    let operand = |at: usize| operands[at].clone();
    let number = |at: usize| immediate(&operands[at]).map(|number| number as usize);
    match *parts {
        ["ldmatrix", "sync", "aligned", "m8n8", "x4", .., "b16"] => Some(Action::LoadMatrices {
            to: vector(&operands[0]),
            address: operand(1),
            transposed: parts.contains(&"trans"),
        }),
        ["mma", "sync", "aligned", "m16n8k16", "row", "col", "f32", a, b, "f32"] if a == b => {
            let from = [1, 2, 3].map(|at| vector(&operands[at]));
            Some(Action::Multiply { format: Format::of(a)?, to: vector(&operands[0]), from })
        }
        ["cp", "async", "cg" | "ca", ..] => Some(Action::Copy {
            to: operand(0),
            from: operand(1),
            bytes: number(2)?,
            there: operands.get(3).cloned(),
        }),
        ["cp", "async", "commit_group"] => Some(Action::CommitCopies),
        ["cp", "async", "wait_group"] => Some(Action::WaitForCopies { pending: number(0)? }),
        ["cp", "async", "bulk", "tensor", "4d", ..] => {
            Some(Action::LoadBox { to: operand(0), map: operand(1), barrier: operand(2) })
        }
        ["setmaxnreg", ..] => Some(Action::Registers { count: immediate(&operands[0])? }),
        ["mbarrier", "init", ..] => {
            Some(Action::InitBarrier { at: operand(0), arrivals: operand(1) })
        }
        ["mbarrier", "arrive", ..] if operands[0] == Operand::Sink => {
            Some(Action::ArriveAt { at: operand(1), expects: operands.get(2).cloned() })
        }
        ["mbarrier", "try_wait", "parity", ..] => Some(Action::WaitFor {
            to: register(&operands[0])?,
            at: operand(1),
            parity: operand(2),
        }),
        ["wgmma", "commit_group", ..] => Some(Action::CommitProducts),
        ["wgmma", "wait_group", ..] => Some(Action::WaitForProducts { pending: number(0)? }),
        ["wgmma", "mma_async", "sync", "aligned", shape, "f32", "bf16", "bf16"] => {
            let columns = shape
                .strip_prefix("m64n")?
                .strip_suffix("k16")?
                .parse()
                .ok()?;
            let to: Option<Vec<usize>> = vector(&operands[0]).iter().map(register).collect();
            let a = vector(&operands[1]);
            // Factors of A and B are 1. Then, for operands in shared memory, whether they are transposed.
            let flags: Option<Vec<u64>> = operands[4..].iter().map(immediate).collect();
            let transposed = match (a.len(), &flags?[..]) {
                (1, [1, 1, 0, b]) | (4, [1, 1, b]) => *b == 1,
                _ => return None,
            };
            let (b, adds) = (operand(2), operand(3));
            Some(Action::Wgmma(Wgmma { columns, to: to?, a, b, adds, transposed }))
        }
        _ => None,
    }
}

/// Bits of a mask.
pub fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..32).filter(move |lane| mask >> lane & 1 == 1)
}

impl Block<'_> {
    /// Instructions of single threads.
    pub fn compute(&mut self, warp: usize, mask: u32, to: usize, from: &[Operand], apply: &Apply) {
        let mut values = [[0; 4]; 32];
        for (at, operand) in from.iter().enumerate() {
            let read = self.fetch(warp, operand);
            values
                .iter_mut()
                .zip(read)
                .for_each(|(lane, value)| lane[at] = value);
        }
        let mut results = [0; 32];
        for lane in lanes(mask) {
            results[lane] = apply(&values[lane]);
        }
        self.put(warp, mask, to, &results);
    }

    pub fn load(
        &mut self,
        warp: usize,
        mask: u32,
        from: (Space, u32, bool),
        to: &[Operand],
        address: &Operand,
    ) -> Result<(), Fault> {
        let (space, width, signed) = from;
        let bytes = width as usize / 8;
        let addresses = self.address(warp, address);
        let mut results = vec![[0u64; 32]; to.len()];
        for lane in lanes(mask) {
            let read = self.memory.load(space, addresses[lane], bytes * to.len())?;
            for (result, number) in results.iter_mut().zip(read.chunks_exact(bytes)) {
                let mut whole = [0; 8];
                whole[..bytes].copy_from_slice(number);
                let value = u64::from_le_bytes(whole);
                let rest = 64 - width;
                result[lane] = if signed { ((value << rest) as i64 >> rest) as u64 } else { value };
            }
        }
        self.put_all(warp, mask, to, &results);
        Ok(())
    }

    pub fn store(
        &mut self,
        warp: usize,
        mask: u32,
        to: (Space, u32),
        from: &[Operand],
        address: &Operand,
    ) -> Result<(), Fault> {
        let (space, width) = to;
        let bytes = width as usize / 8;
        let addresses = self.address(warp, address);
        let values: Vec<Lanes> = from.iter().map(|one| self.fetch(warp, one)).collect();
        for lane in lanes(mask) {
            let mut whole = [0; 32];
            for (at, value) in values.iter().enumerate() {
                whole[at * bytes..][..bytes].copy_from_slice(&value[lane].to_le_bytes()[..bytes]);
            }
            self.memory
                .store(space, addresses[lane], &whole[..bytes * from.len()])?;
        }
        Ok(())
    }

    /// One lane after the other.
    pub fn update(
        &mut self,
        warp: usize,
        mask: u32,
        at: (Space, u32, &Operand),
        to: &Operand,
        value: &Operand,
        apply: &Apply,
    ) -> Result<(), Fault> {
        let (space, width, address) = at;
        let bytes = width as usize / 8;
        let (addresses, values) = (self.address(warp, address), self.fetch(warp, value));
        let mut results = [0; 32];
        for lane in lanes(mask) {
            let mut whole = [0; 8];
            whole[..bytes].copy_from_slice(self.memory.load(space, addresses[lane], bytes)?);
            results[lane] = u64::from_le_bytes(whole);
            let new = apply(&[results[lane], values[lane], 0, 0]);
            self.memory
                .store(space, addresses[lane], &new.to_le_bytes()[..bytes])?;
        }
        self.put_all(warp, mask, std::slice::from_ref(to), &[results]);
        Ok(())
    }

    /// `shfl.sync`: the last operands are the limit with the mask of segments, and the lanes that take part.
    pub fn shuffle(
        &mut self,
        warp: usize,
        mask: u32,
        mode: &str,
        to: (usize, Option<usize>),
        from: &[Operand; 4],
    ) -> Result<(), Fault> {
        let [values, by, limits, members] = [0, 1, 2, 3].map(|at| self.fetch(warp, &from[at]));
        let (mut results, mut valid) = ([0; 32], [0; 32]);
        for lane in lanes(mask) {
            if members[lane] as u32 != mask {
                return fault(format!("lanes {mask:#x} meet, of {:#x}", members[lane] as u32));
            }
            let (own, by, limit) = (lane as i64, by[lane] as i64 & 31, limits[lane] as i64 & 31);
            let segment = limits[lane] as i64 >> 8 & 31;
            let (lowest, highest) = (own & segment, (own & segment) | (limit & !segment));
            let source = match mode {
                "bfly" => own ^ by,
                "up" => own - by,
                "down" => own + by,
                "idx" => lowest | (by & !segment),
                _ => return fault(format!("not known: shfl {mode}")),
            };
            let inside = if mode == "up" { source >= highest } else { source <= highest };
            let source = if inside { source } else { own };
            if mask >> source & 1 == 0 {
                return fault(format!("lane {lane} reads lane {source}, which is not there"));
            }
            (results[lane], valid[lane]) = (values[source as usize], u64::from(inside));
        }
        self.put(warp, mask, to.0, &results);
        if let Some(register) = to.1 {
            self.put(warp, mask, register, &valid);
        }
        Ok(())
    }

    pub fn vote(
        &mut self,
        warp: usize,
        mask: u32,
        all: bool,
        to: usize,
        from: &[Operand; 2],
    ) -> Result<(), Fault> {
        let [values, members] = [0, 1].map(|at| self.fetch(warp, &from[at]));
        if lanes(mask).any(|lane| members[lane] as u32 != mask) {
            return fault(format!("lanes {mask:#x} vote, not those named"));
        }
        let mut holds = lanes(mask).map(|lane| values[lane] & 1 == 1);
        let result = if all { holds.all(|one| one) } else { holds.any(|one| one) };
        self.put(warp, mask, to, &[u64::from(result); 32]);
        Ok(())
    }
}
