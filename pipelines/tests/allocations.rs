//! Checks that the built-in kernels allocate no memory after they are built.

use daq_core::frame::FrameMeta;
use daq_core::kernel::{Kernel, KernelContext, KernelSpec, Side, Stream};
use daq_core::layout::{Layout, Order, Samples, Scalar};
use daq_pipelines::kernels::{Beamform, Channelize, Convert, Correlate, PowerSpectrum, Stats};
use daq_testkit::allocations::{ObservedAllocator, count_on_thread, of_thread};
use daq_testkit::ring::RingFixture;

#[global_allocator]
static ALLOCATOR: ObservedAllocator = ObservedAllocator::new(count_on_thread);

/// Runs a hundred bursts through `spec`. Returns the number of allocations and the number of outputs.
fn allocations(spec: &dyn KernelSpec, input: &Layout) -> (u64, usize) {
    let output = spec.layout(input).unwrap();
    let mut kernel: Box<dyn Kernel> = spec.build(&KernelContext::alone(input, Side::Cpu)).unwrap();
    let RingFixture {
        producer: mut source,
        mut reader,
        ..
    } = RingFixture::host("in", 4, input.frame_bytes());
    let RingFixture {
        producer: mut sink,
        reader: mut results,
        ..
    } = RingFixture::host("out", 64, output.frame_bytes());
    let (mut counted, mut made, mut sequence) = (0, 0, 0);
    for burst in 0..100 {
        let frames = burst % 4 + 1;
        let mut slots = source.reserve(frames);
        for _ in 0..frames {
            slots
                .bytes_mut()
                .unwrap()
                .fill(u8::try_from(burst).unwrap());
            // Some frames are missing.
            sequence += if burst % 17 == 5 { 2 } else { 1 };
            slots.finish(FrameMeta::whole(sequence, input.frame_bytes()));
        }
        slots.publish();
        let lease = reader.poll(frames).unwrap();
        let outputs = kernel.outputs(frames);
        let mut out = sink.reserve(outputs);
        assert_eq!(out.remaining(), outputs);
        let before = of_thread();
        let submitted = kernel.run(&lease, &mut out, Stream::Host).unwrap();
        counted += of_thread() - before;
        assert_eq!(
            submitted.consumed + submitted.accumulating + submitted.failed + submitted.filtered,
            frames as u64
        );
        made += out.publish();
        drop(lease);
        drop(results.poll(usize::MAX));
    }
    (counted, made)
}

#[test]
fn allocation_counter_counts_allocations() {
    let before = of_thread();
    drop(std::hint::black_box(vec![1_u8; 100]));
    assert!(of_thread() > before);
}

#[test]
fn kernels_when_running_allocate_nothing() {
    for scalar in [
        Scalar::Int8,
        Scalar::Int16,
        Scalar::Float32,
        Scalar::Float64,
    ] {
        for complex in [false, true] {
            let samples = Samples {
                scalar,
                complex,
                channels: 2,
                ..Samples::default()
            };
            let input = samples.layout(1800 * scalar.bits() / 8).unwrap();
            let spectrum = |size, integrate| PowerSpectrum {
                size: Some(size),
                integrate: Some(integrate),
                ..PowerSpectrum::default()
            };
            let specs: [(&str, Box<dyn KernelSpec>); 8] = [
                ("convert", Box::new(Convert::default())),
                (
                    "convert, reordered",
                    Box::new(Convert {
                        order: Some(Order::Planar),
                        ..Convert::default()
                    }),
                ),
                ("spectrum of a power of two", Box::new(spectrum(64, 5))),
                ("spectrum of a large prime", Box::new(spectrum(227, 1))),
                ("spectrum of an odd size", Box::new(spectrum(225, 9))),
                (
                    "filter bank",
                    Box::new(Channelize {
                        channels: Some(10),
                        ..Channelize::default()
                    }),
                ),
                (
                    "stats",
                    Box::new(Stats {
                        range: Some([-1.0, 1.0]),
                        ..Stats::default()
                    }),
                ),
                (
                    "stats, merged",
                    Box::new(Stats {
                        every: 3,
                        ..Stats::default()
                    }),
                ),
            ];
            let of_antennas: [(&str, Box<dyn KernelSpec>); 2] = [
                (
                    "visibilities",
                    Box::new(Correlate {
                        antennas: Some(2),
                        integrate: Some(900),
                        ..Correlate::default()
                    }),
                ),
                (
                    "beams",
                    Box::new(Beamform {
                        beams: 3,
                        antennas: Some(2),
                        ..Beamform::default()
                    }),
                ),
            ];
            let of_antennas = of_antennas
                .into_iter()
                .filter(|_| complex && scalar != Scalar::Float64);
            for (what, spec) in specs.into_iter().chain(of_antennas) {
                let (allocations, made) = allocations(&*spec, &input);
                assert!(made > 30, "{what}: {made} outputs");
                assert_eq!(allocations, 0, "{what}, {input}");
            }
        }
    }
}
