//! Work on a corpus by several threads: one reads, some work, and the caller gets the results in
//! the corpus's order. A fixed number of chunks is under way at a time, so memory is bounded.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};

use anyhow::{Context, Result};

use super::{Chunk, Input, chunks};

/// How a corpus is read.
pub struct Reading<'a> {
    pub inputs: &'a [Input],
    /// Threads that work, besides the one that reads.
    pub threads: usize,
    /// Keep plain text in one piece, for tokenizers whose ids would differ across a cut.
    pub whole_texts: bool,
}

/// How far reading has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Bytes of files, as they are on disk.
    pub read: u64,
    /// Bytes of them decompressed.
    pub text: u64,
}

/// A chunk on its way to a worker, with its place in the order.
type Job = (u64, Result<(Chunk, Report)>);

/// Gives every chunk to `work` on some thread (each has a `state` of its own), and what comes back,
/// in order, to `sink`. Stops at the first error in that order.
pub fn in_order<S, T: Send>(
    reading: &Reading<'_>,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, Chunk) -> Result<T> + Sync,
    mut sink: impl FnMut(T, Report) -> Result<()>,
) -> Result<()> {
    let under_way = 4 * reading.threads;
    let (permit, permits) = channel();
    (0..under_way).for_each(|_| permit.send(()).expect("the receiver is right here"));
    let (send, jobs) = sync_channel(under_way);
    let jobs = Mutex::new(jobs);
    let (send_done, done) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || read(reading, &permits, |job| send.send(job).is_ok()));
        for _ in 0..reading.threads {
            let (jobs, state, work, done) = (&jobs, &state, &work, send_done.clone());
            scope.spawn(move || worker(jobs, state(), work, &done));
        }
        drop(send_done);
        let ended = collect(&done, &permit, &mut sink);
        drop((done, permit)); // on an error the others find their channels closed, and end
        ended
    })
}

fn read(reading: &Reading<'_>, permits: &Receiver<()>, mut send: impl FnMut(Job) -> bool) {
    let mut number = 0;
    let mut files = 0; // bytes of the files before the present one
    let mut text = 0;
    for input in reading.inputs {
        let mut goes_on = true;
        let cut = chunks::cut(input, reading.whole_texts, |chunk| {
            text += chunk.bytes.len() as u64;
            let report = Report { read: files + chunk.read, text };
            goes_on = permits.recv().is_ok() && send((number, Ok((chunk, report))));
            number += 1;
            goes_on
        });
        if let Err(error) = cut {
            send((number, Err(error)));
            return;
        }
        if !goes_on {
            return;
        }
        files += input.size;
    }
}

fn worker<S, T>(
    jobs: &Mutex<Receiver<Job>>,
    mut state: S,
    work: impl Fn(&mut S, Chunk) -> Result<T>,
    done: &Sender<(u64, Result<(T, Report)>)>,
) {
    loop {
        let job = jobs.lock().map(|jobs| jobs.recv());
        let Ok(Ok((number, job))) = job else { return };
        let result = job.and_then(|(chunk, report)| Ok((work(&mut state, chunk)?, report)));
        if done.send((number, result)).is_err() {
            return;
        }
    }
}

fn collect<T>(
    done: &Receiver<(u64, Result<(T, Report)>)>,
    permit: &Sender<()>,
    sink: &mut impl FnMut(T, Report) -> Result<()>,
) -> Result<()> {
    let mut waiting = BTreeMap::new();
    let mut next = 0;
    for (number, result) in done {
        waiting.insert(number, result);
        while let Some(result) = waiting.remove(&next) {
            let (item, report) = result?;
            sink(item, report)?;
            permit.send(()).ok(); // the reader may have finished
            next += 1;
        }
    }
    waiting.is_empty().then_some(()).context("a worker thread died")
}
