//! What stands beside a rank's communicators: a thread that tells the recorder when the GPU comes to
//! an operation and when it is through, fails the world where NCCL has failed, and frees the rank
//! where the world has: a host that waits for a GPU that waits for a dead rank hears of nothing else.
//! Of a graph the GPU tells only when it comes to it and when it is through: so do its operations.

use super::api::{Api, IN_PROGRESS};
use crate::comm::world::Links;
use crate::comm::{Event, Failed};
use crate::device::cuda::driver::{Device, Handle, Launch, Witness};
use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the GPU is asked: an event costs about a microsecond.
const PERIOD: Duration = Duration::from_millis(10);

/// One communicator; none once it was aborted or has come to its end. Who calls NCCL holds the lock.
pub struct Comm(Mutex<Option<Handle>>);

// SAFETY: NCCL's handles may be used from any thread, by one at a time.
unsafe impl Send for Comm {}
unsafe impl Sync for Comm {}

/// A queue of the device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    Ops,
    Beside,
}

/// The thread, to its end: with the last communicator of the rank.
pub struct Beside {
    pub seen: Arc<Seen>,
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

/// What the rank and the thread share.
pub struct Seen {
    pub api: Arc<Api>,
    pub device: Arc<Device>,
    pub links: Arc<Links>,
    patience: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    comms: Vec<Arc<Comm>>,
    /// What is not known to be done, by queue, in the order in which it was asked for.
    asked: [VecDeque<Asked>; 2],
    tickets: u64,
    /// Pairs of events to be used again.
    free: Vec<Pair>,
    /// What the graph that is being captured is to tell at each launch.
    captured: Vec<Events>,
    /// A communicator under way: since when, and of which group.
    setting_up: Option<(Instant, String)>,
}

/// The events of an operation, when it is asked for once more.
type Events = Box<dyn Fn() -> Vec<Event> + Send + Sync>;

/// Passed before an operation, and after it.
#[derive(Clone, Copy)]
struct Pair([Handle; 2]);

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Pair {}

struct Asked {
    ticket: u64,
    events: Vec<Event>,
    between: Pair,
    /// Numbers in the recorder, once the GPU has come to it.
    entered: Option<Vec<u64>>,
}

impl Beside {
    /// `patience` is for a communicator to be set up.
    pub fn start(
        api: Arc<Api>,
        device: Arc<Device>,
        links: Arc<Links>,
        patience: Duration,
    ) -> Beside {
        let seen = Arc::new(Seen { api, device, links, patience, state: Mutex::default() });
        let witness: Arc<dyn Witness> = seen.clone();
        seen.device.watch(Arc::downgrade(&witness));
        let (end, ended) = channel();
        let look = seen.clone();
        let run = move || {
            while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                look.look();
            }
        };
        let name = format!("nccl of rank {}", seen.links.rank);
        let thread = std::thread::Builder::new().name(name).spawn(run).expect("a thread");
        Beside { seen, thread: Some((end, thread)) }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.thread.take() {
            drop(end);
            let _ = thread.join(); // it has nothing to tell
        }
        let state = self.seen.lock();
        let asked = state.asked.iter().flatten().map(|asked| asked.between);
        for event in state.free.iter().copied().chain(asked).flat_map(|pair| pair.0) {
            self.seen.device.try_call(|driver| unsafe { (driver.cuEventDestroy_v2)(event) });
        }
    }
}

impl Comm {
    /// Calls NCCL with the communicator; None if that was aborted.
    pub fn with<T>(&self, call: impl FnOnce(Handle) -> T) -> Option<T> {
        let comm = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        comm.map(call)
    }

