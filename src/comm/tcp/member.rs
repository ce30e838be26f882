//! The control connection of every rank but 0: heartbeats out, the verdict in.

use super::super::Failed;
use super::here::{Control, Here, describe};
use super::notes::{self, Note};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a rank that has failed waits to hear why.
const ANSWER: Duration = Duration::from_secs(4);

/// A rank is heard twenty times a second at most, and rank 0 hears a thousand beats: what it knows of
/// a rank that dies is as old.
const BEAT: Duration = Duration::from_millis(50);
const FROM_EACH: Duration = Duration::from_millis(1);

pub struct Member {
    here: Arc<Here>,
    writer: Mutex<TcpStream>,
    /// When rank 0 was last heard; None after its goodbye.
    heard: Mutex<Option<Instant>>,
}

pub fn start(here: Arc<Here>, control: TcpStream) -> Arc<Member> {
    let reader = control.try_clone().expect("a file descriptor");
    let _ = control.set_write_timeout(Some(here.watch.timeout));
    let heard = Mutex::new(Some(Instant::now()));
    let member = Arc::new(Member { here, writer: Mutex::new(control), heard });
    let (listener, beater) = (member.clone(), member.clone());
    std::thread::spawn(move || listener.listen(reader));
    std::thread::spawn(move || beater.beat());
    member
}

impl Member {
    fn listen(&self, mut from: TcpStream) {
        loop {
            match notes::read(&mut from) {
                Ok(Note::Pulse) => *lock(&self.heard) = Some(Instant::now()),
                Ok(Note::Verdict { line, speak }) => {
                    self.here.agree(Failed { line, speak });
                    return;
                }
                Ok(Note::Goodbye) => {
                    *lock(&self.heard) = None;
                    return;
                }
                Ok(other) => return self.orphaned(format!("says {other:?}")),
                Err(_) if self.here.left() => return,
                Err(error) => return self.orphaned(format!("died: {}", describe(&error))),
            }
        }
    }

    /// Rank 0 finds no verdict any more.
    fn orphaned(&self, what: String) {
        let doing = self.here.recorder.now_doing();
        let rank = self.here.report(0).name();
        let line = format!("rank 0 {what}; {rank} was in: {doing}");
        self.here.agree(self.here.watch.claim(line));
    }

    fn beat(&self) {
        let watch = &self.here.watch;
        let period = watch.period().min(BEAT.max(self.here.size as u32 * FROM_EACH));
        loop {
            // A connection that breaks is noticed by the listener.
            let _ = self.say(&Note::Beat(Box::new(self.here.report(8))));
            if !self.here.sleep(period) {
                return;
            }
            let silent = lock(&self.heard).map_or(Duration::ZERO, |heard| heard.elapsed());
            // Rank 0 is first to judge.
            if silent > watch.timeout + 2 * watch.period() {
                let seconds = silent.as_secs_f64();
                self.orphaned(format!("is silent for {seconds:.0} s: stopped, or cut off"));
            }
        }
    }

    fn say(&self, note: &Note) -> std::io::Result<()> {
        notes::write(&mut lock(&self.writer), note)
    }
}

impl Control for Member {
    fn failure(&self, failed: Failed) -> Failed {
        let _ = self.say(&Note::Failure(failed.line.clone()));
        self.here.wait_agreed(ANSWER).unwrap_or_else(|| self.here.agree(failed))
    }

    fn leave(&self) {
        let _ = self.say(&Note::Goodbye);
        while lock(&self.heard).is_some() && self.here.sleep(Duration::from_millis(5)) {}
        self.here.leave();
        let _ = lock(&self.writer).shutdown(Shutdown::Both);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
