//! Plans and statistics in their serialized forms.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{from_str, to_string, to_value};
use transload_core::{MemoryKind, Timing};
use transload_transfer::{Plan, Sampling, TransferOptions, TransferStats};

use crate::{DeviceId, Mock, pair, with};

/// Asserts that nothing is lost. The mock is a third party's device, which cannot be read back, so it is renamed.
#[track_caller]
fn reads_back<T: Serialize + DeserializeOwned>(value: &T) {
    let text = to_string(value).unwrap().replace("mock:0", "cuda:0");
    assert_eq!(to_string(&from_str::<T>(&text).unwrap()).unwrap(), text);
}

#[test]
fn plan_is_its_report_with_alternatives() {
    let (manager, _) = with(Mock::default());
    let (_, near) = pair(&manager, 4096);
    let host = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 4096).unwrap();
    let plan = manager.plan(host.place(), near.place(), 4096, &TransferOptions::new()).unwrap();
    assert!(!plan.alternatives.is_empty() && !plan.rejected.is_empty(), "{plan}");
    let value = to_value(&plan).unwrap();
    assert_eq!(value["method"], plan.method.name());
    assert_eq!(value["path"]["src"], "cpu/pageable");
    assert_eq!(value["alternatives"][0]["method"], plan.alternatives[0].method.name());
    assert!(value["alternatives"][0]["predicted_seconds"].as_f64().unwrap() > 0.0);
    reads_back::<Plan>(&plan);
}

#[test]
fn statistics_read_back() {
    let (manager, _) = with(Mock::default());
    let (src, dst) = pair(&manager, 4096);
    manager.copy(&src, &dst).timing(Timing::Measured).wait().unwrap();
    let stats = manager.get_transfer_stats();
    let value = to_value(&stats).unwrap();
    assert_eq!(value[0]["size_class"], "up_to_4_kib");
    assert_eq!(value[0]["bytes"], 4096);
    assert_eq!(value[0]["time_seconds"], stats[0].time.as_secs_f64());
    assert_eq!(value[0]["latency_max_seconds"], stats[0].latency_max.unwrap().as_secs_f64());
    reads_back::<Vec<TransferStats>>(&stats);
    assert_eq!(to_string(&[Sampling::Off, Sampling::Every(64)]).unwrap(), r#"["off",{"every":64}]"#);
}
