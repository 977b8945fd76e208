//! Tests of NUMA nodes and CPU cores. Tests of realistic PCIe trees are in `shapes`.

mod shapes;

use super::*;

#[test]
fn lists_of_linux_are_parsed() {
    assert_eq!(parse_list("0-2,5\n"), [0, 1, 2, 5]);
    assert!(parse_list("").is_empty());
}

#[test]
fn recorded_machine_has_numa_nodes() {
    let dir = tempfile::tempdir().unwrap();
    for (node, list) in [("node1", "4-7\n"), ("node0", "0-3\n")] {
        let path = dir.path().join("devices/system/node").join(node);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("cpulist"), list).unwrap();
    }
    let topology = Topology::read(dir.path());
    assert_eq!(
        topology
            .nodes
            .iter()
            .map(|node| node.id)
            .collect::<Vec<_>>(),
        [0, 1]
    );
    assert_eq!(topology.node_of(5), Some(1));
    assert_eq!(topology.node_of(8), None);
}

#[test]
fn core_is_remote_only_from_known_other_numa_node() {
    let node = |id, cores: &[usize]| Node {
        id,
        cores: cores.to_vec(),
    };
    let topology = Topology {
        nodes: vec![node(0, &[0, 1]), node(1, &[2, 3])],
        ..Topology::unknown()
    };
    let far = topology.remote_node(1, Some(1)).unwrap();
    assert_eq!(
        far.to_string(),
        "the core is on NUMA node 0 and the GPU is on node 1"
    );
    assert_eq!(topology.remote_node(2, Some(1)), None);
    assert_eq!(
        topology.remote_node(1, None),
        None,
        "the firmware does not report the node"
    );
    assert_eq!(
        topology.remote_node(9, Some(1)),
        None,
        "the node of the core is unknown"
    );
    assert_eq!(Topology::unknown().remote_node(1, Some(1)), None);
}
