use super::*;
use std::cell::RefCell;

struct Probe<'t>(&'static str, Asks, &'t RefCell<Vec<&'static str>>);

impl Watcher for Probe<'_> {
    fn name(&self) -> &'static str {
        self.0
    }

    fn is_written(&mut self) -> anyhow::Result<bool> {
        self.2.borrow_mut().push(self.0);
        Ok(self.1 != Asks::AWAY)
    }
}

fn probes<'t>(
    names: &[&'static str],
    called: &'t RefCell<Vec<&'static str>>,
) -> Vec<Box<dyn Watcher + 't>> {
    let probe = |name: &&'static str| Box::new(Probe(name, Asks::NONE, called)) as Box<dyn Watcher>;
    names.iter().map(probe).collect()
}

#[test]
fn watchers_are_called_in_the_order_of_their_list() {
    let called = RefCell::default();
    assert!(Watchers::new(probes(&ORDER, &called)).is_written().unwrap());
    assert_eq!(*called.borrow(), ORDER);
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
    let asked = Asks::STOP | Asks::LEAVE.when(true) | Asks::SAVE.when(false);
    let set = Asks::ALL.map(|ask| asked.has(ask));
    assert_eq!(set, [true, false, false, false, false, true, false]);
    let counts = Counts([1, 2, 3, 4, 5, 6, 7]);
    for (i, ask) in Asks::ALL.into_iter().enumerate() {
        assert_eq!(counts.of(ask), i + 1);
    }
}
