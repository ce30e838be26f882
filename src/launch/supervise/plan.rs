//! Plan after a failure, as a function of the tasks that joined the rendezvous: the same ranks if
//! all did, spare tasks instead of missing ones, or else fewer replicas.

use manifest::Manifest;
use serde::{Deserialize, Serialize};

/// Report of a task that joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    pub task: usize,
    /// Host name.
    pub host: String,
    /// Exit code of its rank, as in a shell (128 + signal); None for a spare without a rank.
    pub code: Option<u8>,
}

/// Ranks of an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochPlan {
    /// Task of each rank.
    pub members: Vec<usize>,
    /// topology.data.
    pub data: usize,
    /// Address of rank 0; empty for the address in the launcher's variables.
    pub address: String,
    /// Step of the newest checkpoint.
    pub step: u64,
    /// Restarts from that checkpoint so far.
    pub restarts: u32,
    /// Task that decided.
    pub decided_by: usize,
    /// Message for the user: "from the checkpoint of step 6, without task 2 …".
    pub message: String,
    /// Exit code if the job ends instead.
    pub exit_code: Option<u8>,
}

impl EpochPlan {
    /// Ranks as started by the launcher.
    pub fn first(m: &Manifest, step: u64) -> EpochPlan {
        let members = (0..m.topology.ranks()).collect();
        EpochPlan { members, data: m.topology.data, step, ..EpochPlan::default() }
    }

    /// Restarts from the checkpoint of `step` so far.
    fn restarts_from(&self, step: u64) -> u32 {
        if step > self.step { 0 } else { self.restarts }
    }

    /// Plan that ends the job, if another start would not help.
    fn give_up(&self, m: &Manifest, arrivals: &[Arrival], step: u64) -> Option<EpochPlan> {
        // An error that all ranks agreed on would recur after a restart.
        let codes: Vec<u8> = arrivals.iter().filter_map(|arrival| arrival.code).collect();
        if !codes.is_empty() && codes.iter().all(|code| *code == 1) {
            return Some(EpochPlan { exit_code: Some(1), message: String::new(), ..self.clone() });
        }
        let tried = self.restarts_from(step);
        let max = m.restart.max;
        let times = if tried == 1 { "1 restart".into() } else { format!("{tried} restarts") };
        let why = format!(
            "no further restart: {times} from the checkpoint of step {step} brought no newer one \
             (restart.max: {max})"
        );
        (tried >= max).then(|| EpochPlan { exit_code: Some(3), message: why, ..self.clone() })
    }

    /// Plan after a failure of a task that has all ranks as threads.
    pub fn replan_alone(&self, m: &Manifest, arrivals: &[Arrival], step: u64) -> EpochPlan {
        let message = self.message(&[0], &[0], self.data, step);
        let next =
            EpochPlan { step, restarts: self.restarts_from(step) + 1, message, ..self.clone() };
        self.give_up(m, arrivals, step).unwrap_or(next)
    }

    /// Plan after a failure, with the newest checkpoint at `step` and the tasks that joined.
    pub fn replan(&self, m: &Manifest, arrivals: &[Arrival], step: u64) -> EpochPlan {
        if let Some(end) = self.give_up(m, arrivals, step) {
            return end;
        }
        let tasks: Vec<usize> = arrivals.iter().map(|arrival| arrival.task).collect();
        let replica = m.topology.tensor * m.topology.pipeline;
        let Some(data) = (1..=m.topology.data)
            .rev()
            .find(|data| replica * data <= tasks.len() && is_batch_divisible(m, *data))
        else {
            let why = format!(
                "no further restart: {} of {} tasks remain, and one replica needs {replica} \
                 (tensor {} × pipeline {})",
                tasks.len(),
                self.members.len(),
                m.topology.tensor,
                m.topology.pipeline
            );
            return EpochPlan { exit_code: Some(3), message: why, ..self.clone() };
        };
        let tried = self.restarts_from(step);
        let members = self.assign_ranks(&tasks, replica * data);
        let message = self.message(&tasks, &members, data, step);
        let address = address(&members, arrivals);
        EpochPlan {
            members,
            data,
            address,
            step,
            restarts: tried + 1,
            decided_by: 0,
            message,
            exit_code: None,
        }
    }

    /// Tasks of `ranks` ranks. If their number is unchanged, each task keeps its rank, and spares
    /// replace missing tasks.
    fn assign_ranks(&self, tasks: &[usize], ranks: usize) -> Vec<usize> {
        if ranks != self.members.len() {
            return tasks[..ranks].to_vec();
        }
        let mut spares = tasks.iter().filter(|task| !self.members.contains(task));
        let mut members = self.members.clone();
        for task in &mut members {
            if !tasks.contains(task) {
                *task = *spares.next().expect("enough tasks");
            }
        }
        members
    }

    fn message(&self, tasks: &[usize], members: &[usize], data: usize, step: u64) -> String {
        let list = |tasks: &[usize]| {
            let shown: Vec<String> = tasks.iter().take(8).map(usize::to_string).collect();
            let more = if tasks.len() > 8 { " …" } else { "" };
            format!("task{} {}{more}", if tasks.len() == 1 { "" } else { "s" }, shown.join(", "))
        };
        let mut gone = self.members.clone();
        gone.retain(|task| !tasks.contains(task));
        let mut new = members.to_vec();
        new.retain(|task| !self.members.contains(task));
        let mut parts = vec![match step {
            0 => "from the start".to_string(),
            _ => format!("from the checkpoint of step {step}"),
        }];
        if !gone.is_empty() {
            parts.push(format!("without {}", list(&gone)));
        }
        if !new.is_empty() {
            parts.push(format!("with the spare {}", list(&new)));
        }
        if data != self.data {
            let noun = if data == 1 { "replica" } else { "replicas" };
            parts.push(format!("on {data} {noun} instead of {}, with the same batch", self.data));
        }
        parts.join(", ")
    }
}

