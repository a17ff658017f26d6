//! Promises about devices and their memory.

use std::collections::BTreeSet;

use super::{
    CheckResult, Verdict,
    context::{self, TestContext, refused},
};
use crate::{DeviceId, ErrorKind, MemoryKind, Retry, StreamPriority, WorkloadType};

const PEBIBYTE: usize = 1 << 50;

pub(super) fn devices(context: &TestContext<'_>) -> CheckResult {
    let info = context::info(context.subject)?;
    let all = context.backend().devices();
    let distinct: BTreeSet<_> = all.iter().map(|info| info.id).collect();
    ensure!(distinct.len() == all.len(), "a device is listed twice among {distinct:?}");
    ensure!(!info.name.is_empty() && !context.backend().name().is_empty(), "a device or backend has no name");
    ensure!(!info.kinds.is_empty(), "{} has no kind of memory", info.id);
    Ok(Verdict::Passed)
}

pub(super) fn kinds(context: &TestContext<'_>) -> CheckResult {
    let info = context::info(context.subject)?;
    for kind in MemoryKind::ALL {
        let answer = context.backend().allocate(info.id, kind, 77);
        if !info.kinds.contains(&kind) {
            refused(answer, ErrorKind::Unsupported, &format!("{kind} memory, which is not listed,"))?;
            continue;
        }
        let buffer = match answer {
            Ok(buffer) => buffer,
            Err(error) => fail!("{kind} memory is listed and was refused: {error:?}"),
        };
        let place = buffer.place();
        ensure!(place.kind == kind, "{kind} memory was asked for and {place} was given");
        let is_hosts = matches!(kind, MemoryKind::Pageable | MemoryKind::Pinned | MemoryKind::Mapped);
        let owner = if is_hosts { DeviceId::Cpu } else { info.id };
        ensure!(place.device == owner, "{kind} memory of {} has the place {place}", info.id);
        ensure!(buffer.len() == 77 && buffer.offset() == 0, "77 bytes were asked for, not {buffer:?}");
        ensure!(buffer.is_writable(), "fresh {kind} memory may not be written");
        let host = buffer.host_address();
        // The host must not use unified memory while some devices work.
        let has_address = is_hosts || kind == MemoryKind::Unified && info.concurrent_managed_access;
        ensure!(host.is_some() || !has_address, "{kind} memory has no address for the host");
        ensure!(host.is_none() || kind.is_host_visible(), "the host is given an address of {kind} memory");
        ensure!(
            host.is_none_or(|host| host.addr().get() % 16 == 0),
            "{kind} memory is not aligned to 16 bytes"
        );
    }
    Ok(Verdict::Passed)
}

pub(super) fn sizes(context: &TestContext<'_>) -> CheckResult {
    const SIZES: [usize; 20] = [
        1, 2, 3, 7, 16, 31, 63, 64, 65, 255, 256, 4095, 4096, 4097, 65_535, 65_537, 1_048_575, 1_048_576,
        1_048_577, 8_388_611,
    ];
    let mut rng = context.rng("sizes");
    for memory in context.memories.iter().copied() {
        let mut alive = Vec::new();
        let [before, _] = context.subject.resource_counts()?;
        for bytes in SIZES.into_iter().filter(|bytes| *bytes == context.size(*bytes).min(*bytes)) {
            let content = rng.bytes(bytes);
            alive.push((context.buffer_of(memory, &content)?, content));
        }
        let (count, sum) = (alive.len() as u64, alive.iter().map(|(_, content)| content.len() as u64).sum());
        let more = |after: u64, before: u64| after.saturating_sub(before);
        let after = [context.backend().resource_counts(), context.subject.host.resource_counts()];
        ensure!(
            after.iter().any(|after| after.allocations >= count && after.bytes >= sum),
            "{count} allocations of {sum} bytes are alive, and no ledger says so: {}; {}",
            after[0],
            after[1]
        );
        let counted = more(after[0].allocations, before.allocations);
        ensure!(counted == 0 || counted >= count, "the ledger counts {counted} of {count} allocations");
        for (buffer, content) in &alive {
            context.expect(
                buffer,
                content,
                &format!("{} bytes of {} beside others", content.len(), memory.place),
            )?;
        }
    }
    Ok(Verdict::Passed)
}

pub(super) fn zero_bytes(context: &TestContext<'_>) -> CheckResult {
    for kind in context::info(context.subject)?.kinds {
        let answer = context.backend().allocate(context.subject.device, kind, 0);
        refused(answer, ErrorKind::InvalidArgument, &format!("0 bytes of {kind} memory"))?;
    }
    Ok(Verdict::Passed)
}

