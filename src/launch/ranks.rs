//! Starts the ranks, as threads of this process, or as one rank per process under a launcher (srun,
//! torchrun, or `supervise::start_processes`), and opens the device of each. The only place that chooses a backend.

mod device;

pub use device::{Device, GroupFactory, LocalRank, gpu_for_each_rank, name_rank};

use super::exit::AlreadyPrinted;
use super::messages::Messages;
use super::rank::{CollectiveError, Rank};
use super::run_folder::{self, job_folder};
use super::signals::ExitOnSignal;
use ::device::{Dead, Gpu};
use anyhow::Context;
use base::Problems;
use comm::tcp::{self, Join};
use comm::{self, Failed, LauncherEnv, RENDEZVOUS, Recorder, Watchdog, World, threads};
use manifest::{DeviceChoice, Loaded, Manifest, Ranks};
use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// Kind of ranks that a launcher started.
const PROCESSES: &str = "processes";

/// The ranks of this process.
pub struct LocalRanks {
    worlds: Vec<(World, LocalRank)>,
    /// Name of this machine.
    pub node: String,
    /// CPU threads of each rank.
    pub threads: usize,
    /// Kind of the ranks, as printed at the start: "threads of a process" or "processes".
    pub kind: &'static str,
}

/// Cleanup for a command that handles signals only once it has its ranks: until this is dropped, a
/// stop signal removes the files of the rendezvous. None if there is no other process.
pub fn clean_up_on_signal(m: &Manifest) -> anyhow::Result<Option<ExitOnSignal>> {
    let Some(launch) = launcher(m)?.filter(|launch| launch.world > 1) else { return Ok(None) };
    let folder = m.log.folder.clone();
    let created = run_folder::outermost_missing(&folder);
    let handler = ExitOnSignal::listen(move || {
        tcp::forget_secret(&folder, &launch.job);
        // Unless a run is there.
        match &created {
            Some(outermost) => run_folder::remove_unused(&folder, outermost),
            None => drop(std::fs::remove_dir(&folder)),
        }
    })?;
    Ok(Some(handler))
}

/// Loads the manifest of a command that starts ranks. The replicas of `topology.data: auto` follow from
/// the launcher's ranks; without a launcher from this machine's GPUs, and on CPUs it is one replica. The
/// replicas of `topology.shard: node` follow from the launcher's ranks on this node.
pub fn load(path: &Path, sets: &[String]) -> anyhow::Result<Loaded> {
    let loaded = load_replicas(path, sets)?;
    match launcher(&loaded.manifest)? {
        Some(launch) if launch.world > 1 => Ok(loaded.with_node(launch.local_world)?),
        _ => Ok(loaded),
    }
}

fn load_replicas(path: &Path, sets: &[String]) -> anyhow::Result<Loaded> {
    let loaded = manifest::load_for(path, sets, Ranks::OneReplica)?;
    if !loaded.replicas_are_auto {
        return Ok(loaded);
    }
    let m = &loaded.manifest;
    let replica = m.topology.ranks();
    let launched = launcher(m)?.map(|launch| launch.world);
    let ranks = match (launched, m.train.device) {
        (Some(world), _) if world > 1 => world,
        (_, DeviceChoice::Cpu) => replica,
        _ => Gpu::count().max(replica) / replica * replica,
    };
    manifest::load_for(path, sets, Ranks::Number(ranks))
}

impl LocalRanks {
    /// All ranks of the manifest as threads, or the one rank that a launcher assigned to this
    /// process. `options` must be equal on all ranks, as the manifest must.
    pub fn rendezvous(loaded: &Loaded, options: &str) -> anyhow::Result<LocalRanks> {
        LocalRanks::connect(loaded, options, true)
    }

    /// As `rendezvous`, for a command that leaves no folder: a failure writes no dump.
    pub fn rendezvous_without_dumps(loaded: &Loaded, options: &str) -> anyhow::Result<LocalRanks> {
        LocalRanks::connect(loaded, options, false)
    }

