//! Pipeline schedule as data: the order of a rank's forwards and backwards. Messages and activation
//! slots follow from the order. The engine executes it; `timeline` times it, draws it and checks it
//! for deadlocks.
//!
//! Messages are exchanged between passes (`with_messages`), or run concurrently with them
//! (`with_async_messages`). The second way only helps with chunks: without them the next pass needs
//! a message that was just sent, and no computation can hide it (`timeline::tests` compares both).

/// Position of a rank in its pipeline, and its number of chunks. The layers are divided into ranks
/// × chunks virtual stages, dealt round-robin: chunk c of rank r is virtual stage c·ranks + r.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineRank {
    pub rank: usize,
    pub ranks: usize,
    pub chunks: usize,
}

impl PipelineRank {
    /// Pipeline of a single rank.
    pub const SOLO: PipelineRank = PipelineRank { rank: 0, ranks: 1, chunks: 1 };

    /// Virtual stage of a chunk.
    pub fn stage(&self, chunk: usize) -> usize {
        chunk * self.ranks + self.rank
    }

    /// Number of virtual stages of the whole pipeline.
    pub fn stages(&self) -> usize {
        self.ranks * self.chunks
    }

    /// Previous and next rank in the ring.
    fn previous(&self) -> usize {
        (self.rank + self.ranks - 1) % self.ranks
    }
    fn next(&self) -> usize {
        (self.rank + 1) % self.ranks
    }
}

/// One micro-batch (its number in the step) in one chunk of a rank's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    pub micro: usize,
    pub chunk: usize,
    /// Activation slot of the pass, from forward to backward.
    pub slot: usize,
    /// Slot of the micro-batch's first chunk, which holds its inputs.
    pub home: usize,
}

/// One side of a message between virtual stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Activations, from the previous virtual stage and to the next.
    RecvX,
    SendY,
    /// Gradients, from the next virtual stage and to the previous.
    RecvDy,
    SendDx,
}
use Side::*;

impl Side {
    pub const COUNT: usize = 4;

    pub fn sends(self) -> bool {
        matches!(self, SendY | SendDx)
    }

    /// Whether it carries activations; otherwise gradients.
    pub fn forward(self) -> bool {
        matches!(self, RecvX | SendY)
    }

    /// Rank on the other side.
    pub fn peer(self, pp: PipelineRank) -> usize {
        match self {
            RecvX | SendDx => pp.previous(),
            SendY | RecvDy => pp.next(),
        }
    }
}

/// Action of a rank: a computation, or one side of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Forward(Pass),
    Backward(Pass),
    /// Loss only, without a backward.
    Loss(Pass),
    /// Message exchanged together with adjacent ones; the rank waits for all of them.
    Exchange(Side, Pass),
    /// Asynchronous message, in flight until its `Await`. At most one per side at a time.
    Begin(Side, Pass),
    Await(Side, Pass),
}
use Action::*;

impl Action {
    pub fn pass(mut self) -> Pass {
        *self.pass_mut()
    }

    fn pass_mut(&mut self) -> &mut Pass {
        match self {
            Forward(pass) | Backward(pass) | Loss(pass) => pass,
            Exchange(_, pass) | Begin(_, pass) | Await(_, pass) => pass,
        }
    }

    /// Message that delivers the input of a computation; None if it needs none.
    fn receives(self, pp: PipelineRank) -> Option<(Side, Pass)> {
        match self {
            Forward(pass) => (pp.stage(pass.chunk) > 0).then_some((RecvX, pass)),
            Backward(pass) => (pp.stage(pass.chunk) + 1 < pp.stages()).then_some((RecvDy, pass)),
            _ => None,
        }
    }

    /// Message that sends the result of a computation; None if it is not sent.
    fn sends(self, pp: PipelineRank) -> Option<(Side, Pass)> {
        match self {
            Forward(pass) => (pp.stage(pass.chunk) + 1 < pp.stages()).then_some((SendY, pass)),
            Backward(pass) => (pp.stage(pass.chunk) > 0).then_some((SendDx, pass)),
            _ => None,
        }
    }
}

