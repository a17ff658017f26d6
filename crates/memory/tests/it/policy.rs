//! Policies and locations, without a driver.

use transload_core::{DeviceId, ErrorKind, MemoryAdvice};
use transload_memory::{MemoryLocation, MigrationPolicy};

#[test]
fn the_host_means_the_host_and_a_device_means_that_device() {
    assert_eq!(
        MigrationPolicy::PreferHost.to_advice_pairs(),
        [(MemoryAdvice::SetPreferredLocation(DeviceId::Cpu), Some(MemoryLocation::Host))]
    );
    for ordinal in [0, 1, 7] {
        let (device, location) = (DeviceId::Cuda(ordinal), Some(MemoryLocation::Device(ordinal)));
        assert_eq!(
            MigrationPolicy::PreferDevice(ordinal).to_advice_pairs(),
            [(MemoryAdvice::SetPreferredLocation(device), location)]
        );
        assert_eq!(
            MigrationPolicy::AccessedBy(ordinal).to_advice_pairs(),
            [(MemoryAdvice::SetAccessedBy(device), location)]
        );
    }
    assert_eq!(MigrationPolicy::ReadMostly.to_advice_pairs(), [(MemoryAdvice::SetReadMostly, None)]);
}

#[test]
fn only_the_default_is_the_default_and_it_advises_nothing() {
    assert!(MigrationPolicy::default().is_default());
    assert_eq!(MigrationPolicy::Default.to_advice_pairs(), []);
    let others = [
        MigrationPolicy::ReadMostly,
        MigrationPolicy::PreferDevice(0),
        MigrationPolicy::PreferHost,
        MigrationPolicy::AccessedBy(0),
    ];
    assert!(others.iter().all(|policy| !policy.is_default() && !policy.to_advice_pairs().is_empty()));
    assert!(!MigrationPolicy::Reset.is_default());
}

#[test]
fn each_policy_has_a_name_of_its_own() {
    let names = [
        (MigrationPolicy::Default, "default"),
        (MigrationPolicy::ReadMostly, "read mostly"),
        (MigrationPolicy::PreferDevice(3), "prefer cuda:3"),
        (MigrationPolicy::PreferHost, "prefer cpu"),
        (MigrationPolicy::AccessedBy(1), "accessed by cuda:1"),
        (MigrationPolicy::Reset, "reset"),
    ];
    for (policy, name) in names {
        assert_eq!(policy.to_string(), name);
    }
}

#[test]
fn a_device_of_another_family_is_no_place_for_unified_memory() {
    assert_eq!(MemoryLocation::try_from(DeviceId::Cpu).unwrap(), MemoryLocation::Host);
    assert_eq!(MemoryLocation::try_from(DeviceId::Cuda(2)).unwrap(), MemoryLocation::Device(2));
    let error = MemoryLocation::try_from(DeviceId::Wgpu(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("valid are cpu and cuda:N"), "{error}");
}
