//! Which part of a run this process is, and where the ranks meet.

use super::RanksError;
use crate::config::{DeviceRequest, Settings};
use crate::dist::launch::{Environment, TOKEN};
use crate::dist::launcher::Launched;
use crate::dist::master::Master;
use crate::dist::store::random_token;

pub(super) enum Place {
    /// One rank.
    Alone,
    /// Started by the first process of this machine.
    Worker(Environment),
    /// Started by torchrun, srun or mpirun.
    Launched(Launched),
    /// The first process of this machine.
    Lead(Nodes),
}

/// Machines of a run, and this one among them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Nodes {
    pub count: usize,
    pub node: usize,
    /// Ranks that this machine starts.
    pub devices: usize,
    /// Where there are several.
    pub master: Option<Master>,
}

impl Place {
    pub(super) fn of(settings: &Settings) -> anyhow::Result<Self> {
        if let Some(environment) = Environment::read()? {
            return Ok(Place::Worker(environment));
        }
        let master = master(settings)?;
        let (count, devices) = (settings.nnodes, settings.ranks()?);
        if settings.is_given("nnodes") {
            let node = match settings.node_rank {
                Some(node) if node >= count => {
                    return Err(RanksError::NoSuchNode { node, nodes: count }.into());
                }
                Some(node) => node,
                None if count == 1 => 0,
                None => return Err(needs(count, "--node-rank").into()),
            };
            if count > 1 && settings.max_restarts > 0 {
                return Err(RanksError::BadValue {
                    option: "--max-restarts",
                    given: settings.max_restarts.to_string(),
                    allowed: "0 on several machines: restarts are for those of one",
                }
                .into());
            }
            if count > 1 && master.is_none() {
                return Err(needs(count, "--master ADDR:PORT").into());
            }
            return Ok(match (count, devices) {
                (1, 1) => Place::Alone,
                (1, _) => Place::one_machine(devices),
                _ => Place::Lead(Nodes {
                    count,
                    node,
                    devices,
                    master,
                }),
            });
        }
        if settings.node_rank.is_some() {
            let option = "--node-rank";
            return Err(RanksError::NotForOne { option }.into());
        }
        if let Some(launched) = Launched::read()? {
            let request = settings.device_request()?;
            if device_of(&request, launched.local_rank).is_none() {
                return Err(RanksError::NoDevice {
                    device: settings.device.clone(),
                    devices,
                    launcher: launched.by.name(),
                    rank: launched.rank,
                    local_rank: launched.local_rank,
                }
                .into());
            }
            return Ok(Place::Launched(launched));
        }
        if master.is_some() {
            let option = "--master";
            return Err(RanksError::NotForOne { option }.into());
        }
        Ok(match devices {
            1 => Place::Alone,
            _ => Place::one_machine(devices),
        })
    }

    fn one_machine(devices: usize) -> Self {
        Place::Lead(Nodes {
            count: 1,
            node: 0,
            devices,
            master: None,
        })
    }
}

fn needs(nodes: usize, option: &'static str) -> RanksError {
    RanksError::NeedsOption { nodes, option }
}

/// The device of a rank that a launcher has started; one device is taken by all ranks of the machine.
fn device_of(request: &DeviceRequest, local_rank: usize) -> Option<DeviceRequest> {
    match request.ranks() {
        1 => Some(request.clone()),
        _ => request.device_of(local_rank),
    }
}

fn master(settings: &Settings) -> Result<Option<Master>, RanksError> {
    let read = |text: &String| {
        Master::parse(text).ok_or_else(|| RanksError::BadValue {
            option: "--master",
            given: text.clone(),
            allowed: Master::ALLOWED,
        })
    };
    settings.master.as_ref().map(read).transpose()
}

