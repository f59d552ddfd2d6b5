//! CubeCL's errors, which hold what came before them and stack frames, as one line.

use cubecl::server::{IoError, LaunchError, ServerError};

use crate::ops::DeviceFailure;

impl From<ServerError> for DeviceFailure {
    fn from(e: ServerError) -> Self {
        let text = without_frames(&e.to_string());
        match is_memory(&e) {
            true => Self::Memory(text),
            false => Self::Other(text),
        }
    }
}

/// Whether a failure began with an allocation.
fn is_memory(e: &ServerError) -> bool {
    match e {
        ServerError::Launch(LaunchError::OutOfMemory { .. }) => true,
        ServerError::Io(e) => {
            matches!(
                e,
                IoError::OutOfMemory { .. } | IoError::BufferTooBig { .. }
            )
        }
        ServerError::Unwritten { root, .. } => is_memory(root),
        ServerError::Several { errors, .. } => errors.iter().any(is_memory),
        _ => false,
    }
}

/// The text on one line without its stack frames.
fn without_frames(text: &str) -> String {
    let is_frame = |line: &str| {
        let number = line.split(": ").next().unwrap_or_default();
        let numbered = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
        let word = line.trim_end_matches(':').to_ascii_lowercase();
        let title = word == "backtrace" || word == "no backtrace available";
        numbered || title || line.starts_with("at ")
    };
    let lines = text.lines().map(str::trim);
    let kept: Vec<&str> = lines.filter(|l| !l.is_empty() && !is_frame(l)).collect();
    kept.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_ran_out_before_what_is_read_is_told_apart() {
        let root = IoError::OutOfMemory {
            size: 1 << 30,
            backtrace: Default::default(),
        };
        let unwritten = ServerError::Unwritten {
            failure: 7,
            claimed: 1,
            chain: vec![],
            root: Box::new(ServerError::Io(root)),
            backtrace: Default::default(),
        };
        let text = match DeviceFailure::from(unwritten) {
            DeviceFailure::Memory(text) => text,
            e => panic!("{e}"),
        };
        assert!(text.contains("1073741824 bytes"), "{text}");
        let other = ServerError::Generic {
            reason: "an illegal address".into(),
            backtrace: Default::default(),
        };
        let text = match DeviceFailure::from(other) {
            DeviceFailure::Other(text) => text,
            e => panic!("{e}"),
        };
        assert!(text.contains("an illegal address"), "{text}");
        assert!(!text.contains('\n') && !text.contains("0: "), "{text}");
    }
}
