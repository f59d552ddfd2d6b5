//! Ctrl-C, SIGTERM and a terminal that is closed (SIGHUP): the first one asks for an orderly end, a second one ends the
//! program at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

#[cfg(unix)]
use signal_hook::consts::SIGHUP;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::outcome::INTERRUPTED;

#[cfg(unix)]
const SIGNALS: &[i32] = &[SIGINT, SIGTERM, SIGHUP];
#[cfg(not(unix))]
const SIGNALS: &[i32] = &[SIGINT, SIGTERM];

/// Starts to listen. The flag is set by the first SIGINT, SIGTERM or SIGHUP (unless SIGHUP is ignored, as under nohup);
/// whoever runs for long looks at it and ends in an orderly way. A second signal ends the program at once with exit code
/// 130. To be called once.
///
/// # Errors
/// Those of the operating system where it lets nobody listen.
pub fn listen() -> io::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for &signal in SIGNALS {
        if is_ignored(signal) && !matches!(signal, SIGINT | SIGTERM) {
            continue;
        }
        // In this order: the action of the second signal must not find the flag set by the first run of its own signal.
        flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED), interrupted.clone())?;
        flag::register(signal, interrupted.clone())?;
    }
    Ok(interrupted)
}

/// Whether this process was started with a signal switched off (where the system tells).
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok());
    mask.is_some_and(|m| m >> (signal - 1) & 1 == 1)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::process::Command;
    use std::sync::atomic::Ordering;

    use signal_hook::low_level::raise;

    /// Runs `child` in a process of its own, with the signals in `raises`.
    fn child_exit(raises: &str) -> Option<i32> {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "cli::interrupt::tests::child",
                "--ignored",
                "--test-threads=1",
            ])
            .env("INTERRUPT_TEST_RAISES", raises)
            .output()
            .unwrap();
        output.status.code()
    }

    #[test]
    #[ignore = "run by the tests below, in a process of its own"]
    fn child() {
        let Ok(raises) = std::env::var("INTERRUPT_TEST_RAISES") else {
            return;
        };
        let interrupted = listen().unwrap();
        assert!(!interrupted.load(Ordering::Relaxed));
        for name in raises.split(',') {
            let signal = match name {
                "INT" => SIGINT,
                "HUP" => SIGHUP,
                _ => SIGTERM,
            };
            raise(signal).unwrap();
            assert!(interrupted.load(Ordering::Relaxed));
        }
    }

    #[test]
    fn the_first_signal_sets_the_flag_and_the_program_goes_on() {
        assert_eq!(child_exit("INT"), Some(0));
        assert_eq!(child_exit("TERM"), Some(0));
        // under nohup it stays switched off
        if !is_ignored(SIGHUP) {
            assert_eq!(child_exit("HUP"), Some(0));
        }
    }

    #[test]
    fn a_second_signal_ends_the_program_at_once() {
        assert_eq!(child_exit("INT,INT"), Some(130));
        assert_eq!(child_exit("TERM,TERM"), Some(130));
        assert_eq!(child_exit("INT,TERM"), Some(130));
    }
}
