//! Layout of tensors in segments.

use safetensors::Dtype;

use super::*;

fn layout(sizes: &[usize], alignment: usize, most: usize) -> Option<Layout> {
    let entry =
        |bytes: &usize| Entry { name: String::new(), dtype: Dtype::U8, shape: vec![*bytes], bytes: *bytes };
    Layout::new(&sizes.iter().map(entry).collect::<Vec<_>>(), alignment, most)
}

#[test]
fn tensors_are_aligned_and_follow_each_other() {
    let layout = layout(&[1, 0, 256, 300, 5], 256, usize::MAX).unwrap();
    let offsets: Vec<_> = layout.ranges.iter().map(|range| range.offset).collect();
    assert_eq!(offsets, [0, 256, 256, 512, 1024]);
    assert_eq!(layout.segments, [1029]);
}

#[test]
fn segments_are_bounded_except_for_larger_tensors() {
    let layout = layout(&[100, 100, 1000, 10, 10], 64, 256).unwrap();
    let spots: Vec<_> = layout.ranges.iter().map(|range| (range.segment, range.offset)).collect();
    assert_eq!(spots, [(0, 0), (0, 128), (1, 0), (2, 0), (2, 64)]);
    assert_eq!(layout.segments, [228, 1000, 74]);
    assert_eq!(self::layout(&[0, 0], 64, 1).unwrap().segments, [1], "memory has at least one byte");
    assert_eq!(self::layout(&[usize::MAX, 1], 64, usize::MAX), None);
}

#[test]
fn every_byte_of_every_tensor_is_in_exactly_one_chunk() {
    for alignment in [1, 64, 256, 4096] {
        for most_segment in [1, 700, usize::MAX] {
            let layout = layout(&[3, 0, 700, 1, 1, 256, 0, 511, 64, 0], alignment, most_segment).unwrap();
            for most in [1, 7, 64, 100, 256, 1000, 1 << 20] {
                let mut seen = vec![0; layout.ranges.len()];
                for chunk in layout.chunks(most) {
                    assert!(0 < chunk.len && chunk.len <= most);
                    assert_eq!(chunk.parts[0].at, 0);
                    let last = chunk.parts[chunk.parts.len() - 1];
                    assert_eq!(last.at + last.len, chunk.len);
                    for part in &chunk.parts {
                        let range = layout.ranges[part.tensor];
                        assert_eq!(range.segment, chunk.segment);
                        assert_eq!(chunk.offset + part.at, range.offset + seen[part.tensor]);
                        seen[part.tensor] += part.len;
                    }
                }
                assert!(layout.ranges.iter().zip(&seen).all(|(range, seen)| range.bytes == *seen));
            }
        }
    }
}
