//! One rank of a run: its coordinates in the grid, and the small collectives by which ranks agree.

use super::exit;
use anyhow::Result;
use comm::{self, ClockOffset, Failed, HostCollectives, World};
use device::Dead;
use manifest::Topology;
use plan::grid::{Coord, GRADIENT_AXES, Grid, SHARES, STAGES};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;

/// Rank that is running, on its own thread. Its collectives must be called by all ranks, in one order.
pub struct Rank<'a> {
    world: &'a World,
    pub grid: Grid,
    pub coord: Coord,
    host: HostCollectives,
}

/// Error on which all ranks agreed: they end with one exit code, and one of them prints it.
#[derive(Debug)]
pub struct CollectiveError {
    /// Exit code of all ranks.
    pub code: u8,
    /// Error, on the rank that prints it.
    pub error: Option<anyhow::Error>,
}

impl fmt::Display for CollectiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            Some(error) => write!(f, "{error:#}"),
            None => write!(f, "another rank prints why the ranks end"),
        }
    }
}

impl std::error::Error for CollectiveError {}

impl<'a> Rank<'a> {
    /// Creates the control groups. A collective of every rank of the world.
    pub fn new(world: &'a World, topology: &Topology) -> Rank<'a> {
        let grid = topology.grid();
        let coord = grid.coord(world.rank());
        if world.size() > 1 {
            world.recorder().set_coord(&coord.name());
        }
        let groups = [
            ("control tensor", SHARES),
            ("control data", GRADIENT_AXES),
            ("control pipeline", STAGES),
        ]
        .map(|(name, axes)| world.group(name, &grid.group(coord, axes)));
        let host = HostCollectives::new(world.rank(), groups.into());
        Rank { world, grid, coord, host }
    }

    pub fn world(&self) -> &World {
        self.world
    }

    pub fn number(&self) -> usize {
        self.world.rank()
    }

    /// Whether this is rank 0, which reports and decides.
    pub fn is_first(&self) -> bool {
        self.number() == 0
    }

    /// Offset of this rank's clock from rank 0's. A collective.
    pub fn clock_offset(&self) -> ClockOffset {
        self.host.clock_offset(comm::clock_id(), comm::now_ns)
    }

    /// Sets this rank's phase, which is shown in a hang diagnosis.
    pub fn set_phase(&self, what: &str) {
        tracing::trace!("{what}");
        self.world.recorder().set_phase(what);
    }

    /// Current phase of this rank.
    pub fn current_phase(&self) -> String {
        self.world.recorder().phase()
    }

    /// Number of ranks on which each flag is true (an all-reduce).
    pub fn count_ranks<const N: usize>(&self, mine: [bool; N]) -> [usize; N] {
        let mut counts = mine.map(|yes| if yes { 1.0 } else { 0.0 });
        self.host.sum(&mut counts);
        counts.map(|count| count as usize)
    }

    /// Runs a phase that every rank executes separately. It is named in a hang diagnosis, and
    /// succeeds on all ranks or stops all of them. `work` calls no collective.
    pub fn run_phase<T>(&self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.enter_phase(name);
        self.agree(work())
    }

    /// Runs a phase on rank 0, whose result all ranks receive.
    pub fn run_phase_on_rank0<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.enter_phase(name);
        self.on_first(work)
    }

    fn enter_phase(&self, name: &str) {
        tracing::debug!("{name}");
        self.world.recorder().set_phase(name);
    }

    /// Waits without a time limit until `ready` holds on every rank. Each call of `ready` must return
    /// within about a second; the ranks synchronise between two calls. If it fails on one rank, all
    /// ranks fail.
    pub fn wait_until(&self, mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
        loop {
            let mine = ready();
            let [ready, failed] = self.count_ranks([matches!(mine, Ok(true)), mine.is_err()]);
            if failed > 0 {
                return self.agree(mine.map(drop));
            }
            if ready == self.grid.size() {
                return Ok(());
            }
        }
    }

    /// This rank's result if all ranks succeeded. Otherwise fails on all of them; the lowest failed
    /// rank prints the error.
    pub fn agree<T>(&self, mine: Result<T>) -> Result<T> {
        match self.count_ranks([mine.is_err()]) {
            [0] => mine,
            _ => Err(self.collective_error(mine.err())),
        }
    }

    fn collective_error(&self, mine: Option<anyhow::Error>) -> anyhow::Error {
        // Error that this rank could print. Only the printing rank of an earlier `CollectiveError`
        // has one.
        let printable = match mine.map(|error| error.downcast::<CollectiveError>()) {
            Some(Ok(agreed)) => agreed.error,
            Some(Err(error)) => Some(self.name_device_error(error)),
            None => None,
        };
        let mut codes = vec![0.0; self.grid.size()];
        if let Some(error) = &printable {
            codes[self.number()] = f32::from(exit::code_and_line(error).0);
        }
        self.host.sum(&mut codes);
        let printer = codes.iter().position(|code| *code > 0.0);
        let code = printer.map_or(1, |rank| codes[rank] as u8);
        let error = printable.filter(|_| printer == Some(self.number()));
        anyhow::Error::new(CollectiveError { code, error })
    }

    /// Adds the rank's name to the error of a failed device, if there are several ranks.
    fn name_device_error(&self, error: anyhow::Error) -> anyhow::Error {
        match error.downcast_ref::<Dead>() {
            Some(Dead { device, why }) if self.grid.size() > 1 => {
                let name = self.world.name();
                let doing = self.current_phase();
                Failed::new(format!("{name} failed: {device}: {why}; last event: {doing}")).into()
            }
            _ => error,
        }
    }

    /// Runs `what` on rank 0 and broadcasts its result.
    pub fn on_first<T, F>(&self, what: F) -> Result<T>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce() -> Result<T>,
    {
        let result = self.agree(if self.is_first() { what().map(Some) } else { Ok(None) })?;
        let bytes = match result {
            Some(value) => serde_json::to_vec(&value).expect("plain data"),
            None => Vec::new(),
        };
        let received = self.host.broadcast(&bytes);
        Ok(serde_json::from_slice(&received)?)
    }

    /// Every rank's value, by rank, on rank 0; empty on the others.
    pub fn gather<T: Serialize + DeserializeOwned>(&self, mine: &T) -> Result<Vec<T>> {
        let all = self.host.gather(&serde_json::to_vec(mine)?);
        all.iter()
            .map(|value| Ok(serde_json::from_slice(value)?))
            .collect()
    }

    /// Every rank's value, by rank, on every rank.
    pub fn all_gather<T: Serialize + DeserializeOwned>(&self, mine: &T) -> Result<Vec<T>> {
        let all: Vec<T> = self.gather(mine)?;
        let received = self.host.broadcast(&serde_json::to_vec(&all)?);
        Ok(serde_json::from_slice(&received)?)
    }
}
