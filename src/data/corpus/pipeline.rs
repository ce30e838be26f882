//! Work on a corpus by several threads: one reads, some work, and the caller gets the results in
//! the corpus's order. A fixed number of chunks is under way at a time, so memory is bounded.

use std::sync::mpsc::sync_channel;

use anyhow::Result;

use super::{Chunk, Reading, chunks};

/// How far reading has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Bytes of files, as they are on disk.
    pub read: u64,
    /// Bytes of them decompressed.
    pub text: u64,
}

/// Gives every chunk to `work` on some thread (each has a `state` of its own), and what comes back,
/// in order, to `sink`. Stops at the first error in that order.
pub fn in_order<S, T: Send>(
    reading: &Reading<'_>,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, Chunk) -> Result<T> + Sync,
    mut sink: impl FnMut(T, Report) -> Result<()>,
) -> Result<()> {
    // So many chunks wait for a thread, and so many are with one or wait for the sink.
    let room = 2 * reading.threads;
    let (send, chunks) = sync_channel(room);
    std::thread::scope(|scope| {
        let reader = move || read(reading, |chunk| send.send(chunk).is_ok());
        base::threads::spawn_scoped(scope, "reader", reader)?;
        let work = |state: &mut S, chunk: Result<(Chunk, Report)>| {
            chunk.and_then(|(chunk, report)| Ok((work(state, chunk)?, report)))
        };
        let sink =
            |result: Result<(T, Report)>| result.and_then(|(item, report)| sink(item, report));
        base::in_order(reading.threads, room, chunks, state, work, sink)
    })
}

fn read(reading: &Reading<'_>, mut send: impl FnMut(Result<(Chunk, Report)>) -> bool) {
    let mut files = 0; // bytes of the files before the present one
    let mut text = 0;
    for input in reading.inputs {
        let mut goes_on = true;
        let cut = chunks::cut(input, reading, |chunk| {
            text += chunk.bytes.len() as u64;
            let report = Report { read: files + chunk.read, text };
            goes_on = send(Ok((chunk, report)));
            goes_on
        });
        if let Err(error) = cut {
            send(Err(error));
            return;
        }
        if !goes_on {
            return;
        }
        files += input.size;
    }
}
