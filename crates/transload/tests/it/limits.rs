//! Limits of a runtime, and what it says that it holds.

use transload::ErrorKind;

#[test]
fn settings_without_sense_are_refused() {
    let refused = |builder: transload::RuntimeBuilder| builder.discover().unwrap_err();
    for builder in [
        crate::uncalibrated::builder().threads(0),
        crate::uncalibrated::builder().staging_limit((4 << 20) - 1),
        crate::uncalibrated::builder().without("cpu"),
    ] {
        assert_eq!(refused(builder).kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn host_copies_use_at_most_the_given_threads() {
    let rt = crate::uncalibrated::builder().without("cuda").threads(2).discover().unwrap();
    assert_eq!(rt.resources().threads, 0);
    let (src, dst) = (rt.host(vec![7_u8; 32 << 20]).unwrap(), rt.zeros::<u8>(32 << 20).unwrap());
    rt.copy(&src, &dst).wait().unwrap();
    assert!((1..=2).contains(&rt.resources().threads), "{}", rt.resources());
    assert!(rt.download(&dst).wait().unwrap().iter().all(|byte| *byte == 7));
    assert_eq!(rt.resources().backends[0].1.bytes, 64 << 20);
}

#[test]
fn memory_beside_a_host_backend_of_the_caller_is_counted() {
    let given = transload::cpu::CpuBackend::new().unwrap();
    let rt = crate::uncalibrated::builder().without("cuda").backend(given).discover().unwrap();
    let array = rt.zeros::<u8>(4096).unwrap();
    let bytes: u64 = rt.resources().backends.iter().map(|(_, counts)| counts.bytes).sum();
    assert_eq!(bytes, 4096, "{}", rt.resources());
    assert!(!rt.resources().is_empty());
    drop(array);
    rt.drain().unwrap();
    assert!(rt.resources().is_empty(), "{}", rt.resources());
}

#[cfg(feature = "serde")]
#[test]
fn resources_serialize() {
    let rt = crate::uncalibrated::builder().without("cuda").discover().unwrap();
    let _array = rt.zeros::<u8>(4096).unwrap();
    let json = serde_json::to_value(rt.resources()).unwrap();
    assert_eq!((&json["backends"][0][0], &json["backends"][0][1]["bytes"]), (&"cpu".into(), &4096.into()));
    assert_eq!(json["pinned_limit"], serde_json::Value::Null);
}

#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
#[test]
fn pinned_limit_covers_staging_buffers_and_arrays() {
    const MIB: usize = 1 << 20;
    let test = transload_cuda_sim::harness::device();
    let config = transload::cuda::CudaBackendConfig::default().with_devices([test.ordinal()]);
    let builder = crate::uncalibrated::builder().cuda(config).pinned_limit(8 * MIB as u64);
    let rt = builder.staging_limit(4 * MIB as u64).discover().unwrap();
    let gpu = rt.cuda(test.ordinal()).unwrap();

    // Two buffers of which each transfer could use more.
    let weights = rt.host(vec![5_u32; 4 * MIB]).unwrap();
    let there = gpu.alloc::<u32>(4 * MIB).unwrap();
    let staged = transload::TransferMethod::HostStaged;
    rt.copy(&weights, &there).method(staged).wait().unwrap();
    assert_eq!(rt.resources().staging_bytes, 4 * MIB as u64, "{}", rt.resources());
    let pinned = gpu.pinned::<u8>(4 * MIB).unwrap();
    let held = rt.resources();
    assert_eq!((held.pinned_bytes, held.pinned_limit), (8 * MIB as u64, Some(8 * MIB as u64)));
    assert_eq!(gpu.pinned::<u8>(4 * MIB + 1).unwrap_err().kind(), ErrorKind::OutOfMemory);
    let back = rt.download(&there).wait().unwrap();
    assert!(back.iter().all(|n| *n == 5));

    drop((weights, there, pinned, back));
    rt.drain().unwrap();
    let held = rt.resources();
    assert_eq!((held.pinned_bytes, held.staging_bytes), (0, 0));
    assert!(held.backends.iter().all(|(_, counts)| counts.is_empty()), "{held}");
    drop((rt, gpu));
    test.assert_no_live_objects();
}

#[cfg(all(feature = "cuda", any(target_os = "linux", windows)))]
#[test]
fn streams_go_on_with_less_pinned_memory() {
    use transload::io::Blocking;

    const MIB: usize = 1 << 20;
    let bytes: Vec<u8> = (0..11 * MIB).map(|i| (i / 4096) as u8).collect();
    for limit in [8 * MIB, 2 * MIB, 100_000] {
        let test = transload_cuda_sim::harness::device();
        let config = transload::cuda::CudaBackendConfig::default().with_devices([test.ordinal()]);
        let rt = crate::uncalibrated::builder().cuda(config).pinned_limit(limit as u64).discover().unwrap();
        let there = rt.cuda(test.ordinal()).unwrap().alloc::<u8>(bytes.len()).unwrap();
        pollster::block_on(async {
            let source = Blocking::new(rt.manager(), std::io::Cursor::new(bytes.clone()));
            assert_eq!(rt.read_from(source, &there).await.unwrap().bytes, bytes.len() as u64);
            let mut sink = Blocking::new(rt.manager(), Vec::new());
            rt.write_to(&there, &mut sink).await.unwrap();
            assert!(sink.into_inner().await.unwrap() == bytes, "limit {limit}");
        });
        drop(there);
        rt.drain().unwrap();
        assert_eq!(rt.resources().pinned_bytes, 0);
    }
}
