//! Black-box tests of the command line. None of them starts a training run: that is for other files.

use std::fs;
use std::process::{Command, Output, Stdio};

use assert_cmd::cargo::cargo_bin;

/// The program, in a folder of its own, without what the environment says about colours.
fn program(folder: &tempfile::TempDir) -> Command {
    let mut program = Command::new(cargo_bin!("yolo-train"));
    program.current_dir(folder.path());
    for variable in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        program.env_remove(variable);
    }
    program
}

fn run(words: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    program(&folder).args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Wrong usage ends with 2, says one line on standard error and nothing on standard output.
fn assert_usage_error(output: &Output, expected: &str) {
    assert_eq!(
        text(&output.stderr),
        format!("yolo-train: error: {expected}\n")
    );
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stdout), "");
}

#[test]
fn help_shows_the_commands_and_the_options_by_group() {
    let output = run(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stderr), "");
    let help = text(&output.stdout);
    let mut rest = help;
    for heading in [
        "Usage:",
        "Commands:",
        "Run:",
        "Machine:",
        "Data:",
        "Optimisation:",
        "Loss:",
        "Augmentation:",
        "Validation:",
    ] {
        let at = rest
            .find(&format!("\n{heading}"))
            .unwrap_or_else(|| panic!("{heading} is missing or out of order in\n{help}"));
        rest = &rest[at + 1..];
    }
    for word in ["train", "val", "info", "--close-mosaic", "[default: 100;"] {
        assert!(help.contains(word), "{word}");
    }
}

#[test]
fn each_command_has_its_own_help() {
    let val = run(&["val", "--help"]);
    assert!(text(&val.stdout).contains("--weights"));
    assert!(!text(&val.stdout).contains("--epochs"));
    let info = run(&["help", "info"]);
    assert!(text(&info.stdout).contains("--nc"));
    assert!(!text(&info.stdout).contains("--weights"));
}

#[test]
fn version_is_the_name_and_the_number() {
    for word in ["--version", "-V"] {
        let output = run(&[word]);
        assert_eq!(
            text(&output.stdout),
            format!("yolo-train {}\n", env!("CARGO_PKG_VERSION"))
        );
        assert_eq!(output.status.code(), Some(0));
    }
}

#[test]
fn a_misspelt_option_is_answered_with_the_likely_one() {
    assert_usage_error(
        &run(&["--epoch", "3"]),
        "unknown option --epoch; did you mean --epochs? (see --help)",
    );
    assert_usage_error(
        &run(&["train", "--data", "x.yaml", "--close_mosiac=3"]),
        "unknown option --close_mosiac; did you mean --close-mosaic? (see --help)",
    );
}

#[test]
fn a_value_out_of_range_is_answered_with_what_is_allowed() {
    assert_usage_error(
        &run(&["--mosaic", "1.5"]),
        "bad value for --mosaic on the command line: given 1.5, allowed is a number from 0 to 1",
    );
    assert_usage_error(
        &run(&["--imgsz", "650"]),
        "bad value for --imgsz on the command line: given 650, allowed is a multiple of 32 from 32 to 4096; \
         the nearest are 640 and 672",
    );
    assert_usage_error(
        &run(&["--optimizer", "sdg"]),
        "bad value for --optimizer on the command line: given sdg, allowed is one of auto, SGD, AdamW, MuSGD; did you mean SGD?",
    );
}

#[test]
fn words_of_another_syntax_are_answered_with_the_right_one() {
    assert_usage_error(
        &run(&["train", "epochs=10"]),
        "unexpected word epochs=10 on the command line; options are written --epochs 10",
    );
    assert_usage_error(
        &run(&["--cache", "ram"]),
        "option --cache is known from other trainers but not supported yet: images are read from disk",
    );
}

#[test]
fn devices_that_this_build_has_not_are_refused() {
    for (device, what, feature, built) in [
        ("0", "CUDA", "cuda", cfg!(feature = "cuda")),
        ("0,1", "CUDA", "cuda", cfg!(feature = "cuda")),
        ("-1", "CUDA", "cuda", cfg!(feature = "cuda")),
        ("-1,-1", "CUDA", "cuda", cfg!(feature = "cuda")),
        ("wgpu:0", "wgpu", "wgpu", cfg!(feature = "wgpu")),
    ] {
        if !built {
            assert_usage_error(
                &run(&["--device", device]),
                &format!(
                    "device {device} cannot be used: this build has no {what}; build one that has: cargo install --path . --features {feature}, or give --device cpu"
                ),
            );
        }
    }
    assert_usage_error(
        &run(&["bench", "--device", "cpu:3"]),
        "device cpu:3 stands for 3 ranks, but `yolo-train bench` runs on one: give --device cpu",
    );
    let twice = run(&["--device", "0,0"]);
    assert_eq!(twice.status.code(), Some(2));
    assert!(text(&twice.stderr).ends_with("; device 0 is there twice, name each device once\n"));
}

#[test]
fn a_file_of_options_is_checked_with_line_and_column() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("cfg.yaml"),
        "# mine\nepochs: 3\nlr0: fast\n",
    )
    .unwrap();
    let output = program(&folder)
        .args(["--cfg", "cfg.yaml"])
        .output()
        .unwrap();
    assert_usage_error(
        &output,
        "bad value for lr0 at cfg.yaml:3:6: given fast, allowed is a number above 0, at most 10",
    );

    fs::write(
        folder.path().join("cfg.yaml"),
        "epochs: 3\nwarmup_epoch: 1\n",
    )
    .unwrap();
    let output = program(&folder)
        .args(["--cfg", "cfg.yaml"])
        .output()
        .unwrap();
    assert_usage_error(
        &output,
        "unknown option warmup_epoch at cfg.yaml:2:1; did you mean warmup_epochs? (see --help)",
    );

    let output = program(&folder)
        .args(["--cfg", "none.yaml"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr)
            .starts_with("yolo-train: error: cannot read the options in none.yaml: ")
    );
}

/// The device is checked before anything runs, and says which of the two values counted.
#[test]
fn the_command_line_goes_before_the_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("cfg.yaml"), "device: 0\n").unwrap();
    let from_file = program(&folder)
        .args(["--cfg", "cfg.yaml"])
        .output()
        .unwrap();
    assert!(text(&from_file.stderr).starts_with("yolo-train: error: device 0 cannot be used"));
    let from_command_line = program(&folder)
        .args(["--device", "1", "--cfg", "cfg.yaml"])
        .output()
        .unwrap();
    assert!(
        text(&from_command_line.stderr).starts_with("yolo-train: error: device 1 cannot be used")
    );
}

#[test]
fn validation_needs_weights() {
    assert_usage_error(
        &run(&["val", "--data", "x.yaml"]),
        "`yolo-train val` needs --weights",
    );
}

#[test]
fn nothing_is_coloured_without_a_terminal_or_with_no_color() {
    let folder = tempfile::tempdir().unwrap();
    let plain = program(&folder).arg("--help").output().unwrap();
    let forced = program(&folder)
        .arg("--help")
        .env("CLICOLOR_FORCE", "1")
        .output()
        .unwrap();
    let refused = program(&folder)
        .arg("--help")
        .envs([("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")])
        .output()
        .unwrap();
    assert!(!plain.stdout.contains(&0x1b));
    assert!(forced.stdout.contains(&0x1b));
    assert_eq!(text(&refused.stdout), text(&plain.stdout));
}

/// `yolo-train --help | head -1` closes the pipe early: no panic, no message, no failure.
#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let child = program(&folder)
        .arg("--help")
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}
