//! Features of devices of several architectures.

use transload_cuda_sim::{SimDevice, SimDeviceBuilder};
use transload_memory::{CudaDevice, CudaFeature, UnifiedSupport};

use crate::builder;

fn device(properties: impl FnOnce(SimDeviceBuilder) -> SimDeviceBuilder) -> (SimDevice, CudaDevice) {
    let sim = properties(builder()).build();
    (sim, CudaDevice::new(sim.ordinal()).unwrap())
}

#[test]
fn unified_support_follows_the_architecture_and_the_system() {
    type Properties = fn(SimDeviceBuilder) -> SimDeviceBuilder;
    let cases: [(Properties, UnifiedSupport); 8] = [
        (|builder| builder.compute_capability(2, 1).managed_memory(false), UnifiedSupport::None),
        (|builder| builder.compute_capability(2, 1), UnifiedSupport::None),
        (|builder| builder.compute_capability(3, 0).concurrent_managed_access(false), UnifiedSupport::Basic),
        (SimDeviceBuilder::pre_pascal, UnifiedSupport::Basic),
        (|builder| builder.compute_capability(6, 0), UnifiedSupport::Full),
        // Windows, and some virtual machines.
        (|builder| builder.compute_capability(8, 6).concurrent_managed_access(false), UnifiedSupport::Basic),
        (|builder| builder, UnifiedSupport::Full),
        (SimDeviceBuilder::coherent, UnifiedSupport::Full),
    ];
    for (index, (properties, expected)) in cases.into_iter().enumerate() {
        let (_sim, device) = device(properties);
        assert_eq!(device.unified_support().unwrap(), expected, "case {index}");
    }
    assert!(UnifiedSupport::None < UnifiedSupport::Basic && UnifiedSupport::Basic < UnifiedSupport::Full);
}

#[test]
fn features_are_what_the_device_has() {
    use CudaFeature::*;
    type Properties = fn(SimDeviceBuilder) -> SimDeviceBuilder;
    let cases: [(Properties, &[CudaFeature], &[CudaFeature]); 5] = [
        (
            |builder| builder,
            &[
                ManagedMemory,
                UnifiedAddressing,
                ConcurrentManagedAccess,
                MemoryPools,
                HostRegister,
                CanUseHostPointerForRegisteredMem,
                MapHostMemory,
                StreamPriorities,
            ],
            &[
                PageableMemoryAccess,
                HostNativeAtomics,
                PageableMemoryAccessUsesHostPageTables,
                DirectManagedMemAccessFromHost,
                ReadOnlyHostRegister,
                Integrated,
            ],
        ),
        (
            SimDeviceBuilder::coherent,
            &[
                PageableMemoryAccess,
                HostNativeAtomics,
                PageableMemoryAccessUsesHostPageTables,
                DirectManagedMemAccessFromHost,
            ],
            &[Integrated],
        ),
        (SimDeviceBuilder::pre_pascal, &[ManagedMemory], &[ConcurrentManagedAccess, MemoryPools]),
        (
            |builder| builder.host_register(false).managed_memory(false),
            &[],
            &[HostRegister, ManagedMemory, ConcurrentManagedAccess],
        ),
        (|builder| builder.read_only_register(true), &[ReadOnlyHostRegister], &[]),
    ];
    for (index, (properties, present, absent)) in cases.into_iter().enumerate() {
        let (_sim, device) = device(properties);
        for (features, expected) in [(present, true), (absent, false)] {
            for feature in features {
                assert_eq!(device.supports_feature(*feature).unwrap(), expected, "case {index}: {feature}");
            }
        }
    }
}

#[test]
fn unknown_attribute_means_unsupported() {
    const INVALID_VALUE: u32 = 1;
    let (sim, device) = device(|builder| builder.read_only_register(true));
    sim.fail_call(Some("cuDeviceGetAttribute"), 1, INVALID_VALUE);
    assert!(!device.supports_feature(CudaFeature::ReadOnlyHostRegister).unwrap());
    sim.fail_call(Some("cuDeviceGetAttribute"), 1, 999);
    assert!(device.supports_feature(CudaFeature::ReadOnlyHostRegister).is_err());
}