/// `--ports`.
pub(super) fn ports(settings: &Settings) -> Result<Option<(u16, u16)>, RanksError> {
    let read = |text: &String| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |t: &str| t.trim().parse().ok().filter(|p: &u16| *p > 0);
        let ports = port(first).zip(port(last)).filter(|(a, b)| a <= b);
        ports.ok_or_else(|| RanksError::BadValue {
            option: "--ports",
            given: text.clone(),
            allowed: "the first and the last port, as 29600-29631",
        })
    };
    settings.ports.as_ref().map(read).transpose()
}

/// The token that the user gave.
pub(super) fn token(settings: &Settings) -> anyhow::Result<Option<String>> {
    let (token, from) = match &settings.token_file {
        Some(path) => {
            let token = std::fs::read_to_string(path).map_err(|e| RanksError::BadToken {
                from: format!("in {path}"),
                reason: format!("cannot be read: {e}"),
            })?;
            (token.trim().to_owned(), format!("in {path}"))
        }
        None => match std::env::var(TOKEN) {
            Ok(token) => (token.trim().to_owned(), format!("of {TOKEN}")),
            Err(std::env::VarError::NotPresent) => return Ok(None),
            Err(e) => {
                let (from, reason) = (format!("of {TOKEN}"), format!("cannot be read: {e}"));
                return Err(RanksError::BadToken { from, reason }.into());
            }
        },
    };
    let reason = match token.len() {
        0 => "is empty",
        1..8 => "is shorter than 8 characters",
        513.. => "is longer than 512 bytes",
        _ if token.contains(char::is_whitespace) => "holds white space",
        _ => return Ok(Some(token)),
    };
    let reason = reason.to_owned();
    Err(RanksError::BadToken { from, reason }.into())
}

/// Where the ranks of a launcher meet, and with which token.
pub(super) fn meeting(
    launched: &Launched,
    settings: &Settings,
) -> anyhow::Result<(Master, String)> {
    let launcher = launched.by.name();
    let master = match master(settings)? {
        Some(master) => master,
        None => {
            let told = launched.master.clone();
            told.ok_or(RanksError::NoMaster { launcher })?
        }
    };
    let token = match token(settings)? {
        Some(token) => token,
        None if master.is_loopback()? => launched.run.clone(),
        None => {
            return Err(RanksError::NoToken {
                master: master.to_string(),
                launcher,
                token: random_token()?,
            }
            .into());
        }
    };
    Ok((master, token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::settings;

    #[test]
    fn ports_are_a_range() {
        let of = |text: &str| ports(&settings(&[("ports", text)]));
        assert_eq!(ports(&Settings::default()).unwrap(), None);
        assert_eq!(of("29600-29631").unwrap(), Some((29600, 29631)));
        assert_eq!(of("5000").unwrap(), Some((5000, 5000)));
        for wrong in ["0-5", "6-5", "x", "1-70000", "1-"] {
            assert!(matches!(of(wrong), Err(RanksError::BadValue { .. })));
        }
    }

    #[test]
    fn a_token_comes_from_its_file_without_the_end_of_the_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let of = || token(&settings(&[("token-file", path.to_str().unwrap())]));
        assert!(of().is_err());
        for (text, expected) in [
            ("0123456789abcdef\n", Some("0123456789abcdef")),
            ("", None),
            ("short\n", None),
            ("two words and more", None),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(of().ok().flatten().as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn a_rank_of_a_launcher_takes_the_device_of_its_number_or_the_only_one() {
        let of = |text: &str, rank| device_of(&DeviceRequest::parse(text).unwrap(), rank);
        assert_eq!(of("auto", 3), Some(DeviceRequest::Auto));
        assert_eq!(of("cpu", 3), Some(DeviceRequest::Cpu { ranks: 1 }));
        assert_eq!(of("cpu,cpu", 1), Some(DeviceRequest::Cpu { ranks: 1 }));
        assert_eq!(of("cpu,cpu", 2), None);
        assert_eq!(of("4,2", 1), Some(DeviceRequest::Gpus(vec![2])));
        assert_eq!(of("wgpu:4,2", 0), Some(DeviceRequest::Wgpu(vec![4])));
    }
}
