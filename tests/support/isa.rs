//! Runs tests of this binary again under each instruction set of the machine.

use std::process::Command;
use yolo_train::ops::cpu::isa::Isa;

/// Runs the tests whose names contain `filter` in a process of its own for each instruction set but the one in use.
pub fn under_every_other_isa(filter: &str) {
    for isa in Isa::available() {
        if isa.name() == yolo_train::ops::isa().name() {
            continue;
        }
        let out = Command::new(std::env::current_exe().unwrap())
            .args([filter, "--test-threads=2"])
            .env("YOLO_TRAIN_ISA", isa.name())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(
            out.status.success() && !text.contains(" 0 passed"),
            "{}:\n{text}",
            isa.name()
        );
        println!(
            "{}: {}",
            isa.name(),
            text.lines().last().unwrap_or_default()
        );
    }
}
