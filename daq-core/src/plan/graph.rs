//! The plan as a diagram.

use super::{Plan, PlannedMethod};
use crate::gpu::Dispatch;
use crate::units::ByteSize;
use std::fmt::Write;

/// The language of a diagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphFormat {
    /// Mermaid flowchart.
    Mermaid,
    /// Graphviz.
    Dot,
}

/// The kind of a node, which determines its shape.
#[derive(Clone, Copy)]
enum Shape {
    Source,
    Ring,
    Kernel,
    Sink,
    Copy,
}

impl Plan {
    /// Returns the pipeline as a diagram.
    pub fn graph(&self, format: GraphFormat) -> String {
        let mut nodes: Vec<(String, String, Shape)> = Vec::new();
        let mut edges: Vec<(String, String)> = Vec::new();
        for source in &self.sources {
            let id = format!("source_{}", source.name);
            nodes.push((
                id.clone(),
                format!("{}\n{}", source.name, source.driver),
                Shape::Source,
            ));
            edges.push((id, ring_id(&source.ring)));
        }
        for ring in &self.rings {
            let slot = ByteSize(ring.slot_bytes as u64);
            let mapping = ring.mapping.map(|backend| format!(", mapped by {backend}"));
            let label = format!(
                "{} @ {}{}\n{} × {slot}",
                ring.name,
                ring.placement,
                mapping.unwrap_or_default(),
                ring.slots
            );
            nodes.push((ring_id(&ring.name), label, Shape::Ring));
        }
        for (i, copy) in self.copies.iter().enumerate() {
            let id = format!("copy_{i}");
            let mut label = match copy.method {
                PlannedMethod::Engine if copy.route.peers().is_some() => {
                    "copy, GPU to GPU".to_owned()
                }
                PlannedMethod::Engine => "copy".to_owned(),
                PlannedMethod::Either => "copy, CPU stores if small".to_owned(),
                PlannedMethod::Stores => "store".to_owned(),
            };
            if let Some(kernel) = &copy.kernel_thread {
                let _ = write!(label, "\nby {kernel}");
            }
            nodes.push((id.clone(), label, Shape::Copy));
            edges.push((ring_id(&copy.from), id.clone()));
            edges.push((id, ring_id(&copy.to)));
        }
        for (i, gather) in self.gathers.iter().enumerate() {
            let id = format!("join_{i}");
            nodes.push((id.clone(), "join".to_owned(), Shape::Copy));
            let from = gather.from.iter();
            edges.extend(from.map(|from| (ring_id(from), id.clone())));
            edges.push((id, ring_id(&gather.to)));
        }
        for kernel in &self.kernels {
            let id = format!("kernel_{}", kernel.name);
            let suffix = match kernel.dispatch {
                Some(Dispatch::Persistent) => ", persistent",
                Some(Dispatch::Launch) | None => "",
            };
            nodes.push((
                id.clone(),
                format!("{}\n{}{suffix}", kernel.name, kernel.driver),
                Shape::Kernel,
            ));
            edges.push((ring_id(&kernel.input), id.clone()));
            edges.push((id, ring_id(&kernel.output)));
        }
        for sink in &self.sinks {
            let id = format!("sink_{}", sink.name);
            nodes.push((
                id.clone(),
                format!("{}\n{}", sink.name, sink.driver),
                Shape::Sink,
            ));
            edges.push((ring_id(&sink.input), id));
        }
        match format {
            GraphFormat::Mermaid => mermaid(&nodes, &edges),
            GraphFormat::Dot => dot(&nodes, &edges),
        }
    }
}

fn ring_id(name: &str) -> String {
    format!("ring_{name}")
}

/// Mermaid's identifiers allow neither `-` nor `@`.
fn plain(id: &str) -> String {
    id.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_string()
            } else {
                format!("_{:x}_", c as u32)
            }
        })
        .collect()
}

fn mermaid(nodes: &[(String, String, Shape)], edges: &[(String, String)]) -> String {
    let mut text = "flowchart LR\n".to_owned();
    for (id, label, shape) in nodes {
        let (open, close) = match shape {
            Shape::Source => ("([", "])"),
            Shape::Ring => ("[(", ")]"),
            Shape::Kernel => ("[[", "]]"),
            Shape::Sink => ("[/", "/]"),
            Shape::Copy => ("{{", "}}"),
        };
        let _ = writeln!(
            text,
            "    {}{open}\"{}\"{close}",
            plain(id),
            label.replace('\n', "<br/>")
        );
    }
    for (from, to) in edges {
        let _ = writeln!(text, "    {} --> {}", plain(from), plain(to));
    }
    text
}

fn dot(nodes: &[(String, String, Shape)], edges: &[(String, String)]) -> String {
    let mut text = "digraph pipeline {\n    rankdir=LR;\n".to_owned();
    for (id, label, shape) in nodes {
        let shape = match shape {
            Shape::Source => "oval",
            Shape::Ring => "cylinder",
            Shape::Kernel => "component",
            Shape::Sink => "note",
            Shape::Copy => "cds",
        };
        let _ = writeln!(
            text,
            "    \"{id}\" [shape={shape}, label=\"{}\"];",
            label.replace('\n', "\\n")
        );
    }
    for (from, to) in edges {
        let _ = writeln!(text, "    \"{from}\" -> \"{to}\";");
    }
    text + "}\n"
}
