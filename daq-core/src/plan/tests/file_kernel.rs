//! Tests of the user's own kernels, which are selected by `file` and run only on a GPU.

use super::*;
use crate::assert_contains;
use crate::assert_fields;

/// A kernel whose output layout is its input layout.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FakeFile {
    #[expect(
        dead_code,
        reason = "the test needs only the key that selects the kernel"
    )]
    file: String,
}

impl KernelSpec for FakeFile {
    fn layout(&self, input: &Layout) -> Result<Layout, Problem> {
        Ok(input.clone())
    }

    fn input_facts(&self, _: &Layout) -> InputFacts {
        InputFacts {
            runs_on_cpu: false,
            runs_on_gpu: true,
            ..InputFacts::default()
        }
    }

    fn build(&self, _: &KernelContext) -> Result<Box<dyn Kernel>, KernelError> {
        Err(KernelError::Defect("is never built".to_owned()))
    }
}

const FILE: KernelEntry = KernelEntry::of::<FakeFile>(FILE_KERNEL, "", "");

fn with_files() -> Registry {
    registry().with(&FILE)
}

/// Returns the plan of the pipeline with a file as its kernel, and with `raw` and `small` added to the rings of these
/// names.
fn plan_with(raw: &str, small: &str, topology: &Topology) -> Result<Plan, String> {
    let text = PIPELINE
        .replace("use = \"quarter\"", "file = \"my.cu\"")
        .replace("slot = \"5 KiB\"", &format!("slot = \"5 KiB\"\n{raw}"))
        .replace("[ring.small]", &format!("[ring.small]\n{small}"));
    super::plan_with(&text, &with_files(), topology)
}

fn copies(plan: &Plan) -> Vec<(&str, &str)> {
    plan.copies
        .iter()
        .map(|copy| (copy.from.as_str(), copy.to.as_str()))
        .collect()
}

#[test]
fn file_kernel_replaces_built_in_kernel() {
    let plan = plan_with("", "", &with_gpu()).unwrap();
    assert_eq!(names(&plan), ["raw@host", "raw", "small", "small@host"]);
    let kernel = &plan.kernels[0];
    assert_eq!(
        (kernel.name.as_str(), kernel.driver.as_str(), kernel.side),
        ("quarter", FILE_KERNEL, Side::Cuda(0))
    );
    assert_eq!(
        (kernel.input.as_str(), kernel.output.as_str()),
        ("raw", "small")
    );
}

#[test]
fn file_kernel_input_in_host_memory_is_copied_to_gpu() {
    let plan = plan_with("memory = \"host\"", "", &with_gpu()).unwrap();
    let kernel = &plan.kernels[0];
    assert_eq!(
        (kernel.side, kernel.input.as_str(), kernel.output.as_str()),
        (Side::Cuda(0), "raw@cuda:0", "small")
    );
    assert_eq!(names(&plan), ["raw", "raw@cuda:0", "small", "small@host"]);
    assert_eq!(
        copies(&plan),
        [("raw", "raw@cuda:0"), ("small", "small@host")]
    );
    let inserted = plan.ring("raw@cuda:0").unwrap();
    assert_fields!(inserted =>
        placement: Placement::Cuda(0), packets_per_frame: 4, slot_bytes: 5120
    );
    assert!(
        inserted
            .inserted
            .as_deref()
            .is_some_and(|why| why.contains("quarter")),
        "{inserted:?}"
    );
    assert_eq!(plan.ring("raw").unwrap().placement, Placement::Host);
    assert_eq!(plan.sources[0].ring, "raw");
}

#[test]
fn file_kernel_output_in_host_memory_is_copied_from_gpu() {
    let plan = plan_with("memory = \"cuda:0\"", "memory = \"host\"", &with_gpu()).unwrap();
    assert_eq!(plan.kernels[0].output, "small@cuda:0");
    assert_eq!(
        copies(&plan),
        [("raw@host", "raw"), ("small@cuda:0", "small")]
    );
    assert_eq!(plan.sinks[0].input, "small");
}

#[test]
fn file_kernel_without_gpu_error_names_alternatives() {
    for raw in ["", "memory = \"host\""] {
        let rendered = plan_with(raw, "", &host()).unwrap_err();
        only(
            &rendered,
            &["kernel `quarter` runs on a GPU only: there is none"],
        );
        assert_contains!(rendered =>
            "file = \"my.cu\"",
            "use a kernel that also runs on the CPU: quarter; or, to check the configuration"
        );
    }
    // Without hardware detection, the host is assumed to have a GPU.
    let plan = plan_with("", "", &Topology::unknown()).unwrap();
    assert_eq!(plan.kernels[0].side, Side::Cuda(0));
}

#[test]
fn file_keyword_as_kernel_name_is_rejected() {
    let text = PIPELINE.replace("use = \"quarter\"", "use = \"file\"");
    let rendered = super::plan_with(&text, &with_files(), &host()).unwrap_err();
    assert_contains!(rendered => "unknown use \"file\"", "choose \"quarter\"");
}

#[test]
fn use_and_file_together_are_rejected() {
    let text = PIPELINE.replace("use = \"quarter\"", "use = \"quarter\"\nfile = \"my.cu\"");
    let error = super::plan_with(&text, &with_files(), &with_gpu()).unwrap_err();
    only(
        &error,
        &["`use` and `file` cannot both be set in [kernel.quarter]"],
    );
}