/// Computations between two exchanges of messages.
pub type Round = Vec<Action>;

/// One-forward-one-backward (Narayanan et al. 2021): fill the pipeline, alternate, drain.
pub fn one_f_one_b(pp: PipelineRank, micros: usize) -> Vec<Round> {
    let warmup = (pp.ranks - 1 - pp.rank).min(micros);
    let forward = |m| vec![Forward(pass(m, 0))];
    let backward = |m| vec![Backward(pass(m, 0))];
    let fill = (0..warmup).map(forward);
    let steady = (warmup..micros).flat_map(|m| [forward(m), backward(m - warmup)]);
    let drain = (micros - warmup..micros).map(backward);
    fill.chain(steady).chain(drain).collect()
}

/// All forwards, then all backwards (GPipe: Huang et al. 2019).
pub fn gpipe(micros: usize) -> Vec<Round> {
    let forwards = (0..micros).map(|m| vec![Forward(pass(m, 0))]);
    forwards
        .chain((0..micros).map(|m| vec![Backward(pass(m, 0))]))
        .collect()
}

/// Interleaved 1F1B (Narayanan et al. 2021, § 2.2, in Megatron-LM's order): groups of one
/// micro-batch per rank pass through all chunks. A round of the steady state is a forward and a
/// backward. Their results are sent together with the inputs of the next round.
pub fn interleaved(pp: PipelineRank, micros: usize) -> Vec<Round> {
    let PipelineRank { rank, ranks, chunks } = pp;
    assert!(micros.is_multiple_of(ranks), "{micros} micro-batches in groups of {ranks}");
    let total = micros * chunks;
    let warmup = (2 * (ranks - 1 - rank) + (chunks - 1) * ranks).min(total);
    let nth = |i: usize| (i / (ranks * chunks) * ranks + i % ranks, i / ranks % chunks);
    let forward = |i| Forward(pass(nth(i).0, nth(i).1));
    let backward = |i| Backward(pass(nth(i).0, chunks - 1 - nth(i).1));
    let fill = (0..warmup).map(|i| vec![forward(i)]);
    let steady = (warmup..total).map(|i| vec![forward(i), backward(i - warmup)]);
    let drain = (total - warmup..total).map(|i| vec![backward(i)]);
    fill.chain(steady).chain(drain).collect()
}

/// Breadth-first (Lamy-Poirier 2023, arXiv 2211.05953): all forwards, then all backwards, each chunk by
/// chunk. A chunk's weights are used for all micro-batches in turn, so they need to be gathered, and its
/// gradients summed, once for all of them. Its messages are those of `with_early_messages`.
pub fn breadth_first(pp: PipelineRank, micros: usize) -> Vec<Round> {
    let passes = |chunk| (0..micros).map(move |micro| pass(micro, chunk));
    let forwards = (0..pp.chunks).flat_map(passes);
    let backwards = (0..pp.chunks).rev().flat_map(passes);
    forwards
        .map(|pass| vec![Forward(pass)])
        .chain(backwards.map(|pass| vec![Backward(pass)]))
        .collect()
}

/// Forwards only, for evaluation: groups of one micro-batch per rank pass through all chunks.
pub fn forwards(pp: PipelineRank, micros: usize) -> Vec<Round> {
    (0..micros)
        .step_by(pp.ranks)
        .flat_map(|first| {
            let last = micros.min(first + pp.ranks);
            (0..pp.chunks).flat_map(move |chunk| {
                let slots = forward_slots(pp);
                (first..last).map(move |micro| {
                    let pass = Pass { slot: micro % slots, home: micro % slots, micro, chunk };
                    vec![Forward(pass), Loss(pass)]
                })
            })
        })
        .collect()
}

/// Slots of `forwards`. A group's inputs are kept until its last chunk. Without chunks two slots
/// suffice: one is received while another is sent.
pub fn forward_slots(pp: PipelineRank) -> usize {
    if pp.chunks > 1 { pp.ranks } else { pp.ranks.min(2) }
}

