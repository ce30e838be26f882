//! Clock of this process. It pauses while the process is stopped: by `scontrol suspend`, gang
//! scheduling, a container's freezer, or SIGSTOP. Every time limit and every duration of a run is
//! measured by it, so that a job that is suspended and resumed as a whole blames no rank.
//!
//! A thread reads the clock at intervals. A reading that is later than that by seconds means that
//! no thread of the process ran meanwhile.

use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Interval of the thread's readings.
const TICK: Duration = Duration::from_millis(500);

/// Time without a reading above which the process was stopped.
const LATE: Duration = Duration::from_secs(2);

/// Time after a stop in which waits do not count: other nodes of the job are resumed later.
const RESUMING: Duration = Duration::from_secs(5);

/// Point of time in this process's run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Times since the first reading: in which the process ran, in which waits count, and in which
    /// the process was stopped.
    ran: Duration,
    counted: Duration,
    stopped: Duration,
}

impl Moment {
    pub fn now() -> Moment {
        static CLOCK: OnceLock<Mutex<Clock>> = OnceLock::new();
        static TICKS: OnceLock<bool> = OnceLock::new();
        let read = || {
            let mut clock = CLOCK
                .get_or_init(|| Mutex::new(Clock::new(Instant::now())))
                .lock();
            clock.read(Instant::now())
        };
        let tick = move || {
            loop {
                std::thread::sleep(TICK);
                read();
            }
        };
        // Without the thread, a process that does nothing for a while would count as stopped.
        let ticks = TICKS.get_or_init(|| super::threads::spawn("clock", tick).is_ok());
        let mut now = read();
        if !ticks {
            now.ran += now.stopped;
            now.counted = now.ran;
        }
        now
    }

    /// Time since then in which the process ran.
    pub fn elapsed(self) -> Duration {
        Moment::now().since(self)
    }

    /// Time since then that counts for a time limit: less than `elapsed` after a stop.
    pub fn waited(self) -> Duration {
        Moment::now().counted.saturating_sub(self.counted)
    }

    /// Time between an earlier moment and this one in which the process was stopped.
    pub fn stopped_since(self, earlier: Moment) -> Duration {
        self.stopped.saturating_sub(earlier.stopped)
    }

    /// Time between an earlier moment and this one in which the process ran.
    pub fn since(self, earlier: Moment) -> Duration {
        self.ran.saturating_sub(earlier.ran)
    }
}

/// End of a time limit, which does not pass while the process is stopped.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    begun: Moment,
    limit: Duration,
}

impl Deadline {
    /// Deadline of a wait that begins now.
    pub fn after(limit: Duration) -> Deadline {
        Deadline { begun: Moment::now(), limit }
    }

    /// Remaining time; 0 if it has passed.
    pub fn left(&self) -> Duration {
        self.limit.saturating_sub(self.begun.waited())
    }

    pub fn has_passed(&self) -> bool {
        self.left().is_zero()
    }

    /// Receives the next value of a channel before the deadline.
    pub fn receive<T>(&self, from: &Receiver<T>) -> Result<T, RecvTimeoutError> {
        loop {
            match from.recv_timeout(self.left()) {
                Err(RecvTimeoutError::Timeout) if !self.has_passed() => {}
                received => return received,
            }
        }
    }
}

/// Times up to the last reading.
struct Clock {
    last: Instant,
    /// End of the last stop.
    resumed: Option<Instant>,
    at: Moment,
}

impl Clock {
    fn new(now: Instant) -> Clock {
        Clock { last: now, resumed: None, at: Moment::default() }
    }

    fn read(&mut self, now: Instant) -> Moment {
        let passed = now.saturating_duration_since(self.last);
        self.last = self.last.max(now);
        if passed > LATE {
            self.at.stopped += passed;
            self.resumed = Some(now);
            return self.at;
        }
        self.at.ran += passed;
        if self
            .resumed
            .is_none_or(|resumed| now.saturating_duration_since(resumed) >= RESUMING)
        {
            self.at.counted += passed;
        }
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const SECOND: Duration = Duration::from_secs(1);
    const TEN: Duration = Duration::from_secs(10);

    /// Reads the clock at each tick of `seconds` seconds.
    fn run(clock: &mut Clock, seconds: u32) -> Moment {
        for _ in 0..2 * seconds {
            clock.read(clock.last + TICK);
        }
        clock.at
    }

    #[test]
    fn a_stop_counts_for_no_limit_and_a_wait_counts_again_some_seconds_after_it() {
        let mut clock = Clock::new(Instant::now());
        let before = run(&mut clock, 10);
        assert_eq!((before.ran, before.counted, before.stopped), (TEN, TEN, Duration::ZERO));
        let resumed = clock.read(clock.last + 3600 * SECOND);
        assert_eq!((resumed.ran, resumed.stopped), (TEN, 3600 * SECOND));
        let resuming = run(&mut clock, 4);
        assert_eq!((resuming.since(resumed), resuming.counted), (4 * SECOND, TEN));
        let after = run(&mut clock, 30);
        assert!(after.counted >= TEN + 29 * SECOND, "{after:?}");
        assert_eq!(after.since(before), 34 * SECOND);
    }

    /// A job that is suspended half of the time: a hang is found nevertheless.
    #[test]
    fn waits_add_up_between_regular_stops() {
        let mut clock = Clock::new(Instant::now());
        for _ in 0..20 {
            clock.read(clock.last + 30 * SECOND);
            run(&mut clock, 30);
        }
        assert_eq!(clock.at.ran, 600 * SECOND);
        assert!(clock.at.counted >= 500 * SECOND, "{:?}", clock.at);
    }

    #[test]
    fn a_time_that_lies_behind_the_last_reading_changes_nothing() {
        let begin = Instant::now() + SECOND;
        let mut clock = Clock::new(begin);
        assert_eq!(clock.read(begin - SECOND), Moment::default());
        assert_eq!(clock.read(begin + SECOND).ran, SECOND);
    }

    #[test]
    fn a_deadline_passes_and_a_longer_one_does_not() {
        let (give, taken) = channel();
        let short = Deadline::after(Duration::from_millis(20));
        assert_eq!(short.receive(&taken), Err::<u8, _>(RecvTimeoutError::Timeout));
        assert!(short.has_passed());
        let long = Deadline::after(Duration::MAX);
        give.send(7).unwrap();
        assert_eq!(long.receive(&taken), Ok(7));
        drop(give);
        assert_eq!(long.receive(&taken), Err(RecvTimeoutError::Disconnected));
        assert!(!long.has_passed());
        let begun = Moment::now();
        std::thread::sleep(Duration::from_millis(5));
        assert!(begun.elapsed() >= Duration::from_millis(5) && Moment::now() > begun);
    }
}
