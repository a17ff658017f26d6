//! The tests of this program under Khronos' validation layer. The conformance test and the unit tests use this file, too.

use std::{env, process::Command};

use ash::vk;

use super::skip;

/// Names the layer for the loader of Vulkan, in a child of the test.
pub(crate) const LAYERS: &str = "VK_INSTANCE_LAYERS";
/// Tests whose calls of Vulkan are wgpu's, or that the layer has no part in; and one in which a thread waits for what the host then signals:
/// the layer (1.3.239) may retire both in the wrong order, waits for itself, and reports that as "most likely a validation bug".
const LEFT_OUT: [&str; 6] =
    ["--skip", "portable::", "--skip", "adapters::", "--skip", "submission_that_is_refused_ends_after"];
/// And those with CUDA on a GPU: the layer sees no signal of CUDA's, and takes what waited for it to be in use for ever.
const WITH_CUDA: [&str; 4] = ["--skip", "cuda::", "--skip", "between::"];

/// Runs the tests in a child under Khronos' validation layer, which also checks barriers. Only counts if the layer reports the
/// planted fault.
#[test]
fn validation_layer_reports_only_the_planted_fault() {
    if env::var_os(LAYERS).is_some() {
        return plant_fault();
    }
    let synchronization = "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT";
    let output = Command::new(env::current_exe().unwrap())
        .args(["--test-threads", "1", "--nocapture"])
        .args(LEFT_OUT)
        .args(if env::var_os("TRANSLOAD_TEST_DRIVER").is_some_and(|driver| driver == "real") {
            &WITH_CUDA[..]
        } else {
            &[]
        })
        .envs([(LAYERS, "VK_LAYER_KHRONOS_validation"), ("VK_LAYER_ENABLES", synchronization)])
        .output()
        .unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success() && text.contains("passed; 0 failed") && !text.contains("running 0 tests"),
        "{text}"
    );
    let mut reported: Vec<_> = text
        .lines()
        .filter(|line| line.contains("Validation Error") || line.contains("SYNC-HAZARD"))
        .collect();
    let all = reported.len();
    reported.retain(|line| !line.contains(PLANTED));
    if all == reported.len() {
        return skip("the validation layer is missing; on Debian install vulkan-validationlayers");
    }
    assert!(reported.is_empty(), "{}", reported.join("\n"));
}

/// What the layer says of a buffer of 0 bytes.
const PLANTED: &str = "VUID-VkBufferCreateInfo-size-00912";

/// Creates such a buffer on the first device.
fn plant_fault() {
    let Ok(entry) = (
        // SAFETY: as for the backend, which loads it too.
        unsafe { ash::Entry::load() }
    ) else {
        return;
    };
    // SAFETY: the calls are valid except for the planted one, which no driver is known to mind; all that is made is destroyed.
    unsafe {
        let Ok(instance) = entry.create_instance(&vk::InstanceCreateInfo::default(), None) else { return };
        if let Some(physical) =
            instance.enumerate_physical_devices().ok().and_then(|all| all.first().copied())
        {
            let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0])];
            let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues);
            if let Ok(device) = instance.create_device(physical, &info, None) {
                let info = vk::BufferCreateInfo::default().usage(vk::BufferUsageFlags::TRANSFER_SRC);
                if let Ok(buffer) = device.create_buffer(&info, None) {
                    device.destroy_buffer(buffer, None);
                }
                device.destroy_device(None);
            }
        }
        instance.destroy_instance(None);
    }
}
