//! Serialized forms are stable, read back as what was written, and refuse what means nothing.

use std::{fmt::Debug, time::Duration};

use serde_json::{Value, from_value, json, to_value};
use transload_core::{
    CostBasis, CostModel, DeviceId, DeviceInfo, ErrorKind, ListCost, ListModel, ListTime, ListWay,
    MemoryInfo, MemoryKind, MemoryShortage, PathCost, PeerAccess, Place, RejectReason, Rejected,
    ResourceCounts, Retry, SizeClass, StreamPriority, Timing, TransferMethod, TransferPath, TransferReport,
    TransferState, WorkloadType, next_timeline_id,
};

const PINNED: Place = Place::new(DeviceId::Cpu, MemoryKind::Pinned);
const NEAR: Place = Place::new(DeviceId::Cuda(1), MemoryKind::Device);

/// Asserts the form of a value, and that the form reads as the value.
#[track_caller]
fn round_trip<T>(value: &T, form: Value)
where
    T: Debug + PartialEq + serde::Serialize + serde::de::DeserializeOwned,
{
    assert_eq!(to_value(value).unwrap(), form);
    assert_eq!(&from_value::<T>(form).unwrap(), value);
}

#[track_caller]
fn refused<T: Debug + serde::de::DeserializeOwned>(form: Value, said: &str) {
    let error = from_value::<T>(form).unwrap_err().to_string();
    assert!(error.contains(said), "{error}");
}

#[test]
fn devices_places_and_kinds_are_their_texts() {
    for device in [DeviceId::Cpu, DeviceId::Cuda(7), DeviceId::Wgpu(0), DeviceId::Metal(2)] {
        round_trip(&device, json!(device.to_string()));
        for kind in MemoryKind::ALL {
            round_trip(&kind, json!(kind.to_string()));
            round_trip(&Place::new(device, kind), json!(format!("{device}/{kind}")));
        }
    }
    round_trip(&TransferPath::new(PINNED, NEAR), json!({ "src": "cpu/pinned", "dst": "cuda:1/device" }));
    refused::<DeviceId>(json!("gpu"), "expected cpu, cuda:N");
    for text in ["cpu", "cpu/fast", "cpu/Pinned", "npu:0/device", "cuda:0/device/0", ""] {
        refused::<Place>(json!(text), "is not a place; expected");
    }
    assert_eq!(to_value(DeviceId::Other("npu", 3)).unwrap(), "npu:3");
}

#[test]
fn methods_are_their_names_and_other_enums_snake_case() {
    for method in TransferMethod::ALL {
        round_trip(&method, json!(method.name()));
    }
    round_trip(&TransferMethod::Fill, json!("Fill"));
    round_trip(&CostBasis::BuiltIn, json!("built_in"));
    round_trip(&RejectReason::NoPeerAccess, json!("no_peer_access"));
    round_trip(&ErrorKind::OutOfMemory, json!("out_of_memory"));
    round_trip(&Retry::AfterFreeing, json!("after_freeing"));
    round_trip(&PeerAccess::Enabled, json!("enabled"));
    round_trip(&StreamPriority::High, json!("high"));
    round_trip(&WorkloadType::Coordination, json!("coordination"));
    round_trip(&Timing::Measured, json!("measured"));
    round_trip(&TransferState::Enqueued, json!("enqueued"));
    let classes = ["up_to_4_kib", "up_to_64_kib", "up_to_1_mib", "up_to_16_mib", "up_to_128_mib", "larger"];
    SizeClass::ALL.into_iter().zip(classes).for_each(|(class, name)| round_trip(&class, json!(name)));
}

#[test]
fn report_has_units_in_names() {
    let path = TransferPath::new(PINNED, NEAR);
    let mut report = TransferReport::planned(path, TransferMethod::DirectCopy, DeviceId::Cuda(1), 4096);
    report.predicted = Duration::from_nanos(12_345_678_901);
    report.moving = Some(Duration::from_nanos(1));
    report.rejected.push(Rejected { method: TransferMethod::PeerToPeer, reason: RejectReason::NoDevice });
    let form = json!({
        "id": null,
        "path": { "src": "cpu/pinned", "dst": "cuda:1/device" },
        "method": "DirectCopy",
        "lane": "cuda:1",
        "lanes": 1,
        "bytes": 4096,
        "chunks": 1,
        "submitting_seconds": null,
        "elapsed_seconds": null,
        "moving_seconds": 1e-9,
        "predicted_seconds": 12.345_678_901,
        "queued_bytes": 0,
        "basis": "built_in",
        "explored": false,
        "through_device": false,
        "rejected": [{ "method": "PeerToPeer", "reason": "no_device" }],
        "simulated": false,
    });
    round_trip(&report, form.clone());
    let mut wrong = form.clone();
    wrong["moving_seconds"] = json!(-1.0);
    refused::<TransferReport>(wrong, "negative");
    // What was not measured may be absent.
    let mut absent = form;
    absent.as_object_mut().unwrap().remove("elapsed_seconds");
    assert_eq!(from_value::<TransferReport>(absent).unwrap(), report);
}

#[test]
fn durations_up_to_a_month_keep_each_nanosecond() {
    let path = TransferPath::new(PINNED, NEAR);
    let mut report = TransferReport::planned(path, TransferMethod::DirectCopy, DeviceId::Cuda(1), 1);
    for nanos in [0, 1, 999_999_999, 1_000_000_001, 86_400_000_000_001, 2_678_399_999_999_999] {
        report.predicted = Duration::from_nanos(nanos);
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<TransferReport>(&text).unwrap(), report);
    }
}

