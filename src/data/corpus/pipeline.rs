//! Processes a corpus with several threads: one reads, some work, and the caller receives the
//! results in the order of the corpus. A fixed number of chunks is in flight, so memory is bounded.

use std::sync::mpsc::sync_channel;

use anyhow::Result;

use super::{Chunk, Reading, chunks};

/// Progress of reading.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Bytes of files on disk.
    pub read: u64,
    /// Bytes after decompression.
    pub text: u64,
}

/// Passes every chunk to `work` on some thread (each with its own `state`), and the results, in
/// order, to `sink`. Stops at the first error in that order.
pub fn in_order<S, T: Send>(
    reading: &Reading<'_>,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, Chunk) -> Result<T> + Sync,
    mut sink: impl FnMut(T, Report) -> Result<()>,
) -> Result<()> {
    // Maximum chunks waiting for a thread, and maximum being processed or waiting for the sink.
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
