//! Environment variables of a launcher: a Slurm step, or torchrun.

use super::hostlist;
use base::Problems;
use serde::{Deserialize, Serialize};
use std::net::TcpListener;
use xxhash_rust::xxh3::xxh3_64;

/// Rank of this process, as assigned by the launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LauncherEnv {
    pub rank: usize,
    pub world: usize,
    /// Index on its node.
    pub local_rank: usize,
    /// Ranks on its node.
    pub local_world: usize,
    /// Cores assigned by the launcher, if it does so.
    pub cores: Option<usize>,
    /// Name of its node; empty if the launcher does not set it.
    pub node: String,
    /// Address at which rank 0 listens: "n01:23456".
    pub address: String,
    /// Unique name of this start of the job.
    pub job: String,
}

/// Variable with a `host:port` that overrides the address derived from the job.
pub const RENDEZVOUS: &str = "GPTRAIN_RENDEZVOUS";

/// Rank assignment of an epoch. The supervisor sets it for the ranks that it starts, and it
/// overrides the launcher's variables. Ranks of different epochs count as different jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub epoch: u64,
    pub rank: usize,
    pub world: usize,
    /// Address at which rank 0 listens.
    pub address: String,
}

impl Place {
    /// Variable that holds the assignment, as JSON.
    pub const VARIABLE: &str = "GPTRAIN_PLACE";

    /// Epoch of this process; None if no supervisor started it.
    pub fn epoch() -> Option<u64> {
        let place: Place = serde_json::from_str(&std::env::var(Place::VARIABLE).ok()?).ok()?;
        Some(place.epoch)
    }

    /// Whether a supervisor started this process.
    pub fn is_given() -> bool {
        std::env::var_os(Place::VARIABLE).is_some()
    }
}

impl LauncherEnv {
    /// Reads the launcher's variables through `variable`, which tests replace. None if no launcher
    /// started this process. torchrun has precedence over Slurm, because it may run inside a Slurm
    /// job.
    pub fn from_variables(
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<LauncherEnv>, Problems> {
        let mut env = Env { variable, problems: Problems::default() };
        let mut launch = if env.text("RANK").is_some() && env.text("WORLD_SIZE").is_some() {
            env.read_torchrun()
        } else if env.text("SLURM_PROCID").is_some() && env.text("SLURM_STEP_NUM_TASKS").is_some() {
            env.read_slurm_step()
        } else {
            return Ok(None);
        };
        env.apply_place(&mut launch);
        if launch.rank >= launch.world && env.problems.list.is_empty() {
            env.problem(
                "the launcher's variables",
                format!("rank {} of a world of {}", launch.rank, launch.world),
                "ranks count from 0",
            );
        }
        if let Some(given) = env.text(RENDEZVOUS)
            && given
                .rsplit_once(':')
                .is_none_or(|(_, port)| port.parse::<u16>().is_err())
        {
            env.problem(RENDEZVOUS, format!("{given:?} is not host:port"), "as in n01:29500");
        }
        env.problems.or(Some(launch))
    }

    /// Variables that make a process of this machine the rank of `place`: torchrun's, which override
    /// Slurm's. The place also overrides GPTRAIN_RENDEZVOUS.
    pub fn variables_for_place(place: &Place) -> Vec<(&'static str, String)> {
        let rank = place.rank.to_string();
        let world = place.world.to_string();
        let (host, port) = place
            .address
            .rsplit_once(':')
            .unwrap_or((&place.address, ""));
        vec![
            ("RANK", rank.clone()),
            ("LOCAL_RANK", rank),
            ("WORLD_SIZE", world.clone()),
            ("LOCAL_WORLD_SIZE", world),
            ("MASTER_ADDR", host.to_string()),
            ("MASTER_PORT", port.to_string()),
            ("TORCHELASTIC_USE_AGENT_STORE", String::new()),
            ("TORCHELASTIC_RUN_ID", format!("process {}", std::process::id())),
            (Place::VARIABLE, serde_json::to_string(place).expect("plain numbers and a name")),
        ]
    }

    /// Loopback address with a free port, for the ranks that this process starts.
    pub fn find_free_address() -> std::io::Result<String> {
        let process = std::process::id();
        let address = |attempt: u32| format!("127.0.0.1:{}", port(&format!("{process} {attempt}")));
        let free = (0..1000)
            .map(address)
            .find(|address| TcpListener::bind(address).is_ok());
        free.ok_or_else(|| std::io::ErrorKind::AddrInUse.into())
    }
}

/// Variables being read, and the problems found so far.
struct Env<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    problems: Problems,
}

