//! Graphs: operations that a stream has captured and that can be submitted repeatedly as one operation.

use super::context::Device;
use super::stream::{Operation, Stream};
use super::table::Table;
use super::{Out, driver, require};
use crate::code::INVALID_HANDLE;
use std::ffi::c_ulonglong;
use std::sync::Arc;

/// A graph, executable or not.
#[derive(Debug)]
pub struct Graph {
    /// The device of its context.
    pub device: &'static Device,
    operations: Arc<[Operation]>,
}

/// All graphs that are not executable.
pub static GRAPHS: Table<Graph> = Table::new();
/// All executable graphs.
pub static EXECUTABLES: Table<Graph> = Table::new();

/// Returns true for operations that do work. Events recorded during a capture only order the operations, which this
/// library always executes in order.
fn is_work(operation: &Operation) -> bool {
    !matches!(operation, Operation::Record(..))
}

driver! {
    in_context(device) fn cuStreamEndCapture(stream: usize, graph: Out<usize>) {
        let ended = Stream::find(device, stream)?.end_capture();
        if ended.is_err() {
            graph.offer(0);
        }
        let operations = ended?
            .iter()
            .filter(|operation| is_work(operation))
            .cloned()
            .collect();
        require(!graph.is_null())?;
        graph.set(GRAPHS.insert(Arc::new(Graph { device, operations })))
    }

    in_context(device) fn cuGraphInstantiateWithFlags(executable: Out<usize>, graph: usize, flags: c_ulonglong) {
        require(!executable.is_null() && flags & !0xf == 0)?;
        let operations = Arc::clone(&GRAPHS.get(graph)?.operations);
        executable.set(EXECUTABLES.insert(Arc::new(Graph { device, operations })))
    }

    in_context(device) fn cuGraphLaunch(executable: usize, stream: usize) {
        let graph = EXECUTABLES.get(executable)?;
        if !std::ptr::eq(graph.device, device) {
            return Err(INVALID_HANDLE);
        }
        let operations = Arc::clone(&graph.operations);
        Stream::find(device, stream)?
            .submit(Operation::Graph(operations))
            .map(|_| ())
    }

    giving_back(_) fn cuGraphExecDestroy(executable: usize) {
        EXECUTABLES.remove(executable).map(|_| ())
    }

    giving_back(_) fn cuGraphDestroy(graph: usize) {
        GRAPHS.remove(graph).map(|_| ())
    }
}
