//! Starts threads such that a lack of threads is an error. `std::thread::spawn`, `Scope::spawn` and
//! rayon's own pool panic instead.

use super::output;
use anyhow::{Context, Result};
use memmap2::MmapMut;
use parking_lot::Mutex;
use std::sync::mpsc::channel;
use std::sync::{Arc, Once};
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

/// Stack of a thread, if not given.
const STACK: usize = 2 << 20;

/// Memory that a thread needs beside its stack. The largest part is the stack of its signal handlers.
/// Rust allocates it in the new thread and panics if it cannot (`report_refused_memory`).
const BESIDE: usize = 256 << 10;

/// Starts a named thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    builder(name, STACK)?
        .spawn(work)
        .with_context(|| refusal_message(name))
}

/// Starts a scoped thread, whose work may borrow.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    spawn_with_stack(scope, name, STACK, work)
}

/// Starts a scoped thread with a stack of `bytes` bytes.
pub fn spawn_with_stack<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    builder(name, bytes)?
        .spawn_scoped(scope, work)
        .with_context(|| refusal_message(name))
}

/// Builder of a thread, if the system has memory for it now.
fn builder(name: &str, stack: usize) -> Result<Builder> {
    MmapMut::map_anon(stack + BESIDE).with_context(|| refusal_message(name))?;
    Ok(Builder::new().name(name.into()).stack_size(stack))
}

fn refusal_message(name: &str) -> String {
    format!("cannot start the thread \"{name}\" (limits: ulimit -u, -d and -v, the job's tasks)")
}

/// Ends the process by a message where Rust panics because a new thread has no memory for the stack
/// of its signal handlers: other threads took it after `builder` had looked. Call it once.
pub fn report_refused_memory() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload_as_str().unwrap_or_default();
        if text.starts_with("failed to allocate an alternative stack") {
            let current = std::thread::current();
            output::abandon();
            crate::warn!(
                "gptrain: {}: {text}",
                refusal_message(current.name().unwrap_or_default())
            );
            std::process::exit(1);
        }
        print(panic);
    }));
}

/// Initialises rayon's global pool; call it before using rayon. By default rayon starts one thread
/// per processor and panics if it cannot. This starts as many as the system allows; with none, the
/// calling thread does the work.
pub fn init_rayon() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let (give, taken) = channel::<rayon::ThreadBuilder>();
        let taken = Arc::new(Mutex::new(taken));
        let wanted = std::thread::available_parallelism().map_or(1, |n| n.get());
        let started = (0..wanted)
            .take_while(|number| {
                let taken = taken.clone();
                let next = move || taken.lock().recv().ok();
                spawn(&format!("rayon-{number}"), move || next().map(rayon::ThreadBuilder::run))
                    .is_ok()
            })
            .count();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(started.max(1));
        let built = match started {
            0 => pool.use_current_thread().build_global(),
            _ => pool
                .spawn_handler(|thread| {
                    give.send(thread)
                        .map_err(|_| std::io::Error::other("the thread has ended"))
                })
                .build_global(),
        };
        drop(built); // an error means that a pool exists already; these threads then end
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_cannot_be_had_is_an_error_with_its_name() {
        let refused = std::thread::scope(|scope| {
            spawn_with_stack(scope, "of a whole address space", 1 << 62, || 1).map(drop)
        });
        let said = format!("{:#}", refused.unwrap_err());
        assert!(said.starts_with("cannot start the thread \"of a whole address space\""), "{said}");
        let sum = std::thread::scope(|scope| {
            let one = spawn_scoped(scope, "one", || 1).unwrap();
            one.join().unwrap() + spawn("two", || 2).unwrap().join().unwrap()
        });
        assert_eq!(sum, 3);
    }
}
