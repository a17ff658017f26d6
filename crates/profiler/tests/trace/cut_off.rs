//! A file that is cut at any byte opens with all packets before.

use transload_profiler::{TraceFormat, TraceOptions, TraceWriter};

use super::{chrome, example, packets, written};

/// Keeps each write apart.
#[derive(Default)]
struct Writes(Vec<Vec<u8>>);

impl std::io::Write for Writes {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.push(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn each_write_has_whole_packets() {
    for format in [TraceFormat::Perfetto, TraceFormat::Chrome] {
        let mut writes = Writes::default();
        let mut trace = TraceWriter::new(&mut writes, format, TraceOptions::new().slices(2)).unwrap();
        example(&mut trace).unwrap();
        trace.finish().unwrap();
        let mut file = Vec::new();
        for write in &writes.0 {
            file.extend_from_slice(write);
            match format {
                TraceFormat::Perfetto => assert!(!packets::read_prefix(write).1),
                _ => {
                    assert!(chrome::read(&file).is_ok() || chrome::read(&[&file, &b"]"[..]].concat()).is_ok())
                }
            }
        }
        assert!(writes.0.len() > 12);
    }
}

#[test]
fn perfetto_cut_anywhere_has_the_packets_before() {
    let (bytes, _) = written(TraceFormat::Perfetto, TraceOptions::new(), |trace| example(trace).unwrap());
    let whole = packets::read(&bytes).unwrap().0;
    let mut counts = Vec::new();
    for length in 0..bytes.len() {
        let (packets, cut) = packets::read_prefix(&bytes[..length]);
        assert_eq!(packets, whole[..packets.len()]);
        assert!(cut || counts.last().is_none_or(|&last| last < packets.len()));
        counts.push(packets.len());
    }
    assert_eq!(counts.last(), Some(&(whole.len() - 1)));
}

#[test]
fn chrome_cut_anywhere_has_the_lines_before() {
    let (bytes, _) = written(TraceFormat::Chrome, TraceOptions::new(), |trace| example(trace).unwrap());
    let whole = chrome::read(&bytes).unwrap();
    for length in 2..bytes.len() - 2 {
        // What a reader without the end bracket does: it takes all whole events.
        let text = &bytes[..length];
        let mut events = Vec::new();
        for line in text.split(|&byte| byte == b'\n').skip(1) {
            let line = line.strip_suffix(b",").unwrap_or(line);
            events.extend(serde_json::from_slice::<serde_json::Value>(line).ok());
        }
        assert_eq!(events, whole[..events.len()]);
        assert!(events.len() + 1 >= text.split(|&byte| byte == b'\n').skip(1).count());
    }
}
