//! Texts of devices.

use transload_core::DeviceId;

#[test]
fn every_device_prints_as_it_parses() {
    for text in ["cpu", "cuda:0", "cuda:17", "wgpu:3", "metal:0"] {
        assert_eq!(text.parse::<DeviceId>().unwrap().to_string(), text);
    }
}

#[test]
fn invalid_device_text_is_refused_with_valid_forms() {
    for text in ["", "gpu:0", "cuda:", "cuda:-1", "cuda:+1", "cuda:0:1", "cpu:1", "cuda:4294967296", "CUDA:0"]
    {
        let error = text.parse::<DeviceId>().unwrap_err();
        assert!(error.to_string().contains("expected cpu, cuda:N"), "{error}");
    }
}
