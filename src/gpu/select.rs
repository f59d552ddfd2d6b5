//! Chooses among GPUs.

use serde::Serialize;

use super::error::GpuError;

/// A GPU with more memory in use is not idle: a context alone takes some hundred MiB.
const IDLE_BYTES: u64 = 256 << 20;

/// A CUDA GPU, as the driver and NVML describe it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// The driver's number.
    pub index: u32,
    pub name: String,
    /// `GPU-…`.
    pub uuid: String,
    pub memory_bytes: u64,
    /// In use by anybody; unknown without NVML.
    pub used_bytes: Option<u64>,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Compute processes that have a context on it; unknown without NVML.
    pub processes: Option<Vec<u32>>,
}

impl Gpu {
    /// Whether nobody uses it; unknown counts as idle, as long as memory is free.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let free = self.used_bytes.is_none_or(|used| used <= IDLE_BYTES);
        let alone = self.processes.as_ref().is_none_or(Vec::is_empty);
        free && alone
    }

    /// What it is busy with.
    fn occupation(&self) -> String {
        let mut parts = vec![];
        match self.processes.as_deref().unwrap_or_default() {
            [] => {}
            [one] => parts.push(format!("process {one}")),
            many => {
                let all: Vec<_> = many.iter().map(u32::to_string).collect();
                parts.push(format!("processes {}", all.join(", ")));
            }
        }
        if let Some(used) = self.used_bytes {
            parts.push(format!("{} MiB in use", used >> 20));
        }
        format!("{} ({}): {}", self.index, self.name, parts.join(", "))
    }
}

/// The GPUs of these numbers.
///
/// # Errors
/// [`GpuError::NoSuchGpu`].
pub fn by_number(text: &str, numbers: &[u32], gpus: &[Gpu]) -> Result<Vec<u32>, GpuError> {
    for &number in numbers {
        if !gpus.iter().any(|gpu| gpu.index == number) {
            return Err(GpuError::NoSuchGpu {
                text: text.into(),
                number,
                gpus: gpus.iter().map(|g| (g.index, g.name.clone())).collect(),
            });
        }
    }
    Ok(numbers.to_vec())
}

/// `count` GPUs with nothing to do, those with the most memory first.
///
/// # Errors
/// [`GpuError::Busy`].
pub fn idle(text: &str, count: usize, gpus: &[Gpu]) -> Result<Vec<Gpu>, GpuError> {
    let mut found: Vec<&Gpu> = gpus.iter().filter(|gpu| gpu.is_idle()).collect();
    if found.len() < count {
        return Err(GpuError::Busy {
            text: text.into(),
            wanted: count,
            idle: found.len(),
            all: gpus.len(),
            busy: gpus
                .iter()
                .filter(|gpu| !gpu.is_idle())
                .map(Gpu::occupation)
                .collect(),
        });
    }
    found.sort_by_key(|gpu| (std::cmp::Reverse(gpu.memory_bytes), gpu.index));
    let mut chosen: Vec<Gpu> = found[..count].iter().map(|&gpu| gpu.clone()).collect();
    chosen.sort_by_key(|gpu| gpu.index);
    Ok(chosen)
}

/// Which ones were chosen, in a line.
#[must_use]
pub fn chosen(gpus: &[Gpu]) -> String {
    let each: Vec<_> = gpus
        .iter()
        .map(|gpu| format!("cuda:{} ({})", gpu.index, gpu.name))
        .collect();
    let s = if gpus.len() == 1 { "" } else { "s" };
    format!("idle GPU{s}: {}", each.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u32, gib: u64, used_mib: u64, processes: &[u32]) -> Gpu {
        Gpu {
            index,
            name: "Fake".into(),
            uuid: format!("GPU-{index}"),
            memory_bytes: gib << 30,
            used_bytes: Some(used_mib << 20),
            capability: (9, 0),
            processes: Some(processes.to_vec()),
        }
    }

    #[test]
    fn idle_gpus_have_no_process_and_little_memory_in_use() {
        let gpus = [
            gpu(0, 80, 3, &[]),
            gpu(1, 80, 700, &[41]),
            gpu(2, 140, 3, &[]),
            gpu(3, 80, 900, &[]),
        ];
        let indices = |count| -> Vec<u32> {
            let found = idle("-1", count, &gpus).unwrap();
            found.iter().map(|gpu| gpu.index).collect()
        };
        assert_eq!(indices(1), [2], "the largest");
        assert_eq!(indices(2), [0, 2], "by number");
        assert_eq!(
            idle("-1,-1,-1", 3, &gpus).unwrap_err().to_string(),
            "device -1,-1,-1 asks for 3 idle GPUs, but 2 of 4 are: 1 (Fake): process 41, 700 MiB in use; 3 (Fake): 900 MiB in use"
        );
    }

    #[test]
    fn without_nvml_the_memory_in_use_decides() {
        let mut unknown = gpu(0, 80, 0, &[]);
        (unknown.processes, unknown.used_bytes) = (None, None);
        assert!(unknown.is_idle());
        unknown.used_bytes = Some(1 << 30);
        assert!(!unknown.is_idle());
    }

    #[test]
    fn numbers_keep_their_order() {
        let gpus = [gpu(0, 80, 0, &[]), gpu(1, 80, 0, &[])];
        assert_eq!(by_number("1,0", &[1, 0], &gpus), Ok(vec![1, 0]));
        assert!(by_number("2", &[2], &gpus).is_err());
    }
}