/// Inserts messages between rounds: sends of a round's results, and receives of the next round's
/// inputs.
pub fn with_messages(pp: PipelineRank, rounds: &[Round]) -> Vec<Action> {
    with_early_messages(pp, rounds, 0)
}

/// Like `with_messages`, but messages around the end of the ring, from one chunk to another, are received
/// `early` rounds before the round that needs them. A breadth-first order of m micro-batches on p ranks
/// needs them m - p rounds early: a rank that has sent the first one cannot continue until it is received.
pub fn with_early_messages(pp: PipelineRank, rounds: &[Round], early: usize) -> Vec<Action> {
    let mut received: Vec<Vec<Action>> = vec![Vec::new(); rounds.len()];
    for (number, round) in rounds.iter().enumerate() {
        for (side, pass) in round.iter().filter_map(|action| action.receives(pp)) {
            let is_around = match side {
                RecvX => pp.rank == 0,
                _ => pp.rank + 1 == pp.ranks,
            };
            let before = if is_around { number - early } else { number };
            received[before].push(Exchange(side, pass));
        }
    }
    let mut actions = Vec::new();
    let mut previous: &[Action] = &[];
    let sends = |round: &[Action]| -> Vec<Action> {
        let sent = round.iter().filter_map(|action| action.sends(pp));
        sent.map(|(side, pass)| Exchange(side, pass)).collect()
    };
    for (round, received) in rounds.iter().zip(received) {
        actions.extend(sends(previous));
        actions.extend(received);
        actions.extend(round);
        previous = round;
    }
    actions.extend(sends(previous));
    actions
}

/// Inserts asynchronous messages (Megatron-LM's `--overlap-p2p-communication`). Each is sent right
/// after the pass that computes it. It is received from one pass before the pass that needs it, and
/// awaited directly before that pass. An earlier receive would not arrive sooner in a full
/// pipeline, but occupy the GPU while it waits. A send is awaited when the next message of its side
/// is sent, so one buffer per side suffices.
pub fn with_async_messages(pp: PipelineRank, rounds: &[Round]) -> Vec<Action> {
    let passes = rounds.concat();
    let receive = |action: &Action| action.receives(pp).map(|(side, pass)| Begin(side, pass));
    let mut actions: Vec<Action> = passes.first().and_then(receive).into_iter().collect();
    let mut sends: [Option<Action>; 2] = [None; 2];
    for (i, action) in passes.iter().enumerate() {
        actions.extend(action.receives(pp).map(|(side, pass)| Await(side, pass)));
        actions.extend(passes.get(i + 1).and_then(receive));
        actions.push(*action);
        if let Some((side, pass)) = action.sends(pp) {
            let previous = sends[usize::from(side.forward())].replace(Await(side, pass));
            actions.extend(previous.into_iter().chain([Begin(side, pass)]));
        }
    }
    actions.extend(sends.into_iter().flatten());
    actions
}

/// Assigns to every pass the lowest slot that is free from its first action to its backward. The
/// first action is the exchange of its input, if there is one. Returns the number of slots. An
/// asynchronous message arrives in its own buffer and needs no slot until it is awaited.
pub fn with_slots(mut actions: Vec<Action>, chunks: usize) -> (Vec<Action>, usize) {
    let micros = actions
        .iter()
        .map(|action| action.pass().micro + 1)
        .max()
        .unwrap_or(0);
    let mut slot_of = vec![None; micros * chunks];
    let mut taken: Vec<bool> = Vec::new();
    for action in &mut actions {
        let ends = matches!(action, Backward(_));
        if matches!(action, Begin(side, _) if !side.sends()) {
            continue;
        }
        let pass = action.pass_mut();
        let first_chunk = slot_of[pass.micro * chunks];
        let slot = slot_of[pass.micro * chunks + pass.chunk].get_or_insert_with(|| {
            let free = taken.iter().position(|taken| !taken).unwrap_or(taken.len());
            taken.resize(taken.len().max(free + 1), false);
            taken[free] = true;
            free
        });
        (pass.slot, pass.home) = (*slot, first_chunk.unwrap_or(*slot));
        if ends {
            taken[pass.slot] = false;
        }
    }
    (actions, taken.len())
}

