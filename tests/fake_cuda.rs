//! Finding CUDA GPUs, choosing among them and saying what is missing, on machines that `tests/fake-cuda` makes up.
#![cfg(all(feature = "cuda", target_os = "linux"))]

#[path = "support/fake.rs"]
mod fake;
#[path = "support/ranks.rs"]
mod support;

use std::process::Output;

use fake::{CUDNN, DRIVER, Machine, NCCL, NVRTC};
use support::{err, program, text};

fn run(machine: &Machine, words: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = program("fake", words);
    machine.apply(&mut command);
    command.envs(variables.iter().copied());
    command.output().unwrap()
}

/// What the program says of a device that it cannot use.
#[track_caller]
fn refused(machine: &Machine, device: &str, variables: &[(&str, &str)]) -> String {
    let several = device.contains(',').then_some("--comm");
    let words: Vec<&str> = ["bench", "--device", device]
        .into_iter()
        .chain(several)
        .collect();
    let out = run(machine, &words, variables);
    assert_eq!(out.status.code(), Some(2), "{}", err(&out));
    let text = err(&out);
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[track_caller]
fn says(text: &str, all: &[&str]) {
    for part in all {
        assert!(text.contains(part), "{part:?} in {text}");
    }
}

// The doctor.

#[test]
fn the_doctor_shows_gpus_libraries_and_who_is_busy() {
    let machine = Machine::whole();
    let busy = ("FAKE_CUDA_BUSY", "1:4242:700");
    let out = run(
        &machine,
        &["doctor"],
        &[busy, ("FAKE_CUDA_DRIVER", "12040")],
    );
    let shown = text(&out.stdout);
    says(
        &shown,
        &[
            "driver for 12.4; NVRTC 12.4 (",
            "headers 12.4 (",
            "NCCL 2.30.3 (",
            "cuDNN 9.1.0 (",
            "GPU 0         Fake GPU 0, 8.0 GiB, compute capability 9.0, idle",
            "GPU 1         Fake GPU 1, 8.0 GiB, compute capability 9.0, 700.0 MiB in use by process 4242",
            "cuda:0, cuda:1",
        ],
    );
    let out = run(&machine, &["doctor", "--json"], &[busy]);
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        json["cuda"]["gpus"][1]["processes"],
        serde_json::json!([4242])
    );
    assert_eq!(json["cuda"]["problem"], serde_json::Value::Null);
}

#[test]
fn the_doctor_says_what_a_machine_with_a_driver_lacks() {
    let machine = Machine::with(&[DRIVER]);
    let shown = text(&run(&machine, &["doctor"], &[]).stdout);
    says(
        &shown,
        &[
            "cannot be used: no NVRTC",
            "libnccl.so.2 not found",
            "pip install nvidia-cuda-nvrtc-cu12",
            "pip install nvidia-nccl-cu12",
        ],
    );
}

#[test]
fn a_machine_without_a_driver_is_no_machine_that_lacks_something() {
    let machine = Machine::with(&[]);
    let shown = text(&run(&machine, &["doctor"], &[]).stdout);
    says(&shown, &["no NVIDIA driver (libcuda.so.1 not found)"]);
    assert!(!shown.contains("nvidia-driver"), "{shown}");
}

// What --device cannot be.

#[test]
fn a_number_that_does_not_exist_names_those_that_do() {
    let text = refused(&Machine::whole(), "0,7", &[]);
    says(
        &text,
        &["device 0,7: there is no GPU 7; there are 0 (Fake GPU 0), 1 (Fake GPU 1)"],
    );
}

#[test]
fn numbers_count_the_visible_gpus() {
    let visible = [("CUDA_VISIBLE_DEVICES", "3,1"), ("FAKE_CUDA_DEVICES", "4")];
    let text = refused(&Machine::whole(), "0,2", &visible);
    says(&text, &["there are 0 (Fake GPU 3), 1 (Fake GPU 1)"]);
    // NVML numbers them in another way: who is busy is found by name
    let busy = [("FAKE_CUDA_BUSY", "3:99:500")];
    let text = refused(&Machine::whole(), "-1,-1", &[&visible[..], &busy].concat());
    says(
        &text,
        &["1 of 2 is: 0 (Fake GPU 3): process 99, 500 MiB in use"],
    );
}

#[test]
fn fewer_idle_gpus_than_wanted_are_refused_with_who_is_busy() {
    let busy = ("FAKE_CUDA_BUSY", "0:41:3000,2:42:10,2:43:20");
    let text = refused(
        &Machine::whole(),
        "-1,-1",
        &[busy, ("FAKE_CUDA_DEVICES", "3")],
    );
    says(
        &text,
        &[
            "asks for 2 idle GPUs, but 1 of 3 is",
            "0 (Fake GPU 0): process 41, 3000 MiB in use",
            "2 (Fake GPU 2): processes 42, 43, 30 MiB in use",
        ],
    );
}

