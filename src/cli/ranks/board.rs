//! What ranks say when they fail, in a store: one report a rank, and the order in which they came.

use serde::{Deserialize, Serialize};

use crate::dist::DistError;
use crate::dist::store::StoreClient;

/// How close to the cause a report is; the first one counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Kind {
    /// The process ended by a signal that nobody of the run sent.
    Killed,
    Primary,
    /// Missed a rank that had failed.
    Secondary,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Report {
    pub rank: usize,
    pub kind: Kind,
    /// Exit code.
    pub code: u8,
    pub text: String,
    /// Of arrival.
    pub order: i64,
}

/// Of the keys of reports; the rank follows.
pub(super) const PREFIX: &str = "error/";

impl Report {
    pub(super) fn key(&self) -> String {
        format!("{PREFIX}{}", self.rank)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        // Numbers and texts always have a form.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Puts it up, unless the rank has said something already.
    pub(super) fn post(&self, store: &StoreClient) -> Result<(), DistError> {
        if store.get(&self.key())?.is_some() {
            return Ok(());
        }
        let report = Report {
            order: store.add("errors", 1)?,
            ..self.clone()
        };
        store.set(&self.key(), &report.encode())
    }
}

fn decode(values: impl IntoIterator<Item = Vec<u8>>) -> Vec<Report> {
    let reports = values.into_iter().map(|v| serde_json::from_slice(&v));
    reports.filter_map(Result::ok).collect()
}

/// All reports of a store.
pub(super) fn read(store: &StoreClient) -> Result<Vec<Report>, DistError> {
    let mut values = vec![];
    for key in store.keys(PREFIX)? {
        values.extend(store.get(&key)?);
    }
    Ok(decode(values))
}

/// All reports of a store that this process serves.
pub(super) fn of(server: &crate::dist::store::StoreServer) -> Vec<Report> {
    decode(server.values(PREFIX).into_iter().map(|(_, value)| value))
}

/// The report that is closest to the cause; of several the one that came first.
pub(super) fn cause(reports: Vec<Report>) -> Option<Report> {
    reports
        .into_iter()
        .min_by_key(|r| (r.kind, r.order, r.rank))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::store::StoreServer;
    use crate::dist::testing::local;
    use std::time::Duration;

    fn report(rank: usize, kind: Kind) -> Report {
        Report {
            rank,
            kind,
            code: 1,
            text: format!("error of {rank}"),
            order: 0,
        }
    }

    #[test]
    fn the_cause_is_a_killed_rank_otherwise_the_first_that_names_no_other() {
        let server = StoreServer::bind(local(), 0, "t").unwrap();
        let address = server.address().to_string();
        let store = StoreClient::connect(&address, "t", Duration::from_secs(5)).unwrap();
        for (rank, kind, expected) in [
            (3, Kind::Secondary, 3),
            (0, Kind::Secondary, 3),
            (2, Kind::Primary, 2),
            (1, Kind::Primary, 2),
            (4, Kind::Killed, 4),
        ] {
            report(rank, kind).post(&store).unwrap();
            // a second word of a rank changes nothing
            report(rank, Kind::Killed).post(&store).unwrap();
            assert_eq!(cause(of(&server)).unwrap().rank, expected);
            assert_eq!(read(&store).unwrap(), of(&server));
        }
    }
}
