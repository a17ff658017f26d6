//! Decoding of consumer streams.

use transload_core::ErrorKind;
use transload_dlpack::ConsumerStream;

#[test]
fn stream_argument_is_decoded_as_standardised() {
    let of = ConsumerStream::from_protocol;
    assert_eq!(of(None).unwrap(), ConsumerStream::LegacyDefault);
    assert_eq!(of(Some(1)).unwrap(), ConsumerStream::LegacyDefault);
    assert_eq!(of(Some(2)).unwrap(), ConsumerStream::PerThreadDefault);
    assert_eq!(of(Some(0x5000)).unwrap(), ConsumerStream::Handle(0x5000));
    assert_eq!(of(Some(-1)).unwrap(), ConsumerStream::NoSync);
    for wrong in [0, -2, i64::MIN] {
        let error = of(Some(wrong)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("valid: None or 1"), "{error}");
    }
}
