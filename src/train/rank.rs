//! One rank of a run: its place in the grid, and how it agrees with the others.

use super::launch::Device;
use crate::base::Problems;
use crate::comm::{Failed, Together, World};
use crate::device::Dead;
use crate::engine::Groups;
use crate::manifest::{Manifest, Topology};
use crate::plan::grid::{Grid, Place};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;

pub struct Rank<'a> {
    world: &'a World,
    pub grid: Grid,
    pub at: Place,
    together: Together,
}

/// Why all ranks end, as they agreed; one of them says it.
#[derive(Debug)]
pub struct Agreed {
    /// Exit code of every rank.
    pub code: u8,
    /// On the rank that says it.
    pub error: Option<anyhow::Error>,
}

impl fmt::Display for Agreed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            Some(error) => write!(f, "{error:#}"),
            None => write!(f, "another rank has said why the ranks end"),
        }
    }
}

impl std::error::Error for Agreed {}

/// The exit code that an error ends the program with.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    match () {
        _ if error.is::<Problems>() => 2,
        _ if error.is::<Failed>() => Failed::EXIT_CODE,
        _ => 1,
    }
}

impl<'a> Rank<'a> {
    /// Every rank of the world calls this.
    pub fn new(world: &'a World, topology: &Topology) -> Rank<'a> {
        let grid = topology.grid();
        let at = grid.place(world.rank());
        if world.size() > 1 {
            world.recorder().place(&at.name());
        }
        let tensor = world.group("control tensor", &grid.tensor_group(at));
        let data = world.group("control data", &grid.data_group(at));
        let pipeline = world.group("control pipeline", &grid.pipeline_group(at));
        let together = Together::new(world.rank(), vec![tensor, data, pipeline]);
        Rank { world, grid, at, together }
    }

    /// The groups that the engine computes with, from this rank's device.
    pub fn groups(&self, device: &Device, m: &Manifest) -> Result<Groups, Problems> {
        device.groups(self.world, m)
    }

    pub fn number(&self) -> usize {
        self.world.rank()
    }

    /// Whether this is the one that reports and decides.
    pub fn is_first(&self) -> bool {
        self.number() == 0
    }

    /// Prints a line, on one rank.
    pub fn say(&self, line: impl fmt::Display) {
        if self.is_first() {
            println!("{line}");
        }
    }

    /// What this rank does from now on, as a verdict on a hang is to call it.
    pub fn doing(&self, what: &str) {
        self.world.recorder().doing(what);
    }

    /// What this rank was last said to do.
    pub fn now_doing(&self) -> String {
        self.world.recorder().now_doing()
    }

    /// How many ranks say yes, for each of some questions.
    pub fn count<const N: usize>(&self, mine: [bool; N]) -> [usize; N] {
        let mut counts = mine.map(|yes| if yes { 1.0 } else { 0.0 });
        self.together.sum(&mut counts);
        counts.map(|count| count as usize)
    }

    /// What all ranks have come through, or none: where one has failed all give up, and the first
    /// of those that failed says why.
    pub fn all<T>(&self, mine: anyhow::Result<T>) -> anyhow::Result<T> {
        match self.count([mine.is_err()]) {
            [0] => mine,
            _ => Err(self.give_up(mine.err())),
        }
    }

    fn give_up(&self, mine: Option<anyhow::Error>) -> anyhow::Error {
        // What this rank has to say; of what was agreed before, only its speaker has anything.
        let mine = mine.and_then(|error| match error.downcast::<Agreed>() {
            Ok(agreed) => agreed.error,
            Err(error) => Some(self.named(error)),
        });
        let mut codes = vec![0.0; self.grid.size()];
        codes[self.number()] = mine.as_ref().map_or(0, exit_code) as f32;
        self.together.sum(&mut codes);
        let speaker = codes.iter().position(|code| *code > 0.0);
        let code = speaker.map_or(1, |rank| codes[rank] as u8);
        let error = mine.filter(|_| speaker == Some(self.number()));
        anyhow::Error::new(Agreed { code, error })
    }

    /// Of several ranks, one whose device failed is named.
    fn named(&self, error: anyhow::Error) -> anyhow::Error {
        match error.downcast_ref::<Dead>() {
            Some(Dead { device, why }) if self.grid.size() > 1 => {
                let (name, doing) = (self.world.name(), self.now_doing());
                Failed::new(format!("{name} failed: {device}: {why}; last event: {doing}")).into()
            }
            _ => error,
        }
    }

    /// What the first rank does alone, known to all.
    pub fn first<T, F>(&self, what: F) -> anyhow::Result<T>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce() -> anyhow::Result<T>,
    {
        let done = if self.is_first() { what().map(Some) } else { Ok(None) };
        let done = self.all(done)?;
        let told = done.map(|value| serde_json::to_vec(&value).expect("plain data"));
        let heard = self.together.broadcast(&told.unwrap_or_default());
        Ok(serde_json::from_slice(&heard)?)
    }

    /// What each rank has to say, by rank, on the first; empty on the others.
    pub fn gather<T: Serialize + DeserializeOwned>(&self, mine: &T) -> anyhow::Result<Vec<T>> {
        let all = self.together.gather(&serde_json::to_vec(mine)?);
        all.iter().map(|said| Ok(serde_json::from_slice(said)?)).collect()
    }
}
