//! Processes a corpus with several threads: one reads, some work, and the caller receives the
//! results in the order of the corpus. A fixed number of chunks is in flight, so memory is bounded.

use std::sync::mpsc::sync_channel;

use anyhow::Result;

use super::{Chunk, ReadOptions, chunks};

/// Progress of reading.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadProgress {
    /// Bytes of files on disk.
    pub read: u64,
    /// Bytes after decompression.
    pub text: u64,
}

/// Passes every chunk to `work` on some thread (each with its own `state`), and the results, in
/// order, to `sink`. Stops at the first error in that order.
pub fn process_in_order<S, T: Send>(
    options: &ReadOptions<'_>,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, Chunk) -> Result<T> + Sync,
    mut sink: impl FnMut(T, ReadProgress) -> Result<()>,
) -> Result<()> {
    // Maximum chunks waiting for a thread, and maximum being processed or waiting for the sink.
    let room = 2 * options.threads;
    let (send, chunks) = sync_channel(room);
    std::thread::scope(|scope| {
        base::threads::spawn_scoped(scope, "reader", move || {
            read(options, |chunk| send.send(chunk).is_ok())
        })?;
        base::in_order(
            options.threads,
            room,
            chunks,
            state,
            |state: &mut S, chunk: Result<(Chunk, ReadProgress)>| {
                chunk.and_then(|(chunk, progress)| Ok((work(state, chunk)?, progress)))
            },
            |result: Result<(T, ReadProgress)>| {
                result.and_then(|(item, progress)| sink(item, progress))
            },
        )
    })
}

fn read(options: &ReadOptions<'_>, mut send: impl FnMut(Result<(Chunk, ReadProgress)>) -> bool) {
    let mut files = 0; // bytes of the files before the present one
    let mut text = 0;
    for input in options.inputs {
        let mut wants_more = true;
        let cut = chunks::for_each_chunk(input, options, |chunk| {
            text += chunk.bytes.len() as u64;
            let progress = ReadProgress { read: files + chunk.read, text };
            wants_more = send(Ok((chunk, progress)));
            wants_more
        });
        if let Err(error) = cut {
            send(Err(error));
            return;
        }
        if !wants_more {
            return;
        }
        files += input.size;
    }
}
