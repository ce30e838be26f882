//! Slurm's daemons in a folder of their own: nothing of the machine's own configuration is used.

use crate::common::binary::{free_port, until};
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// GPUs of a node, which are files: Slurm hands them out, and looks for no more.
const GPUS: usize = 4;

/// Some nodes on this machine: n1, n2, ...
pub struct Cluster {
    folder: TempDir,
    nodes: Vec<String>,
}

impl Cluster {
    /// None, and said so, where Slurm is not installed or this is not root.
    pub fn start(nodes: usize) -> Option<Cluster> {
        let there = |name: &str| Path::new("/usr/sbin").join(name).exists();
        if !rustix::process::getuid().is_root()
            || !["munged", "slurmctld", "slurmd"]
                .map(there)
                .iter()
                .all(|is| *is)
        {
            eprintln!("SKIPPED: needs root and Slurm (apt-get install slurm-wlm munge)");
            return None;
        }
        let nodes = (1..=nodes).map(|node| format!("n{node}")).collect();
        let cluster = Cluster { folder: tempfile::tempdir().unwrap(), nodes };
        let root = cluster.folder.path();
        for name in ["munge", "state", "spool", "log", "run"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        for open in [root, &root.join("munge")] {
            fs::set_permissions(open, fs::Permissions::from_mode(0o755)).unwrap();
        }
        cluster.munge();
        fs::write(root.join("slurm.conf"), cluster.conf()).unwrap();
        let gpus = cluster.path("gpu");
        (0..GPUS).for_each(|gpu| fs::write(format!("{gpus}{gpu}"), "").unwrap());
        let list = format!("Name=gpu File={gpus}[0-{}]\n", GPUS - 1);
        fs::write(root.join("gres.conf"), list).unwrap();
        cluster.ok("/usr/sbin/slurmctld", &["-c"]);
        cluster
            .nodes
            .iter()
            .for_each(|node| cluster.start_daemon(node));
        until("all nodes are idle", || {
            let states = cluster.run("sinfo", &["-h", "-N", "-o", "%t"]).stdout;
            let states = String::from_utf8_lossy(&states);
            states.lines().filter(|state| *state == "idle").count() == cluster.nodes.len()
        });
        Some(cluster)
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Slurm's messages are signed with a key of their own.
    fn munge(&self) {
        let key = self.folder.path().join("munge/munge.key");
        let mut secret = [0; 1024];
        fs::File::open("/dev/urandom")
            .unwrap()
            .read_exact(&mut secret)
            .unwrap();
        fs::write(&key, secret).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        let files = [
            ("key-file", "key"),
            ("socket", "socket"),
            ("log-file", "log"),
            ("seed-file", "seed"),
            ("pid-file", "pid"),
        ];
        let options = files.map(|(option, end)| {
            format!("--{option}={}", self.path(&format!("munge/munge.{end}")))
        });
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        self.ok("/usr/sbin/munged", &[&["--force"][..], &options].concat());
    }

    fn conf(&self) -> String {
        let node = |name: &String| {
            let port = free_port();
            format!(
                "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=1000 Gres=gpu:{GPUS} Feature=v100-32g\n"
            )
        };
        let nodes: String = self.nodes.iter().map(node).collect();
        format!(
            "ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={}
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
StateSaveLocation={}
SlurmdSpoolDir={}/%n
SlurmctldPidFile={}
SlurmdPidFile={}
SlurmctldLogFile={}
SlurmdLogFile={}
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdTimeout=3600
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=20
JobRequeue=1
SlurmdParameters=config_overrides
GresTypes=gpu
{nodes}PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
",
            free_port(),
            self.path("munge/munge.socket"),
            self.path("state"),
            self.path("spool"),
            self.path("run/slurmctld.pid"),
            self.path("run/slurmd.%n.pid"),
            self.path("log/slurmctld.log"),
            self.path("log/slurmd.%n.log"),
        )
    }

    pub fn start_daemon(&self, node: &str) {
        self.ok("/usr/sbin/slurmd", &["-N", node]);
    }

    /// As when a node's slurmd crashes.
    pub fn kill_daemon(&self, node: &str) {
        let file = format!("run/slurmd.{node}.pid");
        let pid = self.pid(&file).expect("it runs");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        fs::remove_file(self.path(&file)).unwrap(); // the number is free from now on
    }

    /// The number that a daemon wrote down.
    fn pid(&self, file: &str) -> Option<rustix::process::Pid> {
        let text = fs::read_to_string(self.path(file)).ok()?;
        rustix::process::Pid::from_raw(text.trim().parse().ok()?)
    }

    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("SLURM_CONF", self.path("slurm.conf"))
            .env_remove("RUST_BACKTRACE");
        command.stdin(Stdio::null());
        command
    }

    pub fn run(&self, program: &str, args: &[&str]) -> Output {
        self.command(program).args(args).output().unwrap()
    }

    pub fn ok(&self, program: &str, args: &[&str]) {
        let output = self.run(program, args);
        assert!(output.status.success(), "{program} {args:?}: {output:?}");
    }
}

impl Drop for Cluster {
    /// The daemons by the numbers they wrote down, nodes first.
    fn drop(&mut self) {
        let nodes: Vec<String> = self
            .nodes
            .iter()
            .map(|node| format!("run/slurmd.{node}.pid"))
            .collect();
        let _ = self.run("scancel", &["--signal=KILL", "--user=root"]);
        for name in nodes
            .iter()
            .map(String::as_str)
            .chain(["run/slurmctld.pid", "munge/munge.pid"])
        {
            if let Some(pid) = self.pid(name) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}
