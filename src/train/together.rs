//! What ranks do at the same place of a run besides training: learn how the others' work ended, get rank 0's words.

use super::error::TrainError;
use crate::dist::{Agreement, Buffer, Call, ProcessGroup, Report, agree as exchange};
use std::path::PathBuf;

/// Whether this rank writes files and prints.
pub(super) fn leads(group: &dyn ProcessGroup) -> bool {
    group.rank() == 0
}

/// Ends a piece of work that every rank has done for itself: `own` where all succeeded. Every rank comes here however
/// its work ended.
///
/// # Errors
/// This rank's own; [`TrainError::Interrupted`] where any rank was; [`TrainError::OtherRank`].
pub(super) fn agree<T>(
    group: &dyn ProcessGroup,
    what: &'static str,
    own: Result<T, TrainError>,
) -> Result<T, TrainError> {
    if group.size() == 1 {
        return own;
    }
    let report = match &own {
        Ok(_) => Report::Done(vec![]),
        Err(TrainError::Interrupted) => Report::Interrupted,
        // the others have met the failure themselves, and there may be no group any more
        Err(TrainError::Dist(_)) => return own,
        Err(e) => Report::Failed(e.to_string()),
    };
    let call = Call::latency(what).after_long_work(group);
    let agreement = exchange(group, call, report)?;
    match (own, agreement) {
        (Err(e), _) => Err(e),
        (Ok(own), Agreement::Done(_)) => Ok(own),
        (Ok(_), Agreement::Interrupted) => Err(TrainError::Interrupted),
        (Ok(_), Agreement::Failed { rank, reason }) => {
            Err(TrainError::OtherRank { rank, what, reason })
        }
    }
}

/// What rank 0 has, on every rank; the others' `own` does not matter.
///
/// # Errors
/// Those of the collective.
pub(super) fn from_first(
    group: &dyn ProcessGroup,
    what: &'static str,
    own: Vec<u8>,
) -> Result<Vec<u8>, TrainError> {
    let own = if leads(group) { own } else { vec![] };
    let call = Call::bulk(what).after_long_work(group);
    let all = group.all_gather_variable(call, Buffer::U8(own)).wait()?;
    Ok(all
        .into_iter()
        .next()
        .and_then(Buffer::into_vec)
        .unwrap_or_default())
}

/// The path that rank 0 has, on every rank.
///
/// # Errors
/// As [`from_first`].
pub(super) fn same_path(
    group: &dyn ProcessGroup,
    what: &'static str,
    own: PathBuf,
) -> Result<PathBuf, TrainError> {
    if group.size() == 1 {
        return Ok(own);
    }
    let bytes = serde_json::to_vec(&own).unwrap_or_default();
    let bytes = from_first(group, what, bytes)?;
    Ok(serde_json::from_slice(&bytes).unwrap_or_default())
}

/// The texts of all ranks, one after the other.
///
/// # Errors
/// Those of the collective.
pub(super) fn all_texts(
    group: &dyn ProcessGroup,
    what: &'static str,
    own: Vec<String>,
) -> Result<Vec<String>, TrainError> {
    let own = serde_json::to_vec(&own).unwrap_or_default();
    let all = group
        .all_gather_variable(Call::latency(what), Buffer::U8(own))
        .wait()?;
    let lists = all.iter().map(|b| serde_json::from_slice(b.bytes()));
    Ok(lists
        .flat_map(|l: Result<Vec<String>, _>| l.unwrap_or_default())
        .collect())
}
