//! Before step 0 ranks make sure that they are about to do the same.

use super::buffer::Buffer;
use super::error::DistError;
use super::frame::{Fields, text};
use super::group::{Call, ProcessGroup, Work};
use super::handle::Output;

/// Compares fields (version, instruction set, resolved configuration, hashes of model and data, ...) between ranks.
///
/// # Errors
/// [`DistError::Handshake`], the same on every rank: the first rank that differs from rank 0, the field and both values.
pub fn handshake(group: &dyn ProcessGroup, fields: &[(&str, String)]) -> Result<(), DistError> {
    let message = fields.iter().fold(Fields::default(), |f, (name, value)| {
        f.with(name.as_bytes()).with(value.as_bytes())
    });
    let Output::Many(all) = group.run(
        Call::latency("handshake"),
        Work::AllGatherVariable(Buffer::U8(message.0)),
    )?
    else {
        unreachable!("an all-gather gives many");
    };
    let lists: Vec<Vec<(String, String)>> = all.iter().map(decode).collect();
    for (rank, list) in lists.iter().enumerate().skip(1) {
        compare(rank, list, &lists[0])?;
    }
    Ok(())
}

fn decode(message: &Buffer) -> Vec<(String, String)> {
    let mut rest = message.bytes();
    let mut fields = Vec::new();
    while let (Some(name), Some(value)) = (text(&mut rest), text(&mut rest)) {
        fields.push((name.to_owned(), value.to_owned()));
    }
    fields
}

const ABSENT: &str = "(absent)";

fn compare(
    rank: usize,
    list: &[(String, String)],
    reference: &[(String, String)],
) -> Result<(), DistError> {
    let find = |list: &[(String, String)], name: &str| {
        list.iter()
            .find(|(n, _)| n == name)
            .map_or(ABSENT.to_owned(), |(_, v)| v.clone())
    };
    for (name, _) in reference.iter().chain(list) {
        let (expected, value) = (find(reference, name), find(list, name));
        if expected != value {
            return Err(DistError::Handshake {
                rank,
                reference: 0,
                field: name.clone(),
                value,
                expected,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(fields: &[(&str, &str)]) -> Vec<(String, String)> {
        fields.iter().map(|&(a, b)| (a.into(), b.into())).collect()
    }

    #[test]
    fn the_error_names_rank_field_and_both_values() {
        let reference = list(&[("version", "0.1.0"), ("lr0", "0.01")]);
        assert_eq!(compare(1, &reference, &reference), Ok(()));
        let other = list(&[("version", "0.1.0"), ("lr0", "0.02")]);
        let error = compare(3, &other, &reference).unwrap_err();
        assert_eq!(
            error.to_string(),
            "rank 3 differs from rank 0 in lr0: \"0.02\" there, \"0.01\" on rank 0"
        );
    }

    #[test]
    fn a_field_that_one_rank_lacks_differs() {
        let reference = list(&[("version", "0.1.0")]);
        let more = list(&[("version", "0.1.0"), ("isa", "avx2")]);
        for (a, b) in [(&more, &reference), (&reference, &more)] {
            let error = compare(1, a, b).unwrap_err();
            assert!(matches!(error, DistError::Handshake { ref field, .. } if field == "isa"));
        }
    }
}
