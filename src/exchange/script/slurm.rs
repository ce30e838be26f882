//! Options of Slurm in a script: the variables that a job has, and the options of `gptrain job`.

use std::collections::BTreeMap;

/// Short options of sbatch.
const SHORT: &[(&str, &str)] = &[
    ("A", "account"),
    ("C", "constraint"),
    ("G", "gpus"),
    ("J", "job-name"),
    ("N", "nodes"),
    ("a", "array"),
    ("c", "cpus-per-task"),
    ("d", "dependency"),
    ("e", "error"),
    ("n", "ntasks"),
    ("o", "output"),
    ("p", "partition"),
    ("q", "qos"),
    ("t", "time"),
];

/// Options that `gptrain job` has too.
const SAME: &[&str] = &[
    "account",
    "array",
    "constraint",
    "dependency",
    "gres",
    "hint",
    "mail-type",
    "gpus-per-node",
    "mail-user",
    "nodes",
    "partition",
    "qos",
    "reservation",
    "time",
];

/// Options that `gptrain job` derives from the manifest.
const DERIVED: &[&str] = &[
    "comment",
    "error",
    "gpus-per-task",
    "job-name",
    "no-requeue",
    "ntasks",
    "ntasks-per-gpu",
    "ntasks-per-node",
    "open-mode",
    "output",
    "requeue",
    "signal",
];

/// Options of the lines `#SBATCH`, in their order; of equal ones the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slurm(Vec<(String, String)>);

impl Slurm {
    /// Reads the lines before the first command, as sbatch does.
    pub fn read(text: &str) -> Slurm {
        let mut slurm = Slurm::default();
        let begin = text.lines().map(str::trim);
        for line in begin.take_while(|line| line.is_empty() || line.starts_with('#')) {
            let Some(options) = line.strip_prefix("#SBATCH") else { continue };
            slurm.add(options.split(" #").next().unwrap_or_default());
        }
        slurm
    }