#[test]
fn every_part_that_is_missing_is_named_with_how_to_get_it() {
    let no_headers = Machine::with(&[DRIVER, NVRTC, NCCL, CUDNN]);
    let no_inner_headers = Machine::whole();
    std::fs::remove_file(no_inner_headers.path("cuda/include/crt/mma.h")).unwrap();
    let no_nccl = Machine::with(&[DRIVER, NVRTC, CUDNN]);
    no_nccl.headers();
    for (machine, device, variables, parts) in [
        (
            Machine::with(&[]),
            "0",
            vec![],
            &["no NVIDIA driver", "nvidia-driver"][..],
        ),
        (
            Machine::whole(),
            "0",
            vec![("FAKE_CUDA_INIT", "803")],
            &[
                "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)",
                "restart the machine",
            ],
        ),
        (
            Machine::whole(),
            "0",
            vec![("FAKE_CUDA_INIT", "999")],
            &["does not start (cuInit: CUDA_ERROR_UNKNOWN (999))"],
        ),
        (
            Machine::whole(),
            "0",
            vec![("CUDA_VISIBLE_DEVICES", "")],
            &["the driver shows no GPU", "CUDA_VISIBLE_DEVICES"],
        ),
        (
            Machine::whole(),
            "0",
            vec![("FAKE_CUDA_DRIVER", "11040")],
            &["is for CUDA 11.4, 12.0 is needed"],
        ),
        (
            Machine::whole(),
            "0",
            vec![("FAKE_CUDA_DRIVER", "12020")],
            &["NVRTC 12.4 is newer than the driver, which is for CUDA 12.2"],
        ),
        (
            Machine::with(&[DRIVER]),
            "0",
            vec![],
            &["no NVRTC", "nvidia-cuda-nvrtc-cu12"],
        ),
        (
            no_headers,
            "0",
            vec![],
            &["no CUDA headers", "nvidia-cuda-runtime-cu12"],
        ),
        (
            no_inner_headers,
            "0",
            vec![],
            &["lack crt/mma.h", "nvidia-cuda-nvcc-cu12"],
        ),
        (
            no_nccl,
            "0,1",
            vec![],
            &["libnccl.so.2 not found", "nvidia-nccl-cu12"],
        ),
    ] {
        says(&refused(&machine, device, &variables), parts);
    }
}

#[test]
fn nccl_of_a_python_environment_is_found_and_several_ranks_run() {
    let machine = Machine::with(&[DRIVER, NVRTC]);
    machine.headers();
    machine.put("venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2");
    let venv = machine.path("venv");
    let venv = ("VIRTUAL_ENV", venv.to_str().unwrap());
    let out = run(
        &machine,
        &["bench", "--comm", "1024", "--device", "0,1"],
        &[venv],
    );
    assert_eq!(out.status.code(), Some(0), "{}", err(&out));
    says(&text(&out.stdout), &["2 ranks, engine nccl"]);
    assert_eq!(machine.left(), Vec::<String>::new());
}

#[test]
fn two_ranks_share_a_gpu_where_it_is_asked_for() {
    let machine = Machine::whole();
    let words = ["bench", "--comm", "1024", "--device", "0,0"];
    let share = [
        ("YOLO_TRAIN_SHARE_GPU", "1"),
        ("NCCL_MULTI_RANK_GPU_ENABLE", "1"),
    ];
    let out = run(&machine, &words, &share);
    assert_eq!(out.status.code(), Some(0), "{}", err(&out));
    says(&text(&out.stdout), &["2 ranks, engine nccl"]);
    let out = run(&machine, &words, &share[..1]);
    assert_ne!(out.status.code(), Some(0));
    says(
        &err(&out),
        &[
            "ranks 0 and 1 have the same GPU",
            "NCCL_MULTI_RANK_GPU_ENABLE",
        ],
    );
    let out = run(&machine, &words, &[]);
    assert_eq!(out.status.code(), Some(2), "{}", err(&out));
    assert_eq!(machine.left(), Vec::<String>::new());
}

#[test]
fn idle_gpus_are_given_to_ranks_of_their_own() {
    let machine = Machine::whole();
    let variables = [("FAKE_CUDA_BUSY", "1:7:900"), ("FAKE_CUDA_DEVICES", "3")];
    let out = run(
        &machine,
        &["bench", "--comm", "1024", "--device", "-1,-1"],
        &variables,
    );
    assert_eq!(out.status.code(), Some(0), "{}", err(&out));
    says(
        &err(&out),
        &["idle GPUs: cuda:0 (Fake GPU 0), cuda:2 (Fake GPU 2)"],
    );
}

// Ranks of a launcher.

/// Two ranks as torchrun starts them.
fn launched(machine: &Machine, port: u16, words: &[&str]) -> [Output; 2] {
    let start = |rank: usize| {
        let mut command = program("fake", words);
        machine.apply(&mut command);
        command
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .envs([("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")])
            .env("MASTER_ADDR", "localhost")
            .env("MASTER_PORT", port.to_string())
            .env("TORCHELASTIC_RUN_ID", "x")
            .spawn()
            .unwrap()
    };
    [0, 1]
        .map(start)
        .map(|child| child.wait_with_output().unwrap())
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
fn a_rank_of_a_launcher_takes_the_gpu_of_its_place() {
    let words = ["bench", "--comm", "1024", "--device", "1,0"];
    let both = launched(&Machine::whole(), free_port(), &words);
    for out in &both {
        assert_eq!(out.status.code(), Some(0), "{}", err(out));
    }
    says(&text(&both[0].stdout), &["2 ranks, engine nccl"]);
}

#[test]
fn ranks_of_a_launcher_do_not_look_for_idle_gpus_and_say_so_once() {
    let words = [
        "bench",
        "--comm",
        "1024",
        "--device",
        "-1,-1",
        "--join-timeout",
        "20",
    ];
    let both = launched(&Machine::whole(), free_port(), &words);
    assert!(both.iter().all(|out| out.status.code() == Some(2)));
    let said = both.map(|out| err(&out)).concat();
    says(
        &said,
        &["each rank of a launcher would find the same idle GPUs"],
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}
