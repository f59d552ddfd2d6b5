//! The device that tests run on.

use burn::tensor::Device;

/// A device of Vulkan's; `None`, and a line that says so, where there is no adapter.
///
/// # Panics
/// If there is none and `YOLO_TRAIN_REQUIRE_WGPU=1` is set, as in CI.
pub(crate) fn device() -> Option<Device> {
    #[cfg(feature = "wgpu")]
    let device = Device::enumerate(burn::tensor::DeviceType::Wgpu)
        .into_vec()
        .into_iter()
        .next();
    #[cfg(not(feature = "wgpu"))]
    let device: Option<Device> = None;
    if device.is_none() {
        assert!(
            std::env::var_os("YOLO_TRAIN_REQUIRE_WGPU").is_none_or(|v| v != "1"),
            "YOLO_TRAIN_REQUIRE_WGPU=1 is set, and no Vulkan adapter was found"
        );
        eprintln!("skipped: no Vulkan adapter");
    }
    device
}