/// Whether every global batch of the run is divisible into micro-batches of `data` replicas.
fn is_batch_divisible(m: &Manifest, data: usize) -> bool {
    m.batch
        .ramp()
        .sizes()
        .all(|global| global.is_multiple_of(m.batch.micros().at(global) * data))
}

/// Address of rank 0: the launcher's address while its task lives; otherwise rank 0's own host with
/// the port of the launcher's address (written as 0).
fn address(members: &[usize], arrivals: &[Arrival]) -> String {
    let first = arrivals.iter().find(|arrival| arrival.task == members[0]);
    let one_host = arrivals
        .iter()
        .all(|arrival| Some(&arrival.host) == first.map(|first| &first.host));
    match first {
        Some(first) if first.task != 0 && one_host => "127.0.0.1:0".to_string(),
        Some(first) if first.task != 0 => format!("{}:0", first.host),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// tensor 2 × data 3, a batch of 12 in micro-batches of 2.
    fn manifest(sets: &[&str]) -> Manifest {
        let text = "
model: {layers: 2, hidden: 32, heads: 4, vocab: 128, seq_len: 24}
data: {train: none}
batch: {micro: 2, global: 12}
lr: {peak: 1e-3, decay: constant}
topology: {tensor: 2, data: 3}
restart: {max: 3}
train: {samples: 1200}
";
        let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
        manifest::parse(text, "test", Path::new("."), &sets)
            .unwrap()
            .manifest
    }

    fn arrivals(tasks: &[usize]) -> Vec<Arrival> {
        tasks
            .iter()
            .map(|task| Arrival { task: *task, host: format!("h{}", task / 2), code: Some(3) })
            .collect()
    }

    #[test]
    fn tasks_keep_their_ranks_and_spares_replace_missing_ones() {
        let m = manifest(&[]);
        let first = EpochPlan::first(&m, 0);
        let same = first.replan(&m, &arrivals(&[0, 1, 2, 3, 4, 5]), 40);
        assert_eq!((&same.members, same.data, same.restarts), (&vec![0, 1, 2, 3, 4, 5], 3, 1));
        assert_eq!((&*same.address, &*same.message), ("", "from the checkpoint of step 40"));
        let spare = same.replan(&m, &arrivals(&[0, 1, 4, 5, 6, 7]), 40);
        assert_eq!((&spare.members, spare.restarts), (&vec![0, 1, 6, 7, 4, 5], 2));
        let why = "from the checkpoint of step 40, without tasks 2, 3, with the spare tasks 6, 7";
        assert_eq!(spare.message, why);
        let moved = spare.replan(&m, &arrivals(&[1, 2, 4, 5, 6, 7]), 80);
        assert_eq!((&moved.members, moved.restarts), (&vec![2, 1, 6, 7, 4, 5], 1), "{moved:?}");
        assert_eq!(moved.address, "h1:0", "rank 0 has another host");
    }

    #[test]
    fn fewer_replicas_start_and_all_again_once_tasks_return() {
        let m = manifest(&[]);
        let less = EpochPlan::first(&m, 0).replan(&m, &arrivals(&[0, 1, 2, 4, 5]), 7);
        assert_eq!((&less.members, less.data), (&vec![0, 1, 2, 4], 2));
        let why = "on 2 replicas instead of 3, with the same batch";
        assert!(less.message.ends_with(why), "{}", less.message);
        let again = less.replan(&m, &arrivals(&[0, 1, 2, 3, 4, 5]), 9);
        assert_eq!((again.members.len(), again.data), (6, 3));
        let five = manifest(&["batch.global=30", "train.samples=1200", "topology.data=5"]);
        let left = arrivals(&[0, 1, 2, 3, 4, 5, 6, 7]);
        let plan = EpochPlan::first(&five, 0).replan(&five, &left, 0);
        assert_eq!((plan.data, plan.members.len()), (3, 6), "30 is not whole for 4 replicas");
    }

    #[test]
    fn the_job_ends_if_another_start_would_not_help() {
        let m = manifest(&[]);
        let first = EpochPlan::first(&m, 5);
        let few = first.replan(&m, &arrivals(&[4]), 5);
        assert_eq!(few.exit_code, Some(3));
        assert!(
            few.message
                .contains("1 of 6 tasks remain, and one replica needs 2 (tensor 2")
        );
        let mut plan = first.clone();
        for _ in 0..3 {
            plan = plan.replan(&m, &arrivals(&[0, 1, 2, 3, 4, 5]), 5);
            assert_eq!(plan.exit_code, None);
        }
        let last = plan.replan(&m, &arrivals(&[0, 1, 2, 3, 4, 5]), 5);
        assert_eq!(last.exit_code, Some(3));
        assert!(
            last.message
                .contains("3 restarts from the checkpoint of step 5 brought no newer one")
        );
        let newer = plan.replan(&m, &arrivals(&[0, 1, 2, 3, 4, 5]), 6);
        assert_eq!((newer.exit_code, newer.restarts), (None, 1));
        let agreed: Vec<Arrival> = arrivals(&[0, 1, 2, 3, 4, 5])
            .into_iter()
            .map(|c| Arrival { code: Some(1), ..c })
            .collect();
        assert_eq!(first.replan(&m, &agreed, 5).exit_code, Some(1));
    }
}
