//! The address at which the first process of a run on several machines serves the rendezvous store.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use super::error::DistError;
use super::store::StoreServer;

/// An address and a port, as a user or a launcher gave them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Master {
    /// A name, or an address without brackets.
    pub host: String,
    pub port: u16,
}

impl fmt::Display for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl Master {
    /// Words for what [`Master::parse`] takes.
    pub const ALLOWED: &str = "an address of the first machine and a port, as 10.0.0.1:29500, node1:29500 or [fd00::1]:29500";

    /// Reads `HOST:PORT`; addresses of IPv6 have brackets.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.trim().rsplit_once(':')?;
        let port = port.parse().ok().filter(|p| *p > 0)?;
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let host = match bare {
            Some(bare) => bare.parse::<std::net::Ipv6Addr>().ok().map(|_| bare)?,
            None => host,
        };
        let is_name = !host.is_empty() && !host.contains(char::is_whitespace);
        (is_name && (bare.is_some() || !host.contains(':'))).then(|| Master {
            host: host.into(),
            port,
        })
    }

    /// Loopback, at a port of the run's own.
    pub fn loopback(run: &str) -> Self {
        Master {
            host: "127.0.0.1".into(),
            port: Master::port_of(run),
        }
    }

    /// A port that follows from the name of a run (FNV-1a), below those that systems give to connections.
    pub fn port_of(run: &str) -> u16 {
        let hash = run.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        20_000 + (hash % 10_000) as u16
    }

    fn resolve(&self) -> Result<Vec<SocketAddr>, DistError> {
        let found = (&*self.host, self.port).to_socket_addrs();
        let found: Vec<_> = found.map_err(|e| self.error(e))?.collect();
        if found.is_empty() {
            return Err(self.error("the name has no address"));
        }
        Ok(found)
    }

    fn error(&self, reason: impl ToString) -> DistError {
        DistError::Store {
            address: self.to_string(),
            reason: reason.to_string(),
        }
    }

    /// Whether only this machine can reach it.
    ///
    /// # Errors
    /// [`DistError::Store`]: the name has no address.
    pub fn is_loopback(&self) -> Result<bool, DistError> {
        Ok(self.resolve()?.iter().all(|a| a.ip().is_loopback()))
    }

    /// Serves the store there, and nowhere else.
    ///
    /// # Errors
    /// [`DistError::Store`]: the address is not one of this machine, the port is taken, or the address is a name that
    /// only this machine understands as itself, though ranks come from others.
    pub fn serve(&self, token: &str, one_machine: bool) -> Result<StoreServer, DistError> {
        let addresses = self.resolve()?;
        let literal = self.host.parse::<IpAddr>().is_ok() || self.host == "localhost";
        if !one_machine && !literal && addresses.iter().all(|a| a.ip().is_loopback()) {
            return Err(self.error(format!(
                "{} is {} on this machine, where no other one can come; give an address that the others reach (hostname -I lists them)",
                self.host,
                addresses[0].ip()
            )));
        }
        let mut last = None;
        // a name may stand for an address that is not of this machine, and for one that is
        for address in addresses {
            match StoreServer::bind(address.ip(), self.port, token) {
                Ok(server) => return Ok(server),
                Err(e) => last = Some(e),
            }
        }
        Err(match last {
            Some(DistError::Store { reason, .. }) => self.error(format!(
                "{reason}; the first process listens there: give an address of its machine and a free port"
            )),
            Some(e) => e,
            None => self.error("the name has no address"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for (text, host, port) in [
            ("10.0.0.1:29500", "10.0.0.1", 29500),
            ("node-1.example:1", "node-1.example", 1),
            ("[fd00::1]:80", "fd00::1", 80),
        ] {
            let found = Master::parse(text).unwrap();
            assert_eq!((&found.host[..], found.port), (host, port));
            assert_eq!(found.to_string(), text);
        }
        for text in [
            "",
            "node1",
            ":1",
            "node1:",
            "node1:0",
            "node1:70000",
            "fd00::1:80",
            "[fd00::1]",
            "[node1]:5",
            "a b:5",
        ] {
            assert_eq!(Master::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_port_that_is_taken_is_named_with_what_to_do() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let master = Master {
            host: "127.0.0.1".into(),
            port,
        };
        let error = master.serve("t", true).map(|_| ()).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("rendezvous store at 127.0.0.1:{port}: "))
                && error.ends_with("give an address of its machine and a free port"),
            "{error}"
        );
    }

    #[test]
    fn an_address_of_another_machine_cannot_be_served() {
        // TEST-NET-1 of RFC 5737
        let master = Master::parse("192.0.2.1:29500").unwrap();
        assert!(!master.is_loopback().unwrap());
        assert!(master.serve("t", false).is_err());
    }
}
