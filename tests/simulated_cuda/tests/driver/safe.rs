//! Tests that the safe interface of `cudarc` needs only functions that the simulated driver has.

use crate::passes;
use crate::sys::launch;
use cudarc::driver::CudaContext;
use cudarc::nvrtc::Ptx;

#[test]
fn safe_bindings_run_on_simulated_driver() {
    let report = passes!("", || {
        let context = CudaContext::new(0).unwrap();
        assert_eq!(context.compute_capability().unwrap(), (9, 0));
        let stream = context.new_stream().unwrap();
        let from: Vec<u32> = (0..1000).collect();
        let source = stream.clone_htod(&from).unwrap();
        let mut target = stream.alloc_zeros::<u32>(1000).unwrap();
        assert_eq!(stream.clone_dtoh(&target).unwrap(), [0; 1000]);
        let text = ".version 8.0\n.target sm_80\n.visible .entry daq_simulated_copy() { ret; }";
        let module = context.load_module(Ptx::from_src(text)).unwrap();
        let copy = module.load_function("daq_simulated_copy").unwrap();
        launch(&stream, &copy, &mut target, &source, 4000).unwrap();
        let mark = stream.record_event(None).unwrap();
        mark.synchronize().unwrap();
        assert_eq!(stream.clone_dtoh(&target).unwrap(), from);
        stream.synchronize().unwrap();
    });
    if let Some(report) = report {
        let leaks = report["leaks"].as_object().unwrap();
        assert!(leaks.values().all(|count| count == 0), "{leaks:#?}");
    }
}
