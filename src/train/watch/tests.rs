use super::*;
use std::cell::RefCell;

struct Probe<'t>(&'static str, &'t RefCell<Vec<&'static str>>);

impl Watcher for Probe<'_> {
    fn name(&self) -> &'static str {
        self.0
    }

    fn must_roll_back(&self) -> bool {
        self.1.borrow_mut().push(self.0);
        false
    }
}

fn probes<'t>(
    names: &[&'static str],
    called: &'t RefCell<Vec<&'static str>>,
) -> Vec<Box<dyn Watcher + 't>> {
    names
        .iter()
        .map(|name| Box::new(Probe(name, called)) as Box<dyn Watcher>)
        .collect()
}

#[test]
fn watchers_are_called_in_the_order_of_their_list() {
    let called = RefCell::default();
    let watchers = Watchers::new(probes(&ORDER, &called));
    assert!(!watchers.must_roll_back());
    assert_eq!(*called.borrow(), ORDER);
}

/// One notifies the others while it is called.
#[test]
fn a_watcher_that_is_called_receives_no_other_call() {
    let called = RefCell::default();
    let watchers = Watchers::new(probes(&ORDER, &called));
    watchers.for_each(|watcher| {
        if watcher.name() == "saver" {
            watchers.must_roll_back();
        }
    });
    let others: Vec<_> = ORDER.into_iter().filter(|name| *name != "saver").collect();
    assert_eq!(*called.borrow(), others);
}

#[test]
fn the_longest_wish_for_an_idle_device_counts() {
    assert_eq!(Idle::after(true).max(Idle::after(false)), Idle::After);
    assert!(Idle::Around > Idle::After && Idle::After > Idle::default());
    let step = |step| StepSpec { step, samples: 0..4, last: false };
    assert!(step(20).ends(10) && !step(21).ends(10) && !step(20).ends(0));
}

#[test]
#[should_panic(expected = "the order of watchers")]
fn another_order_is_refused() {
    let called = RefCell::default();
    let mut names = ORDER;
    names.swap(1, 3);
    Watchers::new(probes(&names, &called));
}

#[test]
fn requests_are_bits_that_keep_apart() {
    let requests = Requests::STOP | Requests::LEAVE.when(true) | Requests::SAVE.when(false);
    let set = Requests::ALL.map(|request| requests.has(request));
    assert_eq!(set, [true, false, false, false, false, true, false, false]);
    let counts = RequestCounts([1, 2, 3, 4, 5, 6, 7, 8]);
    for (i, request) in Requests::ALL.into_iter().enumerate() {
        assert_eq!(counts.count(request), i + 1);
    }
}
