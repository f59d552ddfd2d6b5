//! Who uses a GPU, by NVIDIA's management library, where there is one.

use std::collections::BTreeMap;

use nvml_wrapper::Nvml;

/// What is going on on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Use {
    /// In use by anybody.
    pub bytes: Option<u64>,
    /// Compute processes, without this one.
    pub processes: Option<Vec<u32>>,
}

/// By the GPU's UUID, which the driver and NVML share (their numbers differ); none without NVML.
pub(super) fn uses(uuids: &[String]) -> BTreeMap<String, Use> {
    let mut found = BTreeMap::new();
    let Ok(nvml) = Nvml::init() else {
        return found;
    };
    for uuid in uuids {
        let Ok(device) = nvml.device_by_uuid(uuid.clone()) else {
            continue;
        };
        let own = std::process::id();
        let processes = device.running_compute_processes().ok().map(|all| {
            let mut all: Vec<u32> = all.iter().map(|p| p.pid).filter(|&p| p != own).collect();
            all.sort_unstable();
            all
        });
        let bytes = device.memory_info().ok().map(|m| m.used);
        found.insert(uuid.clone(), Use { bytes, processes });
    }
    found
}