    /// The communicator, for its end.
    pub fn take(&self) -> Option<Handle> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take()
    }

    /// The same, unless it is in use: a rank that NCCL itself holds up is ended with its process.
    fn try_take(&self) -> Option<Handle> {
        match self.0.try_lock() {
            Ok(mut comm) => comm.take(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().take(),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Seen {
    /// Makes a communicator of the group called `label`. None if NCCL did not.
    pub fn set_up(
        &self,
        label: String,
        make: impl FnOnce(&mut Handle) -> super::Code,
    ) -> Result<Arc<Comm>, String> {
        self.lock().setting_up = Some((Instant::now(), label.clone()));
        let (mut comm, mut code) = (null_mut(), 0);
        self.device.call(&label, |_| {
            code = make(&mut comm);
            0
        });
        let mut state = self.lock();
        state.setting_up = None;
        if code != 0 || comm.is_null() {
            return Err(format!("{label}: NCCL: {}", self.api.error(code)));
        }
        let comm = Arc::new(Comm(Mutex::new(Some(comm))));
        state.comms.push(comm.clone());
        Ok(comm)
    }

    /// Unwinds this rank if the world has failed.
    pub fn go_on(&self) {
        if let Some(failed) = self.links.inbox.failed() {
            failed.raise();
        }
    }

    /// Does what enters these events in a queue of the device, or becomes part of a graph. What
    /// `wanted` takes.
    pub fn ask(
        &self,
        lane: Lane,
        events: impl Fn() -> Vec<Event> + Send + Sync + 'static,
        call: impl FnOnce(Handle),
    ) -> u64 {
        if self.device.captures() {
            call(self.stream(lane));
            self.lock().captured.push(Box::new(events));
            return 0;
        }
        self.post(lane, events(), call)
    }

    fn post(&self, lane: Lane, events: Vec<Event>, call: impl FnOnce(Handle)) -> u64 {
        let stream = self.stream(lane);
        let pair = || Pair([self.device.event(), self.device.event()]);
        let free = self.lock().free.pop();
        let between = free.unwrap_or_else(pair);
        self.device.record(between.0[0], stream);
        call(stream);
        self.device.record(between.0[1], stream);
        let mut state = self.lock();
        state.tickets += 1;
        let ticket = state.tickets;
        state.asked[lane as usize].push_back(Asked { ticket, events, between, entered: None });
        ticket
    }

    /// The rank waits for it. In a graph, what is begun is also waited for.
    pub fn wanted(&self, ticket: u64) {
        let mut state = self.lock();
        let mut asked = state.asked.iter_mut().flatten();
        let Some(asked) = asked.find(|asked| asked.ticket == ticket) else { return };
        asked.events.iter_mut().for_each(|event| event.queued = false);
        let entered = asked.entered.iter().flatten();
        entered.for_each(|number| self.links.recorder.wanted(*number));
    }

    pub fn stream(&self, lane: Lane) -> Handle {
        match lane {
            Lane::Ops => self.device.stream,
            Lane::Beside => self.device.beside,
        }
    }

    fn look(&self) {
        self.note();
        let comms = self.lock().comms.clone();
        if let Some(failed) = self.links.inbox.failed() {
            // First, so that what a host was waiting for does not pass for done.
            self.device.fail(failed.line);
            for comm in comms.iter().filter_map(|comm| comm.try_take()) {
                // SAFETY: nobody else has it any more.
                self.device.try_call(|_| unsafe { (self.api.ncclCommAbort)(comm) });
            }
        } else if let Some(what) = self.wrong(&comms) {
            self.links.fail(Failed::new(format!("{} failed: {what}", self.links.name())));
        }
    }

    /// Tells the recorder how far the GPU has come.
    fn note(&self) {
        let recorder = &self.links.recorder;
        let State { asked, free, .. } = &mut *self.lock();
        for lane in asked {
            while let Some(first) = lane.front_mut() {
                let Pair([before, after]) = first.between;
                if first.entered.is_none() && self.device.passed(before) {
                    let enter = |event: &Event| {
                        let number = recorder.enqueue(event.clone());
                        recorder.start(number);
                        number
                    };
                    first.entered = Some(first.events.iter().map(enter).collect());
                }
                let Some(entered) = &first.entered else { break };
                if !self.device.passed(after) {
                    break;
                }
                entered.iter().for_each(|number| recorder.finish(*number));
                free.push(first.between);
                lane.pop_front();
            }
        }
    }

    /// What NCCL has to report of its own accord, or does not come through with.
    fn wrong(&self, comms: &[Arc<Comm>]) -> Option<String> {
        if let Some((since, label)) = &self.lock().setting_up
            && since.elapsed() > self.patience
        {
            let seconds = self.patience.as_secs_f64();
            return Some(format!(
                "NCCL has not made {label} in {seconds:.0} s; NCCL_DEBUG=INFO has it say why"
            ));
        }
        let broken = |comm: &Arc<Comm>| {
            let mut code = 0;
            // Held by a call: that returns its error itself.
            let comm = comm.0.try_lock().ok()?;
            // SAFETY: the lock keeps the communicator alive.
            unsafe { (self.api.ncclCommGetAsyncError)((*comm)?, &mut code) };
            (code != 0 && code != IN_PROGRESS).then_some(code)
        };
        let code = comms.iter().find_map(broken)?;
        Some(format!("NCCL: {}", self.api.error(code)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Witness for Seen {
    fn captured(self: Arc<Self>) -> Launch {
        let captured = std::mem::take(&mut self.lock().captured);
        Box::new(move |launch| {
            self.go_on();
            let events = captured.iter().flat_map(|events| events());
            let events: Vec<Event> = events.map(|e| Event { queued: false, ..e }).collect();
            match events.is_empty() {
                true => launch(),
                false => drop(self.post(Lane::Ops, events, |_| launch())),
            }
        })
    }
}
