//! Runtimes that neither use nor replace what this machine's user calibrated. Other test programs include this file.

use transload::RuntimeBuilder;

/// Settings of a runtime without stored calibrations.
pub(crate) fn builder() -> RuntimeBuilder {
    let builder = RuntimeBuilder::default();
    #[cfg(feature = "calibration")]
    let builder = builder.calibration(transload::calibration::CalibrationStore::None);
    builder
}
