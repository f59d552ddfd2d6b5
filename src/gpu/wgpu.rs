//! Adapters of wgpu: GPUs with Vulkan or Metal, and software that does their work.

use burn::tensor::{Device, DeviceKind, DeviceType};

use super::error::GpuError;

/// All adapters, in the order in which `wgpu:0`, `wgpu:1`, … count them.
#[must_use]
pub fn adapters() -> Vec<Device> {
    Device::enumerate(DeviceType::Wgpu).into_iter().collect()
}

/// Number and name of each; opens the devices.
#[must_use]
pub fn names() -> Vec<(u32, String)> {
    let name = |device: &Device| {
        device
            .identity()
            .map_or_else(|| "an adapter".to_owned(), |identity| identity.name)
    };
    adapters()
        .iter()
        .enumerate()
        .map(|(number, device)| (number as u32, name(device)))
        .collect()
}

/// The adapters of these numbers.
///
/// # Errors
/// [`GpuError::NoSuchAdapter`].
pub fn by_number(text: &str, numbers: &[u32]) -> Result<Vec<u32>, GpuError> {
    let count = adapters().len() as u32;
    if let Some(&number) = numbers.iter().find(|&&number| number >= count) {
        return Err(GpuError::NoSuchAdapter {
            text: text.into(),
            number,
            adapters: names(),
        });
    }
    Ok(numbers.to_vec())
}

/// The tensor library's device; [`by_number`] has said that it is there. One that has gone since is the default one, which
/// says what is wrong when it is used.
#[must_use]
pub fn device(index: u32) -> Device {
    let found = adapters().get(index as usize).cloned();
    found.unwrap_or_else(|| Device::wgpu(DeviceKind::DefaultDevice))
}
