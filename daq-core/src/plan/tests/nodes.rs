//! Tests of NUMA nodes of rings from or to which frames are copied.

use super::*;

fn with_gpu_on(node: u32) -> Topology {
    Topology {
        gpus: vec![Gpu {
            node: Some(node),
            ..Gpu::new(0, "Test GPU")
        }],
        ..host()
    }
}

/// Returns the rings of the pipeline with `changes`, and their NUMA nodes.
fn nodes(changes: &[(&str, &str)], topology: &Topology) -> Vec<(String, Option<u32>)> {
    let text = changes
        .iter()
        .fold(PIPELINE.to_owned(), |text, (from, to)| {
            text.replace(from, to)
        });
    let plan = plan_of(&text, topology).unwrap();
    let rings = plan.rings.into_iter();
    rings.map(|ring| (ring.name, ring.node)).collect()
}

fn own(rings: &[(&str, Option<u32>)]) -> Vec<(String, Option<u32>)> {
    let rings = rings.iter();
    rings
        .map(|(name, node)| ((*name).to_owned(), *node))
        .collect()
}

const ON_GPU: (&str, &str) = ("use = \"quarter\"", "use = \"quarter\"\ngpu = true");

#[test]
fn inserted_host_ring_uses_numa_node_of_gpu() {
    let rings = [
        ("raw@host", Some(3)),
        ("raw", None),
        ("small", None),
        ("small@host", Some(3)),
    ];
    assert_eq!(nodes(&[ON_GPU], &with_gpu_on(3)), own(&rings));
    // The host ring is filled by a kernel on the CPU and copied to a GPU.
    let changes = [("[ring.small]", "[ring.small]\nmemory = \"cuda:0\"")];
    let rings = [("raw", None), ("small@host", Some(3)), ("small", None)];
    assert_eq!(nodes(&changes, &with_gpu_on(3)), own(&rings));
    // If the GPU's node is unknown, no node is assumed.
    let found = nodes(&[ON_GPU], &with_gpu());
    assert!(found.iter().all(|(_, node)| node.is_none()), "{found:?}");
}

#[test]
fn declared_numa_node_is_kept() {
    let changes = [
        ON_GPU,
        ("slots = 4", "slots = 4\nnode = 1"),
        ("[ring.small]", "[ring.small]\nnode = 0"),
    ];
    let rings = [
        ("raw@host", Some(1)),
        ("raw", Some(1)),
        ("small", Some(0)),
        ("small@host", Some(0)),
    ];
    assert_eq!(nodes(&changes, &with_gpu_on(3)), own(&rings));
}

#[test]
fn host_ring_uses_declared_numa_node() {
    let rings = [("raw", None), ("small", None)];
    assert_eq!(nodes(&[], &with_gpu_on(3)), own(&rings));
    let changes = [("slots = 4", "slots = 4\nnode = 1")];
    let rings = [("raw", Some(1)), ("small", None)];
    assert_eq!(nodes(&changes, &with_gpu_on(3)), own(&rings));
}