#[test]
fn cost_models_are_points_and_need_two_sizes() {
    let model = CostModel::through(&[(4096, Duration::from_micros(8)), (0, Duration::from_micros(2))]);
    let cost = PathCost {
        path: TransferPath::new(PINNED, NEAR),
        method: TransferMethod::ZeroCopy,
        model: model.unwrap(),
    };
    let points = json!([{ "bytes": 0, "seconds": 2e-6 }, { "bytes": 4096, "seconds": 8e-6 }]);
    let path = json!({ "src": "cpu/pinned", "dst": "cuda:1/device" });
    round_trip(&cost, json!({ "path": path, "method": "ZeroCopy", "model": points }));
    // Also one that never ends.
    for rate in [25e9, 0.0, f64::INFINITY, f64::NAN] {
        let model = CostModel::linear(Duration::from_micros(10), rate);
        let text = serde_json::to_string(&model).unwrap();
        assert_eq!(serde_json::from_str::<CostModel>(&text).unwrap(), model);
    }
    let point = |bytes: u64, seconds: f64| json!({ "bytes": bytes, "seconds": seconds });
    refused::<CostModel>(json!([]), "two different sizes");
    refused::<CostModel>(json!([point(1, 0.0), point(1, 1.0)]), "two different sizes");
    refused::<CostModel>(json!([point(0, -1.0), point(1, 1.0)]), "finite and not negative");
}

#[test]
fn costs_of_lists_are_points_with_two_numbers_for_each_length() {
    let list = |pieces, bytes, micros| ListTime { pieces, bytes, time: Duration::from_micros(micros) };
    let model = ListModel::through(&[
        list(1000, 4096, 110),
        list(1, 4096, 11),
        list(0, 8192, 10),
        list(1000, 8192, 210),
    ]);
    let cost = ListCost {
        path: TransferPath::new(PINNED, NEAR),
        way: ListWay::CopyKernel,
        exclusive: true,
        model: model.unwrap(),
    };
    let point = |pieces: u64, bytes: u64, seconds: f64| json!({ "pieces": pieces, "bytes": bytes, "seconds": seconds });
    let points =
        [point(1, 4096, 11e-6), point(1000, 4096, 110e-6), point(0, 8192, 10e-6), point(1000, 8192, 210e-6)];
    let path = json!({ "src": "cpu/pinned", "dst": "cuda:1/device" });
    round_trip(&cost, json!({ "path": path, "way": "copy_kernel", "exclusive": true, "model": points }));
    let unsaid = json!({ "path": path, "way": "copy_kernel", "model": points });
    assert_eq!(
        serde_json::from_value::<ListCost>(unsaid).unwrap(),
        cost,
        "of an idle device, if it is not said"
    );
    // Linear in the number of pieces and their length; longer pieces are several.
    let micros = |pieces: u64, bytes| cost.model.predict(pieces, pieces * bytes).as_nanos().div_ceil(100);
    assert_eq!(
        [micros(1000, 4096), micros(500, 4096), micros(1000, 6144), micros(1000, 16_384)],
        [1100, 605, 1600, 4100]
    );
    assert_eq!([micros(2000, 4096), micros(1000, 512), micros(500, 8192)], [2091, 1100, 1100]);
    assert_eq!(cost.model.predict(0, 0), cost.model.predict(1, 1));
    assert!(cost.model.predict(u64::MAX, u64::MAX) > Duration::from_secs(1 << 30));
    for bad in
        [json!([]), json!([point(1, 1, 1.0)]), json!([point(1, 1, 1.0), point(2, 1, 1.0), point(3, 2, 1.0)])]
    {
        refused::<ListModel>(bad, "two different numbers");
    }
    refused::<ListModel>(json!([point(1, 1, -1.0), point(2, 1, 1.0)]), "negative");
    refused::<ListWay>(json!("legs"), "unknown variant");
}

#[test]
fn descriptions_and_counts_read_back() {
    let mut info = DeviceInfo::new(DeviceId::Cuda(0), "GPU");
    info.total_memory = Some(1 << 40);
    info.largest_allocation = Some(1 << 32);
    info.kinds = vec![MemoryKind::Device, MemoryKind::Unified];
    info.uuid = Some([0x0f; 16]);
    let form = json!({
        "id": "cuda:0",
        "name": "GPU",
        "total_bytes": 1_u64 << 40,
        "largest_allocation_bytes": 1_u64 << 32,
        "kinds": ["device", "unified"],
        "concurrent_managed_access": false,
        "uuid": "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f",
        "driver": "",
        "simulated": false,
    });
    round_trip(&info, form.clone());
    for wrong in ["0f", "+f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f", "-"] {
        let mut form = form.clone();
        form["uuid"] = json!(wrong);
        refused::<DeviceInfo>(form, "32 hexadecimal digits");
    }
    round_trip(&MemoryInfo { free: 1, total: 2 }, json!({ "free_bytes": 1, "total_bytes": 2 }));
    let shortage = MemoryShortage { requested: 3, free: None, total: Some(2) };
    round_trip(&shortage, json!({ "requested_bytes": 3, "free_bytes": null, "total_bytes": 2 }));
    let counts = json!({ "allocations": 0, "bytes": 0, "cached_bytes": 0, "pending_free": 0, "leases": 0 });
    round_trip(&ResourceCounts::default(), counts);
    assert!(to_value(next_timeline_id()).unwrap().is_u64());
}