    fn connect(loaded: &Loaded, options: &str, writes_dumps: bool) -> anyhow::Result<LocalRanks> {
        let m = &loaded.manifest;
        let ranks = loaded.manifest.topology.ranks();
        let launcher = launcher(m)?;
        let alone = launcher.as_ref().is_none_or(|launch| launch.world == 1);
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let host = base::hostname();
        let Some(launch) = launcher.as_ref().filter(|_| !alone) else {
            let job = format!("process {}", std::process::id());
            let dumps = writes_dumps.then(|| dump_folder(m, &job));
            remove_dumps(dumps.as_deref());
            let threads = m.train.threads.unwrap_or(cores / ranks).max(1);
            let mut worlds = Vec::new();
            for world in threads::with_watchdog(ranks, &watchdog(m, dumps.clone()))? {
                let local = LocalRank {
                    local_rank: world.rank(),
                    local_world: ranks,
                    process: launcher.is_some(),
                    cores: cores / ranks,
                };
                worlds.push((world, local));
            }
            return Ok(LocalRanks { worlds, node: host, threads, kind: "threads of a process" });
        };
        if launch.world != ranks {
            // Each rank reports it, because the variables of a single rank may be wrong.
            return Err(wrong_world_size(m, launch).into());
        }
        let share = launch.cores.unwrap_or(cores / launch.local_world.max(1));
        let threads = m.train.threads.unwrap_or(share).max(1);
        let dumps = writes_dumps.then(|| dump_folder(m, &launch.job));
        if launch.rank == 0 {
            remove_dumps(dumps.as_deref());
        }
        let identity = xxh3_64(format!("{}\n{options}", loaded.effective).as_bytes());
        let join = Join {
            start_timeout: Duration::from_secs_f64(m.comm.start_timeout_s),
            node: if launch.node.is_empty() { host } else { launch.node.clone() },
            ..Join::from_launcher(launch, &m.log.folder, identity, watchdog(m, dumps))?
        };
        let local_rank = launch.local_rank;
        let local_world = launch.local_world;
        let local = LocalRank { local_rank, local_world, process: true, cores: share };
        let joined = tcp::join(&join);
        if launch.rank == 0 {
            tcp::forget_secret(&m.log.folder, &launch.job); // all ranks have connected, or never will
        }
        let worlds = vec![(joined?, local)];
        Ok(LocalRanks { worlds, node: join.node, threads, kind: PROCESSES })
    }

    /// Whether each rank is a process, started by a launcher.
    pub fn are_processes(&self) -> bool {
        self.kind == PROCESSES
    }

    /// Runs `work` for each rank on its own thread and waits for all. Returns the result of the lowest
    /// rank, or an error: preferably the cause, otherwise the failure that other ranks saw of it.
    pub fn run<T: Send>(
        &mut self,
        m: &Manifest,
        messages: &Messages,
        work: impl Fn(&Rank, &Device) -> anyhow::Result<T> + Sync,
    ) -> anyhow::Result<T> {
        let worlds = std::mem::take(&mut self.worlds);
        let work = &work;
        let ranks = &*self;
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let started: Vec<_> = worlds
                .into_iter()
                .map(|(world, local)| {
                    let name = format!("rank {}", world.rank());
                    base::threads::spawn_with_stack(scope, &name, 8 << 20, move || {
                        let _rank = messages.enter_rank(world.rank(), world.recorder());
                        ranks.run_one(world, local, m, work)
                    })
                })
                .collect();
            started
                .into_iter()
                .map(|thread| anyhow::Ok(thread?.join()))
                .collect()
        });
        let mut done = None;
        let mut failed = None;
        let mut peer_exit = None;
        for outcome in outcomes {
            match outcome?.unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
                Ok(Ok(value)) => done = done.or(Some(value)), // of the lowest rank
                Err(failure) => failed = failed.or(Some(failure)),
                Ok(Err(error)) => match error.downcast::<CollectiveError>() {
                    Ok(CollectiveError { error: None, code }) => {
                        peer_exit = Some(AlreadyPrinted { code })
                    }
                    Ok(CollectiveError { error: Some(error), .. }) | Err(error) => {
                        return Err(error);
                    }
                },
            }
        }
        match (failed, peer_exit, done) {
            (Some(failed), _, _) => Err(failed.into()),
            (None, Some(peer_exit), _) => Err(peer_exit.into()),
            (None, None, done) => done.context("no rank was started"),
        }
    }

    /// Whether rank 0 is among these ranks. Must be called before `run`.
    pub fn has_rank0(&self) -> bool {
        self.worlds.iter().any(|(world, _)| world.rank() == 0)
    }

    /// Flight recorders of these ranks. Must be called before `run`.
    pub fn recorders(&self) -> Vec<(usize, Arc<Recorder>)> {
        let worlds = self.worlds.iter();
        worlds
            .map(|(world, _)| (world.rank(), world.recorder().clone()))
            .collect()
    }

    /// Opens the device of one rank and runs `work`. The world is dropped before the device, because
    /// other ranks may write into the device's memory.
    fn run_one<T>(
        &self,
        world: World,
        local: LocalRank,
        m: &Manifest,
        work: &(impl Fn(&Rank, &Device) -> anyhow::Result<T> + Sync),
    ) -> Result<anyhow::Result<T>, Failed> {
        let opened = OnceCell::new();
        let run = |world: &World| {
            world.recorder().set_node(&self.node);
            let me = Rank::new(world, &m.topology);
            let device = Device::open(m, local, Some(self.threads));
            let device = device.map_err(|problems| device::name_rank(&me, &self.node, problems));
            let device = me.agree(device.map_err(anyhow::Error::from))?;
            let device = opened.get_or_init(|| device);
            device::check_all(&me, m, &self.node, device)?;
            // Shown once, although `--minutes` opens the device before the run does.
            static SHOWN: Once = Once::new();
            let describe = || {
                tracing::info!("device: {}", device.description(m.precision));
                if let Some(advice) = device.advice(m.precision) {
                    tracing::info!("{advice}");
                }
            };
            if me.is_first() {
                SHOWN.call_once(describe)
            } else {
                describe()
            }
            work(&me, device)
        };
        comm::catch(|| {
            let world = world;
            broadcast_error(&world, run(&world))
        })
    }
}

