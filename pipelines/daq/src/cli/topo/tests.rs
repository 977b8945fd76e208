//! Tests the rows of configurations on a recorded machine, which has a card and a GPU below one host bridge.

use super::*;
use daq_core::config::{Diagnostics, Document, Problem};
use daq_core::entry::{
    EngineRequirements, FrameFacts, SourceContext, SourceEntry, SourceFacts, SourceSpec,
};
use daq_core::gpu::Writer;
use daq_core::layout::Samples;
use daq_core::plan::{PlanContext, resolve};
use daq_core::reorder::Geometry;
use daq_core::source::{Producers, SourceError};
use schemars::JsonSchema;
use serde::Deserialize;

/// A source that uses a device, with or without a DMA engine.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Declared {
    device: Option<String>,
    #[serde(default)]
    engine: bool,
    #[serde(default)]
    path: P2pPreference,
}

impl SourceSpec for Declared {
    fn facts(&self) -> SourceFacts {
        SourceFacts {
            claims: self.device.iter().cloned().map(Claim::Device).collect(),
            supports_backpressure: true,
            engine: self.engine.then(|| EngineRequirements {
                device: self.device.clone(),
                writer: Writer::Fpga,
                preference: self.path,
                action: "the device writes",
                host_only: None,
                cpu_reads_memory: false,
                can_ring_doorbell: false,
                faults: &[],
                alignment: 1,
                max_slot: usize::MAX,
                min_slots: 1,
                max_slots: usize::MAX,
            }),
            ..SourceFacts::default()
        }
    }

    fn frames(&self, slot_bytes: usize) -> Result<FrameFacts, Problem> {
        let layout = Samples::default().layout(slot_bytes);
        let layout = layout.map_err(|_| Problem::section("odd bytes"))?;
        Ok(FrameFacts::new(Geometry::new(1, slot_bytes), layout))
    }

    fn build(&self, _: &SourceContext) -> Result<Producers, SourceError> {
        Err(SourceError::new("device", "is never built"))
    }
}

const DEVICE: SourceEntry = SourceEntry::of::<Declared>("device", "", "");

fn recorded() -> Topology {
    let path = "../../daq-core/src/topology/tests/recorded";
    Topology::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// Returns the rows for a source with the keys `keys`, whose ring is located in `memory`.
fn rows_of(keys: &str, memory: &str) -> Vec<Row> {
    let text = format!(
        "[source.adc]\ndriver = \"device\"\nring = \"raw\"\n{keys}\n\
         [ring.raw]\nmemory = \"{memory}\"\nslot = \"1 MiB\"\nslots = 8\n\
         [sink.drop]\ndriver = \"null\"\ninput = \"raw\"\n"
    );
    let mut diagnostics = Diagnostics::new();
    let document = Document::from_text("daq.toml", &text, &mut diagnostics);
    let config = Config::read(
        &document,
        &daq_pipelines::registry().with(&DEVICE),
        "test",
        &mut diagnostics,
    );
    let topology = recorded();
    let context = PlanContext::default();
    let plan = resolve(&config, &topology, &context, &mut diagnostics);
    assert!(
        !diagnostics.has_errors(),
        "{}",
        diagnostics.render(document.sources(), false)
    );
    rows(&config, &plan.unwrap(), &topology)
}

#[test]
fn engine_device_is_compared_with_gpu_of_its_ring() {
    let keys = "device = \"0000:17:00.0\"\nengine = true";
    let row = rows_of(keys, "cuda:0").remove(0);
    let device_path = row.device_path.unwrap();
    assert_eq!(
        (
            device_path.name.as_str(),
            device_path.device.as_str(),
            device_path.gpu
        ),
        ("source adc", "0000:17:00.0", 0)
    );
    assert!(device_path.path.direct, "{device_path:?}");
    let preference = format!("{keys}\npath = \"staged\"");
    let row = rows_of(&preference, "cuda:0").remove(0);
    let device_path = row.device_path.unwrap();
    assert!(
        !device_path.path.direct && device_path.path.reason == "requested by the configuration"
    );
}

#[test]
fn claimed_device_is_compared_with_gpu() {
    let row = rows_of("device = \"0000:17:00.0\"", "cuda:0").remove(0);
    assert!(row.device_path.is_some());
    // The source's driver has no DMA engine, so the plan uses another path than the machine would allow.
    assert!(row.planned.starts_with("source adc  "), "{}", row.planned);
}

#[test]
fn config_without_device_or_gpu_shows_only_plan() {
    let keys = "device = \"0000:17:00.0\"\nengine = true";
    for (keys, memory) in [("", "cuda:0"), ("engine = true", "cuda:0"), (keys, "host")] {
        let row = rows_of(keys, memory).remove(0);
        assert!(row.device_path.is_none(), "{keys} {memory}");
        assert!(row.planned.starts_with("source adc  "), "{}", row.planned);
    }
}

#[test]
fn topo_without_config_compares_all_candidates() {
    let device_paths = candidates(&recorded(), ByteSize(64 << 20));
    let texts: Vec<_> = device_paths.iter().map(DevicePath::text).collect();
    assert_eq!(texts.len(), 1);
    assert!(
        texts[0].starts_with("0000:17:00.0 → cuda:0  direct writes: "),
        "{texts:?}"
    );
    let device_paths = candidates(&recorded(), ByteSize(1 << 40));
    assert!(device_paths[0].path.forbidden, "{device_paths:?}");
}