impl Env<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    fn problem(&mut self, place: &str, what: String, remedy: &str) {
        self.problems.add(place, what, remedy);
    }

    fn number(&mut self, name: &str) -> usize {
        match self.text(name) {
            None => self.problem(name, "is not set".into(), "the launcher must set it"),
            Some(text) => match text.parse() {
                Ok(number) => return number,
                Err(_) => self.problem(name, format!("{text:?} is not a number"), ""),
            },
        }
        0
    }

    fn number_if_set(&mut self, name: &str) -> Option<usize> {
        self.text(name).map(|_| self.number(name))
    }

    /// Applies the supervisor's assignment, which overrides the launcher's.
    fn apply_place(&mut self, launch: &mut LauncherEnv) {
        let Some(text) = self.text(Place::VARIABLE) else { return };
        match serde_json::from_str(&text) {
            Ok(Place { epoch, rank, world, address }) => {
                launch.job += &format!(" epoch {epoch}");
                (launch.rank, launch.world, launch.address) = (rank, world, address);
            }
            Err(error) => self.problem(Place::VARIABLE, error.to_string(), "unset it"),
        }
    }

    fn read_torchrun(&mut self) -> LauncherEnv {
        let rank = self.number("RANK");
        let world = self.number("WORLD_SIZE");
        let local_rank = self.number_if_set("LOCAL_RANK").unwrap_or(0);
        let local_world = self.number_if_set("LOCAL_WORLD_SIZE").unwrap_or(1);
        let host = self.text("MASTER_ADDR").unwrap_or_else(|| {
            self.problem("MASTER_ADDR", "is not set".into(), "the host on which rank 0 runs");
            String::new()
        });
        // The agent of torchrun listens on MASTER_PORT itself.
        let agent = self
            .text("TORCHELASTIC_USE_AGENT_STORE")
            .is_some_and(|v| v == "True");
        let port = self.number("MASTER_PORT") + agent as usize;
        if port > 65_535 {
            self.problem("MASTER_PORT", format!("{port} is not a port"), "ports end at 65535");
        }
        let run = self.text("TORCHELASTIC_RUN_ID").unwrap_or_default();
        let restart = self.text("TORCHELASTIC_RESTART_COUNT").unwrap_or_default();
        // An IPv6 address, with brackets or without.
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(&host);
        if host.contains('%') || host.starts_with("fe80:") {
            self.problem(
                "MASTER_ADDR",
                format!("{host} is an address of one link"),
                "give the name of rank 0's node, or another address",
            );
        }
        let brackets = if host.contains(':') { ["[", "]"] } else { ["", ""] };
        let derived = format!("{}{host}{}:{port}", brackets[0], brackets[1]);
        let address = self.text(RENDEZVOUS).unwrap_or(derived.clone());
        let job = format!("torchrun {derived} {run} {restart}");
        let node = String::new();
        let cores = None;
        LauncherEnv { rank, world, local_rank, local_world, cores, node, address, job }
    }

    fn read_slurm_step(&mut self) -> LauncherEnv {
        let rank = self.number("SLURM_PROCID");
        let world = self.number("SLURM_STEP_NUM_TASKS");
        let local_rank = self.number("SLURM_LOCALID");
        let job = self.number("SLURM_JOB_ID");
        let step = self.number("SLURM_STEP_ID");
        let restart = self.text("SLURM_RESTART_COUNT").unwrap_or("0".into());
        let job = format!("slurm {job}.{step} start {restart}");
        let (nodes, tasks) = self.read_nodes(world);
        let number = self.number("SLURM_NODEID");
        let local_world = tasks.get(number).copied().unwrap_or(1);
        let cores = self.number_if_set("SLURM_CPUS_PER_TASK");
        let node = match self.text("SLURMD_NODENAME") {
            Some(name) => name,
            None => nodes.get(number).cloned().unwrap_or_default(),
        };
        let address = self
            .text(RENDEZVOUS)
            .unwrap_or_else(|| match nodes.as_slice() {
                [_] | [] => format!("127.0.0.1:{}", port(&job)),
                [first, ..] => format!("{first}:{}", port(&job)),
            });
        LauncherEnv { rank, world, local_rank, local_world, cores, node, address, job }
    }

    /// Hosts of the step, and the number of ranks on each. (SLURM_LAUNCH_NODE_IPADDR is the host of
    /// srun, not of rank 0.)
    fn read_nodes(&mut self, world: usize) -> (Vec<String>, Vec<usize>) {
        const LIST: &str = "SLURM_STEP_NODELIST";
        let nodes = match self.text(LIST).map(|list| hostlist::expand(&list)) {
            Some(Ok(nodes)) => nodes,
            Some(Err(what)) => {
                self.problem(LIST, what, "expected a list such as n[01-03,7]");
                Vec::new()
            }
            None => {
                self.problem(LIST, "is not set".into(), "start the ranks with srun");
                Vec::new()
            }
        };
        const TASKS: &str = "SLURM_STEP_TASKS_PER_NODE";
        let tasks = self.text(TASKS).map(|list| hostlist::expand_counts(&list));
        match &tasks {
            Some(Err(what)) => self.problem(TASKS, what.clone(), ""),
            Some(Ok(counts)) if counts.iter().sum::<usize>() != world => {
                self.problem(
                    TASKS,
                    format!("{counts:?} tasks are not SLURM_STEP_NUM_TASKS = {world}"),
                    "variables of another step leak in: start with srun",
                );
            }
            _ => {}
        }
        (nodes, tasks.and_then(Result::ok).unwrap_or_default())
    }
}

