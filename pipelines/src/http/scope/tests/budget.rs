//! The memory that browsers use at most.

use super::*;

/// Runs a reducer for each of several views of one frame, and returns the size of the buffers and messages.
fn used(ring: &ScopedRing, fixture: &mut RingFixture, bytes: usize, queries: &[&str]) -> usize {
    fixture.write(&[(meta(0), vec![0; bytes])]);
    let mut tap = ring.ring.tap().unwrap();
    let frame = tap.newest().unwrap().unwrap();
    let samples = Samples::new(&ring.layout, frame.meta(), frame.present(), frame.bytes());
    let used = queries.iter().map(|query| {
        let mut reducer = Reducer::new(View::parse(query).unwrap());
        let message = reducer.reduce(ring, frame.index(), &samples, &|| true);
        message.len() + reducer.buffers()
    });
    used.max().unwrap()
}

#[test]
fn memory_of_a_view_does_not_depend_on_the_size_of_long_frames() {
    let queries = ["", "size=65536&width=4096", "row=1000"];
    let sizes = [4 << 20, 16 << 20].map(|bytes| {
        let (mut fixture, ring) = scoped(&int16(2), bytes, 0);
        let used = used(&ring, &mut fixture, bytes, &queries);
        let budget = memory::view_bytes(&ring.layout);
        assert!(used <= budget, "{used} of {budget} bytes");
        used
    });
    // Only the digits of numbers in the header differ.
    assert!(sizes[0].abs_diff(sizes[1]) < 1024, "{sizes:?}");
}