    /// Adds the options of one line: `--nodes=4`, `--time 1:00`, `-N 4`, `-N4`.
    fn add(&mut self, text: &str) {
        let mut words = text.split_whitespace().peekable();
        while let Some(word) = words.next() {
            let long = word
                .strip_prefix("--")
                .map(|word| match word.split_once('=') {
                    Some((name, value)) => (name.to_string(), Some(value.to_string())),
                    None => (word.to_string(), None),
                });
            let short = || {
                let word = word.strip_prefix('-')?;
                let (_, name) = SHORT.iter().find(|(short, _)| word.starts_with(short))?;
                Some((
                    name.to_string(),
                    Some(word[1..].to_string()).filter(|rest| !rest.is_empty()),
                ))
            };
            let Some((name, value)) = long.or_else(short) else { continue };
            let value =
                value.or_else(|| words.next_if(|next| !next.starts_with('-')).map(Into::into));
            let value = value
                .unwrap_or_default()
                .trim_matches(['"', '\''])
                .to_string();
            self.0.retain(|(known, _)| *known != name);
            self.0.push((name, value));
        }
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn count(&self, name: &str) -> Option<usize> {
        self.get(name)?.parse().ok()
    }

    /// GPUs of each node.
    pub fn gpus_per_node(&self) -> Option<usize> {
        let count = |value: &str| value.rsplit(':').next()?.parse::<usize>().ok();
        if let Some(gpus) = self.get("gpus-per-node").and_then(count) {
            return Some(gpus);
        }
        let gres = self.get("gres").unwrap_or_default();
        if let Some(gpus) = gres.split(',').find(|name| name.starts_with("gpu")) {
            return Some(count(gpus).unwrap_or(1));
        }
        count(self.get("gpus")?)?.checked_div(self.count("nodes")?)
    }

    /// Tasks of all nodes.
    pub fn tasks(&self) -> Option<usize> {
        let nodes = self.count("nodes").unwrap_or(1);
        self.count("ntasks")
            .or_else(|| self.count("ntasks-per-node")?.checked_mul(nodes))
    }

    /// Variables that Slurm sets in the job.
    pub fn variables(&self) -> BTreeMap<String, String> {
        let mut variables = BTreeMap::new();
        let mut set = |names: &[&str], value: Option<String>| {
            for name in names {
                variables.extend(value.clone().map(|value| (name.to_string(), value)));
            }
        };
        let text = |name: &str| self.get(name).map(str::to_string);
        set(&["SLURM_NNODES", "SLURM_JOB_NUM_NODES"], text("nodes"));
        set(&["SLURM_NTASKS_PER_NODE"], text("ntasks-per-node"));
        set(&["SLURM_NTASKS", "SLURM_NPROCS"], self.tasks().map(|count| count.to_string()));
        set(&["SLURM_CPUS_PER_TASK"], text("cpus-per-task"));
        set(&["SLURM_JOB_NAME"], text("job-name"));
        set(&["SLURM_JOB_PARTITION"], text("partition"));
        let gpus = self.gpus_per_node().map(|count| count.to_string());
        set(&["SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"], gpus);
        variables
    }

    /// Arguments of `gptrain job`, besides the manifest. None without options.
    pub fn job(&self) -> Option<Vec<String>> {
        let mut arguments = Vec::new();
        for (name, value) in &self.0 {
            let counted = self.count(name).is_some();
            let (option, value) = match name.as_str() {
                "nodes" if !counted => continue,
                "gpus-per-node" if !counted => ("gres", format!("gpu:{value}")),
                "gpus" => match self.gpus_per_node() {
                    Some(gpus) => ("gpus-per-node", gpus.to_string()),
                    None => continue,
                },
                "cpus-per-task" => match self.cpus_per_rank() {
                    Some(cpus) => ("cpus-per-task", cpus),
                    None => continue,
                },
                "exclusive" => {
                    arguments.push("--exclusive".to_string());
                    continue;
                }
                known if SAME.contains(&known) => (known, value.clone()),
                derived if DERIVED.contains(&derived) => continue,
                _ if value.is_empty() => ("option", name.clone()),
                _ => ("option", format!("{name}={value}")),
            };
            arguments.extend([format!("--{option}"), value]);
        }
        (!self.0.is_empty()).then_some(arguments)
    }

    /// CPUs of each rank: a task of the script may start all ranks of its node.
    fn cpus_per_rank(&self) -> Option<String> {
        let cpus = self.count("cpus-per-task")?;
        let ranks = self.gpus_per_node().unwrap_or(1);
        let tasks = self.count("ntasks-per-node").unwrap_or(1);
        Some(
            (cpus.saturating_mul(tasks) / ranks.max(1))
                .max(1)
                .to_string(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_those_of_job_and_variables() {
        let slurm = Slurm::read(
            "#!/bin/bash\n#SBATCH --job-name=big\n#SBATCH -N 6 --ntasks-per-node=1 # one\n\n\
             #SBATCH --cpus-per-task=40\n#SBATCH --gres=gpu:4\n#SBATCH --time 20:00:00   # hours\n\
             #SBATCH --account=six@v100\n#SBATCH --output=%x-%j.out\n#SBATCH -pgpu_p5\n\
             #SBATCH --nodes=128\n#SBATCH --exclusive\n#SBATCH --licenses=a\n#SBATCH --nice\n\
             set -e\n#SBATCH --nodes=1\n",
        );
        let job = slurm.job().unwrap().join(" ");
        assert_eq!(
            job,
            "--cpus-per-task 10 --gres gpu:4 --time 20:00:00 --account six@v100 --partition gpu_p5 \
             --nodes 128 --exclusive --option licenses=a --option nice"
        );
        let variables = slurm.variables();
        for (name, value) in [
            ("SLURM_NNODES", "128"),
            ("SLURM_NTASKS", "128"),
            ("SLURM_GPUS_ON_NODE", "4"),
            ("SLURM_JOB_NAME", "big"),
        ] {
            assert_eq!(variables.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert_eq!(Slurm::read("echo a\n").job(), None);
        let typed = Slurm::read("#SBATCH --gpus-per-node=a100:8\n");
        assert_eq!(typed.gpus_per_node(), Some(8));
        assert_eq!(typed.job().unwrap(), ["--gres", "gpu:a100:8"]);
    }
}
