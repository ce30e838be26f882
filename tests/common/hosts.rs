//! Several hosts on this machine.

use std::process::Command;

/// Two hosts with a cable between them: network namespaces, which go when this is dropped.
/// None where this user may not make namespaces.
pub struct Hosts {
    names: [String; 2],
}

impl Hosts {
    pub fn new(test: &str) -> Option<Hosts> {
        let names = ["a", "b"].map(|host| format!("gptrain-{}-{test}-{host}", std::process::id()));
        if !ip(&format!("netns add {}", names[0])) {
            eprintln!("not tested: this user may not make network namespaces");
            return None;
        }
        let hosts = Hosts { names };
        let [a, b] = &hosts.names;
        assert!(ip(&format!("netns add {b}")));
        let cable = format!("-n {a} link add cable type veth peer name cable netns {b}");
        assert!(ip(&cable), "{cable}");
        for (host, address) in [(a, "10.0.0.1"), (b, "10.0.0.2")] {
            assert!(ip(&format!("-n {host} addr add {address}/24 dev cable")));
            assert!(ip(&format!("-n {host} link set cable up")));
            assert!(ip(&format!("-n {host} link set lo up")));
        }
        Some(hosts)
    }

    /// Prefix of a command on a host: `ip netns exec NAME`.
    pub fn on(&self, host: usize) -> [&str; 4] {
        ["ip", "netns", "exec", &self.names[host]]
    }

    /// The address of the first host.
    pub const FIRST: &str = "10.0.0.1";

    /// "up" or "down".
    pub fn cable(&self, state: &str) {
        assert!(ip(&format!("-n {} link set cable {state}", self.names[1])));
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&format!("netns del {name}"));
        }
    }
}

/// Whether this user may make mount namespaces with host names of their own, as nodes of a test are. Says if
/// not.
pub fn may_mount() -> bool {
    let made = Command::new("unshare")
        .args(["--mount", "--uts", "true"])
        .status();
    let may = made.is_ok_and(|status| status.success());
    if !may {
        eprintln!("not tested: this user may not make mount namespaces");
    }
    may
}

fn ip(args: &str) -> bool {
    let output = Command::new("ip").args(args.split(' ')).output();
    output.is_ok_and(|output| output.status.success())
}