/// Port of a job, below the range that the kernel uses for outgoing connections.
fn port(job: &str) -> u64 {
    10_000 + xxh3_64(job.as_bytes()) % 22_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(variables: &str) -> Result<Option<LauncherEnv>, Problems> {
        LauncherEnv::from_variables(&|name: &str| {
            variables
                .split(' ')
                .filter_map(|item| {
                    item.split_once('=')
                        .map(|(n, v)| (n.to_string(), v.to_string()))
                })
                .find(|(n, _)| n == name)
                .map(|(_, value)| value)
        })
    }

    /// Set by `srun -N 2 -n 4` of Slurm 22.05. SLURM_NTASKS leaks in from an outer sbatch.
    const STEP: &str = "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_NTASKS=8 SLURM_LOCALID=0 \
                        SLURM_NODEID=1 SLURM_STEP_NODELIST=n[01-02] SLURM_STEP_TASKS_PER_NODE=3,1 \
                        SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_LAUNCH_NODE_IPADDR=10.0.0.9";

    #[test]
    fn a_slurm_step_is_parsed() {
        let found = launch(STEP).unwrap().unwrap();
        assert_eq!((found.rank, found.world, found.local_rank), (3, 4, 0));
        assert_eq!((found.node.as_str(), found.job.as_str()), ("n02", "slurm 77.0 start 0"));
        let (host, port) = found.address.split_once(':').unwrap();
        assert_eq!(host, "n01");
        assert!((10_000..32_000).contains(&port.parse::<u32>().unwrap()));
        let again = launch(&format!("{STEP} SLURM_RESTART_COUNT=1"))
            .unwrap()
            .unwrap();
        assert_ne!(again.address, found.address, "a requeued job has another address");
        let given = launch(&format!("{STEP} GPTRAIN_RENDEZVOUS=10.1.1.1:29500"))
            .unwrap()
            .unwrap();
        assert_eq!(given.address, "10.1.1.1:29500");
        let one = launch(&STEP.replace("n[01-02]", "n01").replace("=3,1", "=4"))
            .unwrap()
            .unwrap();
        assert!(one.address.starts_with("127.0.0.1:"), "one node needs no name service");
    }

    #[test]
    fn torchrun_is_parsed_inside_slurm_too() {
        let torchrun = "RANK=2 WORLD_SIZE=4 LOCAL_RANK=2 MASTER_ADDR=host MASTER_PORT=29500";
        let found = launch(&format!("{STEP} {torchrun}")).unwrap().unwrap();
        assert_eq!((found.rank, found.world, found.local_rank), (2, 4, 2));
        assert_eq!(found.address, "host:29500");
        for (host, address) in [("::1", "[::1]:29500"), ("[fd00::1]", "[fd00::1]:29500")] {
            let ipv6 = torchrun.replace("MASTER_ADDR=host", &format!("MASTER_ADDR={host}"));
            assert_eq!(launch(&ipv6).unwrap().unwrap().address, address);
        }
        let link = torchrun.replace("MASTER_ADDR=host", "MASTER_ADDR=fe80::1%eth0");
        let refused = launch(&link).unwrap_err().to_string();
        assert!(
            refused.starts_with("MASTER_ADDR: fe80::1%eth0 is an address of one link"),
            "{refused}"
        );
        let agent = format!("{torchrun} TORCHELASTIC_USE_AGENT_STORE=True");
        assert_eq!(launch(&agent).unwrap().unwrap().address, "host:29501");
    }

    #[test]
    fn a_supervisor_gives_another_place() {
        let place = r#"GPTRAIN_PLACE={"epoch":2,"rank":0,"world":2,"address":"n02:9"}"#;
        let found = launch(&format!("{STEP} {place}")).unwrap().unwrap();
        assert_eq!((found.rank, found.world, &*found.address), (0, 2, "n02:9"));
        assert_eq!((found.local_rank, &*found.job), (0, "slurm 77.0 start 0 epoch 2"));
        assert!(launch(&format!("{STEP} GPTRAIN_PLACE=2")).is_err());
    }

    #[test]
    fn a_process_of_this_machine_becomes_a_rank() {
        let address = LauncherEnv::find_free_address().unwrap();
        let place = Place { epoch: 1, rank: 1, world: 2, address: address.clone() };
        let variables = LauncherEnv::variables_for_place(&place);
        let set = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.clone())
        };
        let outer = "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 TORCHELASTIC_USE_AGENT_STORE=True \
                     GPTRAIN_RENDEZVOUS=other:1";
        let outer = |name: &str| {
            let pairs = outer
                .split_whitespace()
                .filter_map(|item| item.split_once('='));
            pairs
                .into_iter()
                .find(|(n, _)| *n == name)
                .map(|(_, value)| value.to_string())
        };
        let found = LauncherEnv::from_variables(&|name| set(name).or_else(|| outer(name)))
            .unwrap()
            .unwrap();
        assert_eq!((found.rank, found.world, found.local_rank, found.local_world), (1, 2, 1, 2));
        assert_eq!(found.address, address);
        assert!(found.job.ends_with(" epoch 1"), "{}", found.job);
    }

    #[test]
    fn without_a_launcher_there_is_none() {
        assert_eq!(launch(""), Ok(None));
        assert_eq!(
            launch("SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=7"),
            Ok(None),
            "batch script"
        );
    }

    #[test]
    fn every_problem_is_reported() {
        let complaints = |variables: &str| launch(variables).unwrap_err().to_string();
        let reported = complaints("SLURM_PROCID=x SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NODELIST=n[");
        for part in [
            "SLURM_PROCID: \"x\" is not",
            "SLURM_JOB_ID: is not set",
            "SLURM_STEP_NODELIST: n[: [ without ]",
        ] {
            assert!(reported.contains(part), "{reported}");
        }
        let leaked = STEP.replace("PER_NODE=3,1", "PER_NODE=2(x4)");
        assert!(complaints(&leaked).contains("[2, 2, 2, 2] tasks are not"));
        let outside = STEP.replace("PROCID=3", "PROCID=4");
        assert!(complaints(&outside).contains("rank 4 of a world of 4"));
        assert!(complaints(&format!("{STEP} {RENDEZVOUS}=here")).contains("is not host:port"));
        let port = "RANK=0 WORLD_SIZE=1 MASTER_ADDR=a MASTER_PORT=70000";
        assert!(complaints(port).contains("70000 is not a port"));
    }
}