pub(super) fn one_pebibyte(context: &TestContext<'_>) -> CheckResult {
    let info = context::info(context.subject)?;
    for kind in info.kinds {
        let before = context.subject.resource_counts()?;
        if let Some(limit) = info.largest_allocation {
            let beyond = usize::try_from(limit).unwrap_or(usize::MAX).saturating_add(1);
            let error = match context.backend().allocate(context.subject.device, kind, beyond) {
                Ok(_) => fail!("{beyond} bytes of {kind} memory were given, beyond the largest allocation"),
                Err(error) => error,
            };
            let is_limit =
                error.kind() == ErrorKind::OutOfRange && error.to_string().contains(&limit.to_string());
            ensure!(is_limit, "one byte beyond the largest allocation of {limit}: {error:?}");
            let after = context.subject.resource_counts()?;
            ensure!(after == before, "what was refused is counted: {}", after[0]);
            if beyond <= PEBIBYTE {
                continue;
            }
        }
        let error = match context.backend().allocate(context.subject.device, kind, PEBIBYTE) {
            Ok(_) => fail!("1 PiB of {kind} memory was given"),
            Err(error) => error,
        };
        ensure!(error.kind() == ErrorKind::OutOfMemory, "1 PiB of {kind} memory: {error:?}");
        ensure!(error.retry() == Retry::AfterFreeing, "out of memory: a retry can help after freeing");
        let Some(shortage) = error.memory_shortage() else { fail!("no numbers in {error:?}") };
        ensure!(shortage.requested == PEBIBYTE as u64, "{} bytes requested: {error}", shortage.requested);
        let sane = shortage.free.zip(shortage.total).is_none_or(|(free, total)| free <= total);
        ensure!(sane, "more free than there is: {error}");
        let after = context.subject.resource_counts()?;
        ensure!(after == before, "what was refused is counted: {}", after[0]);
        if context.backend().allocate(context.subject.device, kind, usize::MAX).is_ok() {
            fail!("{} bytes of {kind} memory were given", usize::MAX);
        }
    }
    for memory in context.memories.iter().copied() {
        let buffer = context.buffer_of(memory, &[3; 100])?;
        context.expect(&buffer, &[3; 100], "an allocation after one that was refused")?;
    }
    Ok(Verdict::Passed)
}

pub(super) fn unknown_device(context: &TestContext<'_>) -> CheckResult {
    let far = match context.subject.device {
        DeviceId::Cpu => DeviceId::Cuda(u32::MAX),
        DeviceId::Cuda(_) => DeviceId::Cuda(u32::MAX),
        DeviceId::Wgpu(_) => DeviceId::Wgpu(u32::MAX),
        DeviceId::Metal(_) => DeviceId::Metal(u32::MAX),
        DeviceId::Other(family, _) => DeviceId::Other(family, u32::MAX),
    };
    let backend = &context.subject.backend;
    for unknown in [far, DeviceId::Other("conformance: no such family", 0)] {
        for kind in MemoryKind::ALL {
            let answer = backend.allocate(unknown, kind, 100);
            refused(answer, ErrorKind::UnknownDevice, &format!("memory of {unknown}"))?;
        }
        let answer = backend.memory_info(unknown);
        refused(answer, ErrorKind::UnknownDevice, &format!("the memory numbers of {unknown}"))?;
        let answer = backend.lease_queue(unknown, StreamPriority::Normal, WorkloadType::Memory);
        refused(answer, ErrorKind::UnknownDevice, &format!("a queue of {unknown}"))?;
    }
    Ok(Verdict::Passed)
}

pub(super) fn memory_info(context: &TestContext<'_>) -> CheckResult {
    let memory = match context.backend().memory_info(context.subject.device) {
        Ok(memory) => memory,
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            return Ok(Verdict::NotApplicable(error.to_string()));
        }
        Err(error) => return Err(error.into()),
    };
    ensure!(0 < memory.total && memory.free <= memory.total, "nonsense: {memory:?}");
    if let Some(total) = context::info(context.subject)?.total_memory {
        ensure!(memory.total <= total, "the device is said to have {total} bytes, but also {memory:?}");
    }
    Ok(Verdict::Passed)
}

pub(super) fn device_bytes(context: &TestContext<'_>) -> CheckResult {
    const BYTES: usize = 1 << 20;
    let (backend, device) = (context.backend(), context.subject.device);
    context.subject.resource_counts()?;
    let Some(before) = backend.device_bytes(device) else {
        return Ok(Verdict::NotApplicable("device memory is not counted apart".to_owned()));
    };
    let bytes = || backend.device_bytes(device).unwrap_or_default();
    for kind in context::info(context.subject)?.kinds {
        let held = backend.allocate(device, kind, BYTES)?;
        let (now, least) = (bytes(), before + BYTES as u64);
        let is_counted = if kind == MemoryKind::Device { now >= least } else { now == before };
        ensure!(is_counted, "{before} bytes before {BYTES} bytes of {kind} memory, and {now} with them");
        drop(held);
        context.subject.resource_counts()?;
        ensure!(bytes() == before, "{before} bytes before {kind} memory, and {} after it", bytes());
    }
    let unknown = DeviceId::Other("conformance: no such family", 0);
    ensure!(backend.device_bytes(unknown).is_none(), "{unknown} has bytes");
    Ok(Verdict::Passed)
}
