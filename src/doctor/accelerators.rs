//! GPUs, as far as this build can ask for them.

use serde::Serialize;

use crate::gpu::place::Part;
use crate::gpu::select::Gpu;

/// What training on CUDA GPUs needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cuda {
    /// CUDA that the driver is for.
    pub driver: Option<String>,
    pub gpus: Vec<Gpu>,
    pub nvrtc: Part,
    pub headers: Part,
    pub nccl: Part,
    pub cudnn: Part,
    /// Why no GPU can be used.
    pub problem: Option<String>,
    /// How to get what is missing.
    #[serde(skip)]
    pub remedies: Vec<(String, &'static str)>,
}

/// What this build can ask for; none of what it was built without.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Accelerators {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda: Option<Cuda>,
    /// Names of wgpu's adapters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wgpu: Option<Vec<String>>,
}

impl Accelerators {
    pub(super) fn find() -> Self {
        Accelerators {
            cuda: cuda(),
            wgpu: wgpu(),
        }
    }

    /// What `--device` can be.
    pub(super) fn devices(&self) -> Vec<String> {
        let mut all = vec!["cpu".to_owned()];
        if let Some(cuda) = self.cuda.as_ref().filter(|c| c.problem.is_none()) {
            all.extend(cuda.gpus.iter().map(|gpu| format!("cuda:{}", gpu.index)));
        }
        let adapters = self.wgpu.iter().flatten().enumerate();
        all.extend(adapters.map(|(i, _)| format!("wgpu:{i}")));
        all
    }

    /// Lines for people, each with its title.
    pub(super) fn lines(&self) -> Vec<(String, String)> {
        let mut all = vec![];
        if let Some(cuda) = &self.cuda {
            let driver = cuda.driver.as_ref().map(|v| format!("driver for {v}"));
            let mut parts: Vec<String> = driver.into_iter().collect();
            for (name, part) in [
                ("NVRTC", &cuda.nvrtc),
                ("headers", &cuda.headers),
                ("NCCL", &cuda.nccl),
                ("cuDNN", &cuda.cudnn),
            ] {
                parts.push(text(name, part));
            }
            if let Some(problem) = &cuda.problem {
                parts.insert(0, format!("cannot be used: {problem}"));
            }
            all.push(("CUDA".to_owned(), parts.join("; ")));
            for gpu in &cuda.gpus {
                all.push((format!("GPU {}", gpu.index), one(gpu)));
            }
        }
        if let Some(adapters) = &self.wgpu {
            let names: Vec<_> = adapters
                .iter()
                .enumerate()
                .map(|(i, name)| format!("{i} ({name})"))
                .collect();
            let text = match names.is_empty() {
                true => "no adapter".to_owned(),
                false => names.join(", "),
            };
            all.push(("wgpu".to_owned(), text));
        }
        all
    }
}

/// `NVRTC 12.4 (/usr/local/cuda/lib64/libnvrtc.so.12)`
fn text(name: &str, part: &Part) -> String {
    let version = part.version.as_ref().map(|v| format!(" {v}"));
    match (&part.problem, &part.path) {
        (Some(problem), _) => format!("{name}: {problem}"),
        (None, Some(path)) => {
            format!("{name}{} ({})", version.unwrap_or_default(), path.display())
        }
        (None, None) => format!("{name}: not looked for"),
    }
}

fn one(gpu: &Gpu) -> String {
    let (major, minor) = gpu.capability;
    let mut text = format!(
        "{}, {}, compute capability {major}.{minor}",
        gpu.name,
        super::report::bytes(gpu.memory_bytes)
    );
    match (&gpu.processes, gpu.used_bytes) {
        _ if gpu.is_idle() => text.push_str(", idle"),
        (processes, used) => {
            if let Some(used) = used {
                text.push_str(&format!(", {} in use", super::report::bytes(used)));
            }
            let processes = processes.as_deref().unwrap_or_default();
            if !processes.is_empty() {
                let all: Vec<_> = processes.iter().map(u32::to_string).collect();
                text.push_str(&format!(" by process {}", all.join(", ")));
            }
        }
    }
    text
}

