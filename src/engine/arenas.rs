//! Memory regions of a rank, on the device and on its host, and their sizes.

use base::Bytes;
use device::{Arena, Backend, MemoryKind, OutOfMemory};
use std::fmt;

/// One region for each purpose.
pub struct Arenas {
    pub weights: Arena,
    pub grads: Arena,
    pub optimizer: Arena,
    pub saved: Arena,
    pub workspace: Arena,
    pub inputs: Arena,
    /// Host arenas: weights, gradients, optimizer states, and staging buffers for transfers.
    pub host_weights: Arena,
    pub host_grads: Arena,
    pub host_states: Arena,
    pub staging: Arena,
}

impl Arenas {
    pub fn measuring() -> Arenas {
        Arenas {
            weights: Arena::measuring(),
            grads: Arena::measuring(),
            optimizer: Arena::measuring(),
            saved: Arena::measuring(),
            workspace: Arena::measuring(),
            inputs: Arena::measuring(),
            host_weights: Arena::measuring_in(MemoryKind::Host),
            host_grads: Arena::measuring_in(MemoryKind::Host),
            host_states: Arena::measuring_in(MemoryKind::Host),
            staging: Arena::measuring_in(MemoryKind::Host),
        }
    }

    /// Reserves memory for everything that was laid out in the measuring arenas.
    pub fn reserve(&self, be: &dyn Backend) -> Result<Arenas, OutOfMemory> {
        Ok(Arenas {
            weights: Arena::new(be, self.weights.peak())?,
            grads: Arena::new(be, self.grads.peak())?,
            optimizer: Arena::new(be, self.optimizer.peak())?,
            saved: Arena::new(be, self.saved.peak())?,
            workspace: Arena::new(be, self.workspace.peak())?,
            inputs: Arena::new(be, self.inputs.peak())?,
            host_weights: Arena::on_host(be, self.host_weights.peak())?,
            host_grads: Arena::on_host(be, self.host_grads.peak())?,
            host_states: Arena::on_host(be, self.host_states.peak())?,
            staging: Arena::on_host(be, self.staging.peak())?,
        })
    }

    /// Runs `lay_out` twice: once to measure, then in memory reserved for it.
    pub fn reserve_for<T>(
        be: &dyn Backend,
        lay_out: impl Fn(&Arenas) -> T,
    ) -> Result<(T, MemoryPlan), OutOfMemory> {
        let measured = Arenas::measuring();
        lay_out(&measured);
        let arenas = measured.reserve(be)?;
        let value = lay_out(&arenas);
        Ok((value, arenas.memory_plan(be.workspace())))
    }

    /// Reserved bytes by purpose. `workspace` is the memory that the device's ops hold.
    pub fn memory_plan(&self, workspace: Bytes) -> MemoryPlan {
        let bytes = |arena: &Arena| Bytes(arena.peak() as u64);
        let mut rows = vec![
            ("weights", bytes(&self.weights)),
            ("gradients", bytes(&self.grads)),
            ("optimizer", bytes(&self.optimizer)),
            ("activations", bytes(&self.saved)),
            ("workspace", bytes(&self.workspace)),
            ("inputs", bytes(&self.inputs)),
        ];
        if workspace.0 > 0 {
            rows.push(("library workspace", workspace));
        }
        let on_host = [
            ("weights", &self.host_weights),
            ("gradients", &self.host_grads),
            ("optimizer", &self.host_states),
            ("copies", &self.staging),
        ];
        let host = on_host
            .map(|(name, arena)| (name, bytes(arena)))
            .into_iter()
            .filter(|(_, bytes)| bytes.0 > 0)
            .collect();
        MemoryPlan { rows, host }
    }
}

/// Bytes that a rank reserves, by purpose. Displays as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    pub rows: Vec<(&'static str, Bytes)>,
    /// Host memory, by purpose.
    pub host: Vec<(&'static str, Bytes)>,
}

impl MemoryPlan {
    /// Total on the device.
    pub fn total(&self) -> Bytes {
        sum(&self.rows)
    }

    pub fn host_total(&self) -> Bytes {
        sum(&self.host)
    }
}

fn sum(rows: &[(&'static str, Bytes)]) -> Bytes {
    Bytes(rows.iter().map(|(_, bytes)| bytes.0).sum())
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, bytes) in &self.rows {
            write!(f, "{name} {bytes} · ")?;
        }
        write!(f, "total {}", self.total())?;
        if self.host.is_empty() {
            return Ok(());
        }
        write!(f, "; on the host ")?;
        for (name, bytes) in &self.host {
            write!(f, "{name} {bytes} · ")?;
        }
        write!(f, "total {}", self.host_total())
    }
}
