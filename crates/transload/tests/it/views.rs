//! Strided views of arrays: which elements they are, and what is refused.

use transload::ErrorKind;

use crate::array::host_only;

#[test]
fn view_of_views_has_the_elements_of_both() {
    let rt = host_only();
    let cube = rt.host((0..60_u32).collect()).unwrap().view(&[3, 4, 5]).unwrap();
    assert_eq!(cube.strides(), [20, 5, 1]);
    let part = cube.narrow(0, 1..).unwrap().narrow(2, 1..=3).unwrap().transposed(1, 2).unwrap();
    assert_eq!((part.shape(), part.strides()), ([2, 3, 4].as_slice(), [20, 1, 5].as_slice()));
    let packed = rt.zeros::<u32>(24).unwrap();
    rt.copy_strided(&part, &packed.view(&[2, 3, 4]).unwrap()).unwrap().wait().unwrap();
    let expected: Vec<u32> = (0..24).map(|at| (1 + at / 12) * 20 + (at % 4) * 5 + 1 + at / 4 % 3).collect();
    assert_eq!(*packed.read().unwrap(), expected[..]);
    // One row, repeated.
    let row = cube.array().slice(5..10).unwrap().strided(&[4, 5], &[0, 1]).unwrap();
    let rows = rt.zeros::<u32>(20).unwrap();
    rt.copy_strided(&row, &rows.view(&[4, 5]).unwrap()).unwrap().wait().unwrap();
    assert_eq!(*rows.read().unwrap(), [5, 6, 7, 8, 9].repeat(4)[..]);
}

#[test]
fn wrong_views_are_refused() {
    let rt = host_only();
    let array = rt.zeros::<u16>(12).unwrap();
    let refused = |result: transload::Result<transload::StridedView<u16>>, kind, text: &str| {
        let error = result.map(drop).unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(text), "{error}");
    };
    use ErrorKind::{InvalidArgument, OutOfRange};
    refused(array.view(&[3, 5]), InvalidArgument, "12 elements");
    refused(array.view(&[usize::MAX, 2]), InvalidArgument, "12 elements");
    refused(array.strided(&[3], &[1, 1]), InvalidArgument, "2 strides for 1 dimensions");
    refused(array.strided(&[3, 4], &[4, 2]), OutOfRange, "array of 12 elements");
    refused(array.strided(&[3, 4], &[usize::MAX, 2]), OutOfRange, "array of 12 elements");
    let view = array.view(&[3, 4]).unwrap();
    refused(view.narrow(2, ..), OutOfRange, "no dimension 2");
    refused(view.narrow(0, 2..4), OutOfRange, "dimension");
    refused(view.transposed(0, 2), OutOfRange, "no dimension 2");
    let none = view.narrow(0, 3..).unwrap();
    assert_eq!(none.shape(), [0, 4]);
    assert_eq!(rt.copy_strided(&none, &none).map(drop).unwrap_err().kind(), InvalidArgument);
    assert_eq!(
        rt.copy_strided(&view, &view.transposed(0, 1).unwrap()).map(drop).unwrap_err().kind(),
        InvalidArgument
    );
}
