//! Tests the finding about cores that handle the card's interrupts.

use super::*;

#[test]
fn interrupts_on_remote_numa_node_are_reported() {
    let server = Server::new();
    server.is_ok("interrupts", "2 on cores of node 0");
    server.write("/proc/irq/81/effective_affinity_list", "2-3\n");
    let found = server.found("interrupts");
    warns(
        &found,
        "1 of 2 on cores of other nodes than 0",
        "echo 0-1 | sudo tee",
    );
    assert!(found.fix.unwrap().contains("0000:3e:00.0/msi_irqs"));
    // An interrupt that may fire on both nodes is not on the wrong node.
    server.write("/proc/irq/81/effective_affinity_list", "1-2\n");
    assert_eq!(server.found("interrupts").status, Status::Ok);
    // Older Linux versions show only the requested affinity.
    server.remove("/proc/irq/81/effective_affinity_list");
    server.write("/proc/irq/81/smp_affinity_list", "3\n");
    assert_eq!(server.found("interrupts").status, Status::Warning);
}

#[test]
fn interrupt_that_never_fired_is_ignored() {
    let server = Server::new();
    server.write("/proc/irq/80/effective_affinity_list", "2\n");
    server.write("/proc/irq/81/effective_affinity_list", "2\n");
    server.write("/proc/interrupts", "   CPU0 CPU1\n 80: 0 0 x\n 81: 0 0 x\n");
    let found = server.found("interrupts");
    assert_eq!(
        found.summary(),
        (Status::Unknown, "no interrupt has occurred yet")
    );
    let fired = super::super::interrupts::fired(" CPU0 CPU1\n 7: 2 3 40\nNMI: 1 1\nodd\n");
    assert_eq!(fired.into_iter().collect::<Vec<_>>(), [(7, 5)]);
}

#[test]
fn single_numa_node_has_no_finding() {
    let server = Server::new();
    server.remove("/sys/devices/system/node/node1");
    assert!(server.lacks("interrupts"));
}

#[test]
fn irqbalance_daemon_is_reported() {
    let server = Server::new();
    server.is_ok("irqbalance", "not running");
    server.write("/proc/815/comm", "irqbalance\n");
    let found = server.found("irqbalance");
    is_ok(&found, "running");
    assert!(found.fix.unwrap().contains("disable --now irqbalance"));
    server.remove("/proc/815");
    server.remove("/proc/4711");
    assert!(server.lacks("irqbalance"), "processes are not shown");
}