/// Broadcasts an error the other ranks do not have yet. If the process group has already failed,
/// that failure wins over this rank's own error.
fn broadcast_error<T>(world: &World, result: anyhow::Result<T>) -> anyhow::Result<T> {
    if let Err(error) = &result
        && !error.is::<CollectiveError>()
    {
        if let Some(failed) = world.failed() {
            failed.raise();
        }
        let Some(Dead { device, why }) = error.downcast_ref::<Dead>() else {
            world.fail(&format!("{error:#}"));
            return result;
        };
        let why = format!("{why}; last event: {}", world.recorder().phase());
        let failed = world.fail(&format!("{device}: {why}"));
        if world.size() > 1 {
            failed.raise();
        }
        return Err(Dead { device: device.clone(), why }.into());
    }
    result
}

/// Variables of the launcher; comm.rendezvous counts as one.
pub fn launcher(m: &Manifest) -> Result<Option<LauncherEnv>, Problems> {
    let given = |name: &str| {
        (name == RENDEZVOUS)
            .then(|| m.comm.rendezvous.clone())
            .flatten()
    };
    LauncherEnv::from_variables(&|name| std::env::var(name).ok().or_else(|| given(name)))
}

fn wrong_world_size(m: &Manifest, launch: &LauncherEnv) -> Problems {
    let t = &m.topology;
    let world = launch.world;
    let per_replica = t.tensor * t.pipeline;
    let mut remedy = format!("start {} (srun -n {})", t.ranks(), t.ranks());
    if world.is_multiple_of(per_replica) {
        remedy += &format!(", or --set topology.data={}", world / per_replica);
    }
    Problems::one(
        format!("{}, rank {}", m.name, launch.rank),
        format!(
            "{world} ranks were started; topology tensor {} × pipeline {} × data {} makes {}",
            t.tensor,
            t.pipeline,
            t.data,
            t.ranks()
        ),
        remedy,
    )
}

fn watchdog(m: &Manifest, dumps: Option<PathBuf>) -> Watchdog {
    let timeout = Duration::from_secs_f64(m.comm.timeout_s);
    Watchdog { dumps, ..Watchdog::new(timeout) }
}

/// Dump folder of this start of this job. Dumps of other starts are kept.
fn dump_folder(m: &Manifest, job: &str) -> PathBuf {
    job_folder(&m.log.folder, "failures", job)
}

/// Removes dumps of an earlier start under the same name, which would be mistaken for this start's.
fn remove_dumps(dumps: Option<&Path>) {
    if let Some(dumps) = dumps {
        let _ = std::fs::remove_dir_all(dumps); // usually there is none
    }
}