#[cfg(feature = "cuda")]
fn cuda() -> Option<Cuda> {
    use crate::gpu::Lack;
    use crate::gpu::cuda::{inventory, part};
    use crate::gpu::place::{Library, version_text};

    let found = inventory();
    let nccl = part(Library::Nccl);
    let cudnn = part(Library::Cudnn);
    let mut remedies = vec![];
    // where there is no driver there is no NVIDIA GPU to make use of
    if found.driver.is_some() {
        if let Some((lack, reason)) = &found.lack {
            remedies.push((reason.clone(), lack.remedy()));
        }
        if let Some(problem) = nccl.problem.as_ref().filter(|_| found.gpus.len() > 1) {
            remedies.push((problem.clone(), Lack::Nccl.remedy()));
        }
        if let Some(problem) = cudnn.problem.as_ref().filter(|_| found.lack.is_none()) {
            remedies.push((
                format!("{problem} (convolutions are slower)"),
                Lack::Cudnn.remedy(),
            ));
        }
    }
    Some(Cuda {
        driver: found.driver.map(version_text),
        gpus: found.gpus.clone(),
        nvrtc: found.nvrtc.clone(),
        headers: found.headers.clone(),
        nccl,
        cudnn,
        problem: found.lack.as_ref().map(|(_, reason)| reason.clone()),
        remedies,
    })
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Option<Cuda> {
    None
}

#[cfg(feature = "wgpu")]
fn wgpu() -> Option<Vec<String>> {
    let names = crate::gpu::wgpu::names();
    Some(names.into_iter().map(|(_, name)| name).collect())
}

#[cfg(not(feature = "wgpu"))]
fn wgpu() -> Option<Vec<String>> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cuda(problem: Option<&str>) -> Cuda {
        let part = |path: &str, version: &str| Part {
            path: Some(path.into()),
            version: Some(version.into()),
            problem: None,
        };
        Cuda {
            driver: Some("12.4".into()),
            gpus: vec![Gpu {
                index: 0,
                name: "NVIDIA H200".into(),
                uuid: "GPU-1".into(),
                memory_bytes: 140 << 30,
                used_bytes: Some(2 << 30),
                capability: (9, 0),
                processes: Some(vec![41]),
            }],
            nvrtc: part("/a/libnvrtc.so.12", "12.4"),
            headers: part("/b", "12.4"),
            nccl: Part {
                problem: Some("libnccl.so.2 not found".into()),
                ..Part::default()
            },
            cudnn: part("/c/libcudnn.so.9", "9.1.0"),
            problem: problem.map(Into::into),
            remedies: vec![],
        }
    }

    #[test]
    fn every_part_is_shown_with_version_and_place() {
        let all = Accelerators {
            cuda: Some(cuda(None)),
            wgpu: Some(vec!["llvmpipe".into()]),
        };
        let lines = all.lines();
        let (title, text) = &lines[0];
        assert_eq!(title, "CUDA");
        assert_eq!(
            text,
            "driver for 12.4; NVRTC 12.4 (/a/libnvrtc.so.12); headers 12.4 (/b); NCCL: libnccl.so.2 not found; cuDNN 9.1.0 (/c/libcudnn.so.9)"
        );
        assert_eq!(
            lines[1].1,
            "NVIDIA H200, 140.0 GiB, compute capability 9.0, 2.0 GiB in use by process 41"
        );
        assert_eq!(lines[2], ("wgpu".into(), "0 (llvmpipe)".into()));
        assert_eq!(all.devices(), ["cpu", "cuda:0", "wgpu:0"]);
    }

    #[test]
    fn gpus_that_cannot_be_used_are_no_devices() {
        let all = Accelerators {
            cuda: Some(cuda(Some("no NVRTC"))),
            wgpu: None,
        };
        assert_eq!(all.devices(), ["cpu"]);
        assert!(
            all.lines()[0]
                .1
                .starts_with("cannot be used: no NVRTC; driver for 12.4")
        );
    }
}
