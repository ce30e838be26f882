//! Address of the rendezvous, "n01:29500", "10.0.0.1:29500" or "[fd00::1]:29500", and the addresses
//! at which ranks listen for it.

use std::fs::read_to_string;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};

/// Host and port of rank 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Name, or an IP address without brackets.
    host: String,
    pub port: u16,
}

impl Address {
    /// Reads `HOST:PORT`; None if it is something else.
    pub fn read(text: &str) -> Option<Address> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        Some(Address { host: host.to_string(), port: port.parse().ok()? })
    }

    /// IP address, unless it is a name.
    fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok().map(|ip: IpAddr| ip.to_canonical())
    }

    /// Local IP address at which every rank listens: the loopback interface if the address
    /// is on it. Otherwise of all interfaces: of the address's family, or of both for a name.
    pub fn listening_ip(&self) -> IpAddr {
        match self.ip() {
            Some(ip) if ip.is_loopback() => self.loopback(),
            None if self.host == "localhost" => self.loopback(),
            Some(IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
            None if serves_both_families() => Ipv6Addr::UNSPECIFIED.into(),
            _ => Ipv4Addr::UNSPECIFIED.into(),
        }
    }

    /// Loopback address at which ranks of one node reach each other.
    pub fn loopback(&self) -> IpAddr {
        match self.ip() {
            Some(ip) if ip.is_loopback() => ip,
            Some(IpAddr::V6(_)) => Ipv6Addr::LOCALHOST.into(),
            _ => Ipv4Addr::LOCALHOST.into(),
        }
    }
}

impl ToSocketAddrs for &Address {
    type Iter = std::vec::IntoIter<SocketAddr>;

    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        (self.host.as_str(), self.port)
            .to_socket_addrs()
            .map_err(|error| {
                let remedy =
                    "set one that all nodes can resolve: comm.rendezvous, or GPTRAIN_RENDEZVOUS";
                io::Error::new(error.kind(), format!("{error}; {remedy}"))
            })
    }
}

/// Whether a listener at `[::]` also accepts IPv4.
fn serves_both_families() -> bool {
    let setting = read_to_string("/proc/sys/net/ipv6/bindv6only");
    setting.is_ok_and(|text| text.trim() == "0")
        && TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_and_addresses_of_both_families() {
        let read = |text: &str| Address::read(text).map(|address| (address.host, address.port));
        let both = if serves_both_families() { "::" } else { "0.0.0.0" };
        for (text, host, listening, loopback) in [
            ("n01:29500", "n01", both, "127.0.0.1"),
            ("10.0.0.1:29500", "10.0.0.1", "0.0.0.0", "127.0.0.1"),
            ("127.0.0.5:29500", "127.0.0.5", "127.0.0.5", "127.0.0.5"),
            ("localhost:29500", "localhost", "127.0.0.1", "127.0.0.1"),
            ("[::1]:29500", "::1", "::1", "::1"),
            ("::1:29500", "::1", "::1", "::1"),
            ("[::ffff:10.0.0.1]:29500", "::ffff:10.0.0.1", "0.0.0.0", "127.0.0.1"),
            ("[fd00::7]:29500", "fd00::7", "::", "::1"),
        ] {
            assert_eq!(read(text), Some((host.to_string(), 29500)), "{text}");
            let address = Address::read(text).unwrap();
            assert_eq!(address.listening_ip().to_string(), listening, "{text}");
            assert_eq!(address.loopback().to_string(), loopback, "{text}");
        }
        assert_eq!(
            [read("n01"), read("n01:x"), read("n01:70000"), read("")],
            [None, None, None, None]
        );
    }
}
