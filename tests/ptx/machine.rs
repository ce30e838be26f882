//! The machine: blocks one after the other, whose warps take turns; lanes of a warp that went different
//! ways, lowest instruction first.

use crate::actions::{Action, Instruction, Program, lanes};
use crate::memory::{Fault, Global, Memory, NOTHING, fault};
use crate::mma::CopyGroups;
use crate::parse::Operand;
use crate::random::Random;
use crate::tensor_map::BoxCopy;
use crate::wgmma::Products;
use std::collections::{BTreeMap, BTreeSet};

/// A value of each lane.
pub type Lanes = [u64; 32];

/// Registers of a multiprocessor.
const REGISTERS: u64 = 65_536;

/// Which warp runs next, and when copies arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The warp at the lowest instruction, up to its next branch; copies arrive when nothing else can run,
    /// the last one first.
    Lowest,
    /// A warp by chance for some instructions; copies arrive at any time, in any order.
    Random(u64),
}

/// Launch of a kernel.
pub struct Launch<'a> {
    pub grid: [usize; 3],
    pub block: [usize; 2],
    /// Bytes of dynamic shared memory.
    pub shared: usize,
    pub parameters: &'a [u8],
    pub order: Order,
}

#[derive(Clone)]
pub struct Warp {
    /// Instruction of each lane, and the lanes that have not returned.
    at: [usize; 32],
    alive: u32,
    /// Instructions that it issued.
    pub issued: u64,
    registers: u64,
}

/// Threads that wait for each other: `bar`.
#[derive(Default)]
struct Barrier {
    arrived: BTreeSet<usize>,
    waiting: BTreeSet<usize>,
    released: BTreeSet<usize>,
    warps: Option<usize>,
}

/// `mbarrier`: arrivals and bytes that its phase waits for.
pub struct Transactions {
    count: i64,
    pending: i64,
    bytes: i64,
    phase: u64,
}

pub struct Block<'a> {
    pub program: &'a Program,
    pub memory: Memory<'a>,
    pub warps: Vec<Warp>,
    registers: Vec<u64>,
    indices: BTreeMap<&'static str, u64>,
    block: [usize; 2],
    barriers: BTreeMap<u64, Barrier>,
    pub transactions: BTreeMap<u64, Transactions>,
    /// Copies by `cp.async` and products by `wgmma` of each warp, and copies of boxes.
    pub copies: Vec<CopyGroups>,
    pub products: Vec<Products>,
    pub boxes: Vec<BoxCopy>,
}

/// Result of a warp's turn.
#[derive(PartialEq, Eq)]
enum Step {
    Moved,
    Waits,
}

/// Runs all blocks, in an order by chance if that of the warps is. Returns the instructions that were issued.
pub fn launch(program: &Program, global: &mut Global, launch: &Launch) -> Result<u64, Fault> {
    let [columns, rows, layers] = launch.grid;
    let mut blocks: Vec<usize> = (0..columns * rows * layers).collect();
    if let Order::Random(seed) = launch.order {
        Random(seed).shuffle(&mut blocks);
    }
    let mut issued = 0;
    for at in blocks {
        let block = [at % columns, at / columns % rows, at / columns / rows];
        let warps = run_block(program, global, launch, block)?;
        issued += warps.iter().sum::<u64>();
    }
    Ok(issued)
}

/// Runs one block, and returns the instructions that each warp issued.
pub fn run_block(
    program: &Program,
    global: &mut Global,
    launch: &Launch,
    index: [usize; 3],
) -> Result<Vec<u64>, Fault> {
    let mut block = Block::new(program, global, launch, index);
    let mut random = match launch.order {
        Order::Lowest => None,
        Order::Random(seed) => {
            Some(Random(seed ^ (index[0] << 20 | index[1] << 10 | index[2]) as u64))
        }
    };
    block.run(&mut random).map_err(|Fault(text)| {
        Fault(format!("{} at block {index:?}: {text}", program.kernel.name))
    })?;
    Ok(block.warps.iter().map(|warp| warp.issued).collect())
}

