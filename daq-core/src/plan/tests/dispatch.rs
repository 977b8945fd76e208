//! Tests of how bursts are dispatched to kernels on a GPU.

use super::*;
use crate::gpu::Dispatch;

/// Returns the plan of the pipeline with `lines` added to its kernel, and the rendered diagnostics.
fn plan_with_lines(lines: &str, topology: &Topology) -> (Option<Plan>, String) {
    let text = PIPELINE.replace("use = \"quarter\"", &format!("use = \"quarter\"\n{lines}"));
    plan_and_diagnostics(&text, topology)
}

#[test]
fn gpu_kernel_dispatch_is_launched_by_default() {
    for lines in ["gpu = true", "gpu = true\ndispatch = \"launch\""] {
        let (plan, rendered) = plan_with_lines(lines, &with_gpu());
        let plan = plan.unwrap();
        assert_eq!(plan.kernels[0].dispatch, Some(Dispatch::Launch), "{lines}");
        let shown = "    dispatch launch: one launch per burst\n";
        assert!(plan.to_string().contains(shown), "{plan}");
        let json = serde_json::to_value(&plan).unwrap();
        assert_eq!(json["kernels"][0]["dispatch"], "launch");
        assert_eq!(rendered, "");
    }
}

#[test]
fn built_in_kernel_with_persistent_dispatch_is_rejected_at_key() {
    for topology in [host(), with_gpu(), Topology::unknown()] {
        let (plan, rendered) = plan_with_lines("gpu = true\ndispatch = \"persistent\"", &topology);
        assert!(plan.is_none());
        let error = "kernel `quarter` cannot be persistent: built-in kernels support only dispatch = \"launch\"";
        only(&rendered, &[error]);
        assert!(
            rendered.contains("daq.toml:14:12") && rendered.contains("help: remove `dispatch`, or"),
            "{rendered}"
        );
    }
    let (_, rendered) = plan_with_lines("gpu = true\ndispatch = \"lunch\"", &with_gpu());
    only(&rendered, &["`dispatch` cannot be \"lunch\""]);
    assert!(rendered.contains("did you mean \"launch\"?"), "{rendered}");
}

#[test]
fn cpu_kernel_with_dispatch_key_is_rejected() {
    let warning =
        "warning: `dispatch` has no effect on kernel `quarter`, because it runs on the CPU";
    let cases = [
        ("gpu = true", host(), true),
        ("gpu = false", with_gpu(), true),
        ("gpu = false", Topology::unknown(), true),
        // With hardware detection, the kernel may run on a GPU.
        ("gpu = true", Topology::unknown(), false),
    ];
    for (lines, topology, is_reported) in cases {
        let (plan, rendered) =
            plan_with_lines(&format!("{lines}\ndispatch = \"launch\""), &topology);
        let plan = plan.unwrap();
        assert_eq!(plan.kernels[0].dispatch, None);
        assert!(!plan.to_string().contains("dispatch"), "{plan}");
        assert_eq!(
            rendered.contains(warning),
            is_reported,
            "{lines}: {rendered}"
        );
    }
}