/// Leading messages of `actions`, which are exchanged together.
pub fn leading_exchange(actions: &[Action]) -> &[Action] {
    let len = actions
        .iter()
        .take_while(|action| matches!(action, Exchange(..)))
        .count();
    &actions[..len]
}

/// Pass without a slot.
fn pass(micro: usize, chunk: usize) -> Pass {
    Pass { micro, chunk, slot: 0, home: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipeline_rank(rank: usize, ranks: usize, chunks: usize) -> PipelineRank {
        PipelineRank { rank, ranks, chunks }
    }

    fn slots(pp: PipelineRank, rounds: &[Round]) -> usize {
        with_slots(with_messages(pp, rounds), pp.chunks).1
    }

    /// Chunk and micro-batch of each computation: "F0.3 B1.0".
    fn spell_rounds(rounds: &[Round]) -> String {
        rounds
            .iter()
            .flatten()
            .map(|action| match *action {
                Forward(pass) => format!("F{}.{}", pass.chunk, pass.micro),
                Backward(pass) => format!("B{}.{}", pass.chunk, pass.micro),
                other => format!("{other:?}"),
            })
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn one_stage_alternates() {
        let rounds = one_f_one_b(PipelineRank::SOLO, 2);
        assert_eq!(spell_rounds(&rounds), "F0.0 B0.0 F0.1 B0.1");
        assert_eq!(slots(PipelineRank::SOLO, &one_f_one_b(PipelineRank::SOLO, 9)), 1);
    }

    #[test]
    fn a_stage_holds_one_micro_batch_per_stage_from_it_on() {
        for rank in 0..4 {
            let rounds = one_f_one_b(pipeline_rank(rank, 4, 1), 8);
            assert_eq!(rounds.concat().len(), 16);
            assert_eq!(slots(pipeline_rank(rank, 4, 1), &rounds), 4 - rank);
        }
        assert_eq!(slots(pipeline_rank(0, 4, 1), &one_f_one_b(pipeline_rank(0, 4, 1), 2)), 2);
        assert_eq!(slots(pipeline_rank(1, 4, 1), &gpipe(6)), 6);
        assert_eq!(slots(pipeline_rank(1, 4, 3), &breadth_first(pipeline_rank(1, 4, 3), 6)), 18);
    }

    /// Narayanan et al. 2021, figure 4: two chunks on four ranks; the last rank.
    #[test]
    fn interleaving_is_megatrons() {
        let last = interleaved(pipeline_rank(3, 4, 2), 8);
        assert!(
            spell_rounds(&last).starts_with("F0.0 F0.1 F0.2 F0.3 F1.0 B1.0 F1.1 B1.1 F1.2 B1.2"),
            "{}",
            spell_rounds(&last)
        );
        let first = interleaved(pipeline_rank(0, 4, 2), 8);
        let warmup = first.iter().take_while(|round| round.len() == 1).count();
        assert_eq!(warmup, 2 * 3 + 4);
        assert_eq!(spell_rounds(&first[warmup..warmup + 2]), "F0.6 B1.0 F0.7 B1.1");
    }

    #[test]
    fn breadth_first_is_chunk_by_chunk() {
        let rounds = breadth_first(pipeline_rank(0, 2, 2), 3);
        let expected = "F0.0 F0.1 F0.2 F1.0 F1.1 F1.2 B1.0 B1.1 B1.2 B0.0 B0.1 B0.2";
        assert_eq!(spell_rounds(&rounds), expected);
        // Received when the last rank sends it: after as many passes as there are ranks.
        let actions = with_early_messages(pipeline_rank(0, 2, 2), &rounds, 1);
        let received = actions
            .iter()
            .position(|a| *a == Exchange(RecvX, pass(0, 1)));
        let next = actions.iter().position(|a| *a == Forward(pass(2, 0)));
        assert!(
            received < next && received > actions.iter().position(|a| *a == Forward(pass(1, 0)))
        );
    }

    /// Every pass appears once forward and once backward, in the order of micro-batches within a
    /// chunk.
    #[test]
    fn nothing_is_left_out() {
        for (ranks, chunks, micros) in [(2, 2, 2), (2, 3, 6), (3, 2, 3), (4, 2, 8), (4, 3, 12)] {
            for rank in 0..ranks {
                let pp = pipeline_rank(rank, ranks, chunks);
                let flat = interleaved(pp, micros).concat();
                for chunk in 0..chunks {
                    let of = |forward: bool| -> Vec<usize> {
                        let kind = flat.iter().filter(|a| matches!(a, Forward(_)) == forward);
                        let passes = kind.map(|a| a.pass()).filter(|pass| pass.chunk == chunk);
                        passes.map(|pass| pass.micro).collect()
                    };
                    let all: Vec<usize> = (0..micros).collect();
                    assert_eq!((of(true), of(false)), (all.clone(), all));
                }
                assert_eq!(interleaved(pp, micros).concat().len(), 2 * micros * chunks);
            }
        }
    }

    /// A slot holds one pass at a time, and there are as many slots as passes in flight: on the
    /// first rank, one more than its warm-up passes.
    #[test]
    fn slots_are_as_few_as_passes_in_flight() {
        for (ranks, chunks, micros) in [(2, 2, 8), (4, 2, 8), (4, 3, 12), (8, 4, 32)] {
            let pp = pipeline_rank(0, ranks, chunks);
            let actions = with_async_messages(pp, &interleaved(pp, micros));
            let (actions, count) = with_slots(actions, chunks);
            let most = 2 * (ranks - 1) + (chunks - 1) * ranks + 1;
            assert_eq!(count, most.min(micros * chunks), "{ranks} ranks, {chunks} chunks");
            let mut tenants = vec![None; count];
            for action in actions {
                let pass = action.pass();
                let tenant = (pass.micro, pass.chunk);
                match action {
                    Await(RecvX, _) | Forward(_) if tenants[pass.slot] != Some(tenant) => {
                        assert_eq!(tenants[pass.slot].replace(tenant), None);
                    }
                    Backward(_) => assert_eq!(tenants[pass.slot].take(), Some(tenant)),
                    _ => (),
                }
                if pass.chunk > 0 && matches!(action, Forward(_)) {
                    assert_eq!(tenants[pass.home], Some((pass.micro, 0)), "the inputs are there");
                }
            }
        }
    }

    /// Each side has one message in flight at a time. Each message is awaited once, before the pass
    /// that needs it.
    #[test]
    fn a_buffer_for_each_side_suffices() {
        for (ranks, chunks, micros) in [(2, 2, 2), (2, 3, 6), (3, 2, 3), (4, 2, 8), (4, 3, 12)] {
            for rank in 0..ranks {
                let pp = pipeline_rank(rank, ranks, chunks);
                let mut under_way: Vec<(Side, Pass)> = Vec::new();
                let mut here: Vec<(Side, Pass)> = Vec::new();
                for action in with_async_messages(pp, &interleaved(pp, micros)) {
                    match action {
                        Begin(side, pass) => {
                            assert!(under_way.iter().all(|(other, _)| *other != side));
                            under_way.push((side, pass));
                        }
                        Await(side, pass) => {
                            let at = under_way.iter().position(|each| *each == (side, pass));
                            here.push(under_way.remove(at.expect("it was begun")));
                        }
                        computation => {
                            let needed = computation.receives(pp);
                            assert!(needed.is_none_or(|message| here.contains(&message)));
                        }
                    }
                }
                assert_eq!(under_way, []);
                // Messages of each chunk in both directions, except the model's first input and
                // last output.
                let ends = usize::from(rank == 0) + usize::from(rank + 1 == ranks);
                assert_eq!(here.len(), micros * (4 * chunks - 2 * ends), "rank {rank} of {ranks}");
            }
        }
    }
}