impl<'a> Block<'a> {
    fn new(
        program: &'a Program,
        global: &'a mut Global,
        launch: &Launch<'a>,
        index: [usize; 3],
    ) -> Block<'a> {
        let kernel = &program.kernel;
        let threads = launch.block[0] * launch.block[1];
        assert!(threads.is_multiple_of(32) && threads <= kernel.threads, "{threads} threads");
        assert_eq!(launch.parameters.len(), kernel.parameters, "bytes of the arguments");
        let warps = threads / 32;
        let warp = Warp { at: [0; 32], alive: u32::MAX, issued: 0, registers: 0 };
        let names = ["ctaid.x", "ctaid.y", "ctaid.z", "nctaid.x", "nctaid.y", "nctaid.z"];
        let numbers = index
            .into_iter()
            .chain(launch.grid)
            .map(|number| number as u64);
        let shared = vec![NOTHING; kernel.shared + launch.shared];
        // Registers before their first write.
        let registers = kernel
            .registers
            .iter()
            .map(|width| cut(0xcdcd_cdcd_cdcd_cdcd, *width));
        let registers: Vec<u64> = registers.flat_map(|value| [value; 32]).collect();
        Block {
            program,
            memory: Memory { global, shared, parameters: launch.parameters },
            warps: vec![warp; warps],
            registers: registers.repeat(warps),
            indices: names.into_iter().zip(numbers).collect(),
            block: launch.block,
            barriers: BTreeMap::new(),
            transactions: BTreeMap::new(),
            copies: (0..warps).map(|_| CopyGroups::default()).collect(),
            products: (0..warps).map(|_| Products::default()).collect(),
            boxes: Vec::new(),
        }
    }

    fn run(&mut self, random: &mut Option<Random>) -> Result<(), Fault> {
        loop {
            let mut ready: Vec<usize> = (0..self.warps.len())
                .filter(|warp| self.warps[*warp].alive != 0)
                .collect();
            if ready.is_empty() {
                break self.end();
            }
            let mut burst = usize::MAX;
            match random {
                None => ready.sort_by_key(|warp| self.warps[*warp].lowest()),
                Some(random) => {
                    random.shuffle(&mut ready);
                    burst = 1 + random.below(40);
                    if !self.boxes.is_empty() && random.below(5) == 0 {
                        let arrives = random.below(self.boxes.len());
                        self.deliver(arrives)?;
                    }
                }
            }
            let mut moved = false;
            for warp in ready {
                if self.turn(warp, burst)? == Step::Moved {
                    moved = true;
                    break;
                }
            }
            match (moved, self.boxes.len()) {
                (true, _) => (),
                (false, 0) => return fault(format!("nothing can run: {}", self.places())),
                (false, count) => {
                    let arrives = random
                        .as_mut()
                        .map_or(count - 1, |random| random.below(count));
                    self.deliver(arrives)?;
                }
            }
        }
    }

    /// Instructions at which warps are.
    fn places(&self) -> String {
        let mut places = BTreeMap::<&str, usize>::new();
        for warp in &self.warps {
            for lane in lanes(warp.alive) {
                let text = &self.program.instructions[warp.at[lane]].text;
                *places.entry(text).or_default() += 1;
            }
        }
        let places = places
            .iter()
            .map(|(text, count)| format!("{count} threads at `{text}`"));
        places.collect::<Vec<_>>().join(", ")
    }

    /// Nothing may be pending when all threads have returned.
    fn end(&mut self) -> Result<(), Fault> {
        if let Some((number, _)) = self
            .barriers
            .iter()
            .find(|(_, one)| !one.arrived.is_empty())
        {
            return fault(format!("barrier {number} still waits at the end"));
        }
        if !self.boxes.is_empty() || self.transactions.values().any(|one| one.bytes != 0) {
            return fault(
                "a copy by TMA is pending at the end, or its bytes are not those expected",
            );
        }
        if self.copies.iter().any(|one| one.are_pending()) {
            return fault("a copy by cp.async is pending at the end");
        }
        let groups = self.products.chunks(4);
        if groups
            .into_iter()
            .any(|group| group.iter().any(|one| !one.agrees(&group[0])))
        {
            return fault("the warps of a warpgroup executed different products");
        }
        if self.products.iter().any(Products::are_pending) {
            return fault("a product is pending at the end");
        }
        let registers: u64 = self.warps.iter().map(|warp| 32 * warp.registers).sum();
        if registers > REGISTERS {
            fault(format!("setmaxnreg gives {registers} registers of {REGISTERS}"))
        } else {
            Ok(())
        }
    }

    /// Runs the lanes of a warp at its lowest instruction, or at a higher one if these wait.
    fn turn(&mut self, warp: usize, burst: usize) -> Result<Step, Fault> {
        let of = &self.warps[warp];
        let mut places: Vec<usize> = lanes(of.alive).map(|lane| of.at[lane]).collect();
        places.sort_unstable();
        places.dedup();
        for (order, place) in places.iter().enumerate() {
            let of = &self.warps[warp];
            let mask = lanes(of.alive).filter(|lane| of.at[*lane] == *place);
            let mask = mask.fold(0, |mask, lane| mask | 1 << lane);
            let stop = places.get(order + 1).copied().unwrap_or(usize::MAX);
            if self.advance(warp, mask, *place, stop, burst)? == Step::Moved {
                return Ok(Step::Moved);
            }
        }
        Ok(Step::Waits)
    }

    /// Executes up to a branch, an instruction that waits, or `stop`, where other lanes are.
    fn advance(
        &mut self,
        warp: usize,
        mask: u32,
        mut at: usize,
        stop: usize,
        mut burst: usize,
    ) -> Result<Step, Fault> {
        let program = self.program;
        let mut step = Step::Waits;
        while burst > 0 && at < stop {
            let Some(instruction) = program.instructions.get(at) else {
                return fault("beyond the last instruction");
            };
            let active = self.active(warp, mask, instruction);
            let place = |Fault(text)| Fault(format!("{text}: {}", instruction.text));
            match &instruction.action {
                Action::Branch { to } => {
                    self.warps[warp].issued += 1;
                    lanes(mask).for_each(|lane| self.warps[warp].at[lane] = at + 1);
                    lanes(active).for_each(|lane| self.warps[warp].at[lane] = *to);
                    return Ok(Step::Moved);
                }
                Action::Exit => {
                    self.warps[warp].issued += 1;
                    self.warps[warp].alive &= !active;
                    lanes(mask).for_each(|lane| self.warps[warp].at[lane] = at + 1);
                    return Ok(Step::Moved);
                }
                action if active != 0 => {
                    if self.waits(warp, active, action).map_err(place)? {
                        break;
                    }
                    self.execute(warp, active, action, instruction)
                        .map_err(place)?;
                }
                _ => (),
            }
            self.warps[warp].issued += 1;
            (at, step, burst) = (at + 1, Step::Moved, burst - 1);
        }
        lanes(mask).for_each(|lane| self.warps[warp].at[lane] = at);
        Ok(step)
    }

    /// Lanes whose predicate holds.
    fn active(&self, warp: usize, mask: u32, instruction: &Instruction) -> u32 {
        let Some((register, negated)) = instruction.predicate else { return mask };
        let values = self.row(warp, register);
        let holds = |lane: &usize| (values[*lane] & 1 == 1) != negated;
        lanes(mask)
            .filter(holds)
            .fold(0, |mask, lane| mask | 1 << lane)
    }

    /// Whether the lanes must wait: for others of their warp, for a barrier or a phase.
    fn waits(&mut self, warp: usize, mask: u32, action: &Action) -> Result<bool, Fault> {
        let together = matches!(
            action,
            Action::Shuffle { .. }
                | Action::Vote { .. }
                | Action::Converge
                | Action::Barrier { .. }
                | Action::LoadMatrices { .. }
                | Action::Multiply { .. }
                | Action::CommitCopies
                | Action::WaitForCopies { .. }
                | Action::Registers { .. }
                | Action::Wgmma(_)
                | Action::CommitProducts
                | Action::WaitForProducts { .. }
        );
        if together && mask != self.warps[warp].alive {
            return Ok(true);
        }
        match action {
            Action::Barrier { arrives, number, threads } => {
                let number = self.same(warp, mask, number)?;
                let threads = match threads {
                    Some(threads) => Some(self.same(warp, mask, threads)? as usize),
                    None => None,
                };
                Ok(!self.meet(warp, *arrives, number, threads)?)
            }
            Action::WaitFor { at, parity, .. } => {
                let (places, parities) = (self.address(warp, at), self.fetch(warp, parity));
                let mut over = true;
                for lane in lanes(mask) {
                    over &= self.barrier(places[lane])?.phase != parities[lane] & 1;
                }
                Ok(!over)
            }
            _ => Ok(false),
        }
    }

    /// Whether the warp may pass barrier `number`; without `threads` it is one of all that have not returned.
    fn meet(
        &mut self,
        warp: usize,
        arrives: bool,
        number: u64,
        threads: Option<usize>,
    ) -> Result<bool, Fault> {
        let all: BTreeSet<usize> = (0..self.warps.len())
            .filter(|warp| self.warps[*warp].alive != 0)
            .collect();
        let barrier = self.barriers.entry(number).or_default();
        if barrier.released.remove(&warp) {
            return Ok(true);
        }
        let warps = match threads {
            Some(threads) if !threads.is_multiple_of(32) => {
                return fault(format!("a barrier of {threads} threads"));
            }
            Some(threads) => threads / 32,
            None => all.len(),
        };
        if barrier.waiting.contains(&warp) {
            // One that has returned since is no longer waited for.
            if threads.is_none() && barrier.arrived.is_superset(&all) {
                barrier.release();
                return Ok(barrier.released.remove(&warp));
            }
            return Ok(false);
        }
        if threads.is_some() && barrier.warps.is_some_and(|known| known != warps) {
            return fault("warps disagree about the threads of a barrier");
        }
        barrier.warps = threads.map(|_| warps);
        if !barrier.arrived.insert(warp) {
            return fault("a warp arrives twice at a barrier");
        }
        if !arrives {
            barrier.waiting.insert(warp);
        }
        if barrier.arrived.len() >= warps {
            barrier.release();
        }
        Ok(arrives || barrier.released.remove(&warp))
    }

    fn execute(
        &mut self,
        warp: usize,
        mask: u32,
        action: &Action,
        instruction: &Instruction,
    ) -> Result<(), Fault> {
        match action {
            Action::Compute { to, from, apply } => self.compute(warp, mask, *to, from, apply),
            Action::Load { space, width, signed, to, address } => {
                self.load(warp, mask, (*space, *width, *signed), to, address)?;
            }
            Action::Store { space, width, from, address } => {
                self.store(warp, mask, (*space, *width), from, address)?;
            }
            Action::Pack { to, from, width } => {
                let mut packed = [0; 32];
                for (at, part) in from.iter().enumerate() {
                    let values = self.fetch(warp, part);
                    let place = at as u32 * width;
                    packed
                        .iter_mut()
                        .zip(values)
                        .for_each(|(all, part)| *all |= cut(part, *width) << place);
                }
                self.put(warp, mask, *to, &packed);
            }
            Action::Unpack { to, from, width } => {
                let values = self.fetch(warp, from);
                let part =
                    |at: usize| values.map(|value| cut(value >> (at as u32 * width), *width));
                let parts: Vec<Lanes> = (0..to.len()).map(part).collect();
                self.put_all(warp, mask, to, &parts);
            }
            Action::Atomic { space, width, to, address, value, apply } => {
                self.update(warp, mask, (*space, *width, address), to, value, apply)?;
            }
            Action::Shuffle { mode, to, valid, from } => {
                self.shuffle(warp, mask, mode, (*to, *valid), from)?
            }
            Action::Vote { all, to, from } => self.vote(warp, mask, *all, *to, from)?,
            Action::LoadMatrices { to, address, transposed } => {
                self.load_matrices(warp, mask, to, address, *transposed)?;
            }
            Action::Multiply { format, to, from } => self.multiply(warp, *format, to, from),
            Action::Copy { to, from, bytes, there } => {
                self.copy(warp, mask, (to, from), *bytes, there.as_ref())?;
            }
            Action::CommitCopies => self.copies[warp].commit(),
            Action::WaitForCopies { pending } => self.finish_copies(warp, *pending)?,
            Action::Registers { count } => self.warps[warp].registers = *count,
            Action::InitBarrier { at, arrivals } => {
                let (places, counts) = (self.address(warp, at), self.fetch(warp, arrivals));
                for lane in lanes(mask) {
                    let count = counts[lane] as i64;
                    let new = Transactions { count, pending: count, bytes: 0, phase: 0 };
                    self.transactions.insert(places[lane], new);
                }
            }
            Action::ArriveAt { at, expects } => {
                let places = self.address(warp, at);
                let expected = expects
                    .as_ref()
                    .map_or([0; 32], |bytes| self.fetch(warp, bytes));
                for lane in lanes(mask) {
                    self.barrier(places[lane])?
                        .arrive(expected[lane] as i64, 1)?;
                }
            }
            Action::WaitFor { to, .. } => self.put(warp, mask, *to, &[1; 32]),
            Action::LoadBox { to, map, barrier } => self.load_box(warp, mask, to, map, barrier)?,
            Action::Wgmma(product) => self.start_product(warp, mask, product, &instruction.text)?,
            Action::CommitProducts => self.products[warp].commit(),
            Action::WaitForProducts { pending } => self.finish_products(warp, *pending)?,
            Action::Converge | Action::Barrier { .. } | Action::Fence => (),
            Action::Branch { .. } | Action::Exit => unreachable!("`advance` has them"),
        }
        Ok(())
    }

    /// Barrier of transactions at that place in shared memory.
    pub fn barrier(&mut self, at: u64) -> Result<&mut Transactions, Fault> {
        let known = self.transactions.get_mut(&at);
        known.ok_or_else(|| Fault(format!("no mbarrier was initialized at {at}")))
    }

    fn row(&self, warp: usize, register: usize) -> &[u64] {
        let at = (warp * self.program.kernel.registers.len() + register) * 32;
        &self.registers[at..at + 32]
    }

    /// Values of an operand.
    pub fn fetch(&self, warp: usize, operand: &Operand) -> Lanes {
        match operand {
            Operand::Register(number) => self.row(warp, *number).try_into().unwrap(),
            Operand::Immediate(number) => [*number; 32],
            Operand::Special(name) => {
                let [x, y] = self.block;
                let thread = |lane: usize| 32 * warp + lane;
                std::array::from_fn(|lane| match name.as_str() {
                    "tid.x" => (thread(lane) % x) as u64,
                    "tid.y" => (thread(lane) / x) as u64,
                    "ntid.x" => x as u64,
                    "ntid.y" => y as u64,
                    "laneid" => lane as u64,
                    name => self.indices[name],
                })
            }
            other => panic!("{other:?} has no value"),
        }
    }

    /// An operand that must be the same in all lanes.
    pub fn same(&self, warp: usize, mask: u32, operand: &Operand) -> Result<u64, Fault> {
        let values = self.fetch(warp, operand);
        let first = values[mask.trailing_zeros() as usize];
        if lanes(mask).all(|lane| values[lane] == first) {
            Ok(first)
        } else {
            fault("lanes of a warp have different operands")
        }
    }

    pub fn address(&self, warp: usize, operand: &Operand) -> Lanes {
        match operand {
            Operand::Memory(base, offset, _) => self
                .fetch(warp, base)
                .map(|base| base.wrapping_add(*offset as u64)),
            other => panic!("{other:?} is not an address"),
        }
    }

    pub fn put(&mut self, warp: usize, mask: u32, register: usize, values: &Lanes) {
        let width = self.program.kernel.registers[register];
        let at = (warp * self.program.kernel.registers.len() + register) * 32;
        let row = &mut self.registers[at..at + 32];
        for lane in lanes(mask) {
            row[lane] = cut(values[lane], width);
        }
    }

    pub fn put_all(&mut self, warp: usize, mask: u32, to: &[Operand], values: &[Lanes]) {
        for (operand, values) in to.iter().zip(values) {
            if let Operand::Register(number) = operand {
                self.put(warp, mask, *number, values);
            }
        }
    }
}

fn cut(value: u64, width: u32) -> u64 {
    if width == 64 { value } else { value & ((1 << width) - 1) }
}

impl Warp {
    fn lowest(&self) -> usize {
        lanes(self.alive)
            .map(|lane| self.at[lane])
            .min()
            .unwrap_or(0)
    }
}

impl Barrier {
    fn release(&mut self) {
        self.released.append(&mut self.waiting);
        self.arrived.clear();
        self.warps = None;
    }
}

impl Transactions {
    /// Arrivals, and bytes that are expected, or negative: that have arrived.
    pub fn arrive(&mut self, bytes: i64, arrivals: i64) -> Result<(), Fault> {
        self.bytes += bytes;
        self.pending -= arrivals;
        if self.pending < 0 {
            return fault("more arrivals at an mbarrier than its count");
        }
        if self.pending == 0 && self.bytes == 0 {
            self.phase ^= 1;
            self.pending = self.count;
        }
        Ok(())
    }
}
