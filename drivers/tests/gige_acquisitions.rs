//! Tests that each image of a GigE Vision camera has the time of its own leader, and each packet one count, whatever the numbers
//! of its blocks. Cameras number the blocks of each acquisition from 1.

use super::fuzz_gige::{camera, packet};
use daq_core::ledger::SourceReport;
use daq_drivers::gige::placer::Placer;
use daq_testkit::source::SourceFixture;
use std::time::{Duration, Instant};

/// Number of acquisitions, and of payload packets of an image.
const ACQUISITIONS: u8 = 8;
const PACKETS: u64 = 6;

/// A camera and its receiver.
struct Stream {
    fixture: SourceFixture,
    placer: Placer,
    now: Instant,
    /// The first byte of the payload and the time of each complete image.
    images: Vec<(u8, u64)>,
}

impl Stream {
    fn new(is_extended: bool) -> Self {
        let (fixture, placer, _) = camera(is_extended);
        Self {
            fixture,
            placer,
            now: Instant::now(),
            images: Vec::new(),
        }
    }

    fn send(&mut self, packet: &[u8]) {
        let window = &mut self.fixture.windows[0];
        self.placer.place(window, [packet], self.now);
    }

    /// Lets a time pass in which no packet arrives, and reads the frames.
    fn pause(&mut self, time: Duration) {
        self.now += time;
        self.fixture.windows[0].tick(self.now);
        while let Some(lease) = self.fixture.reader.poll(1) {
            let frame = lease.frame(0);
            if !frame.meta().is_incomplete() {
                let fill = frame.bytes().unwrap()[0];
                self.images.push((fill, frame.meta().timestamp.ns));
            }
        }
    }

    /// Sends an image, without the payload packets `lost`.
    fn image(&mut self, block: u64, fill: u8, lost: &[u8], is_extended: bool) {
        self.send(&packet((1, 0, 0, fill), block, is_extended));
        for id in (0..6).filter(|id| !lost.contains(id)) {
            self.send(&packet((3, 0, id, fill), block, is_extended));
        }
        self.send(&packet((2, 0, 0, 4), block, is_extended));
    }

    fn finish(mut self) -> (SourceReport, Vec<(u8, u64)>) {
        self.placer.finish(&mut self.fixture.windows[0]);
        self.fixture.windows[0].finish();
        self.pause(Duration::ZERO);
        (self.fixture.report(), self.images)
    }
}

/// Returns a byte that fills the payload and the time of an image, and is no fault.
fn fill(acquisition: u8) -> u8 {
    acquisition << 4 | 4
}

/// Returns the time of an image whose leader is filled with `fill`.
fn ns(fill: u8) -> u64 {
    u64::from_be_bytes([fill; 8])
}

#[test]
fn images_of_short_acquisitions_have_their_own_times() {
    for is_extended in [false, true] {
        for images in [1, 2, 3, 6, 7, 10] {
            let mut stream = Stream::new(is_extended);
            for acquisition in 0..ACQUISITIONS {
                for block in 1..=images {
                    stream.image(block, fill(acquisition), &[], is_extended);
                    stream.placer.requests().clear();
                    stream.pause(Duration::from_millis(10));
                }
                stream.pause(Duration::from_millis(300));
            }
            let (report, received) = stream.finish();
            let case = format!("{images} images, {is_extended}: {report:?}");
            for (fill, time) in &received {
                assert_eq!(*time, ns(*fill), "{case}");
            }
            let sent = u64::from(ACQUISITIONS) * images;
            assert_eq!(received.len() as u64, sent, "{case}");
            assert_eq!(report.epochs, u64::from(ACQUISITIONS), "{case}");
            assert_eq!(
                (report.delivered, report.duplicates),
                (sent * PACKETS, 0),
                "{case}"
            );
        }
    }
}

#[test]
fn lost_packets_of_a_new_acquisition_are_requested() {
    for images in [3, 8] {
        let mut stream = Stream::new(false);
        for acquisition in 0..ACQUISITIONS {
            for block in 1..=images {
                let lost = [3];
                let is_first = acquisition == 0 || block < images;
                let lost = if is_first { &[][..] } else { &lost };
                stream.image(block, fill(acquisition), lost, false);
                stream.now += Duration::from_millis(10);
                stream.placer.sweep(stream.now);
                let requests: Vec<_> = stream.placer.requests().drain(..).collect();
                let ids = requests
                    .iter()
                    .map(|request| (request.block, request.first));
                let mut ids: Vec<_> = ids.collect();
                // A request is repeated after some time.
                ids.dedup();
                if !lost.is_empty() {
                    assert_eq!(
                        ids,
                        [(block, 4)],
                        "{images} images, acquisition {acquisition}"
                    );
                    stream.send(&packet((3, 0, 3, fill(acquisition)), block, false));
                }
                stream.pause(Duration::from_millis(10));
            }
            stream.pause(Duration::from_millis(300));
        }
        let (report, received) = stream.finish();
        assert_eq!(
            received.len() as u64,
            u64::from(ACQUISITIONS) * images,
            "{report:?}"
        );
    }
}

#[test]
fn packets_without_a_slot_are_counted_once() {
    let mut stream = Stream::new(false);
    for block in 1..=60 {
        // Nothing reads the ring.
        stream.image(block, fill(1), &[], false);
        stream.placer.requests().clear();
        stream.now += Duration::from_millis(10);
    }
    let (report, _) = stream.finish();
    let lost: u64 = report.lost.values().sum();
    assert_eq!(
        (report.expected, report.delivered + lost),
        (360, 360),
        "{report:?}"
    );
    assert_eq!(
        report.lost.keys().collect::<Vec<_>>(),
        [&"ring_full"],
        "{report:?}"
    );
}

#[test]
fn images_with_another_payload_type_are_refused() {
    let mut stream = Stream::new(false);
    let mut leader = packet((1, 0, 0, fill(1)), 1, false);
    // Chunk data follow the image.
    leader[10] = 0x40;
    stream.send(&leader);
    for id in 0..6 {
        stream.send(&packet((3, 0, id, fill(1)), 1, false));
    }
    let mismatch = stream.placer.mismatch().unwrap();
    assert!(mismatch.contains("ChunkModeActive"), "{mismatch}");
    // Without chunk data, the camera begins with the same number.
    stream.image(1, fill(2), &[], false);
    stream.image(2, fill(2), &[], false);
    let (report, images) = stream.finish();
    assert_eq!(
        (report.rejected, report.delivered),
        (7, 2 * PACKETS),
        "{report:?}"
    );
    assert_eq!(images, [(fill(2), ns(fill(2))); 2]);
}
