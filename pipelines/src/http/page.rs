//! The files of the page. They are part of the program, so that the page loads nothing from other hosts.

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use daq_core::ledger::Cause;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// The page itself.
const INDEX: &str = include_str!("page/index.html");
/// All other files: name, content type and text.
const FILES: [(&str, &str, &str); 15] = [
    ("style.css", STYLE, include_str!("page/style.css")),
    ("icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("main.js", SCRIPT, include_str!("page/main.js")),
    ("common.js", SCRIPT, include_str!("page/common.js")),
    ("strip.js", SCRIPT, include_str!("page/strip.js")),
    ("scope.js", SCRIPT, include_str!("page/scope.js")),
    ("stream.js", SCRIPT, include_str!("page/stream.js")),
    ("panels.js", SCRIPT, include_str!("page/panels.js")),
    ("palette.js", SCRIPT, include_str!("page/palette.js")),
    ("picture.js", SCRIPT, include_str!("page/picture.js")),
    ("flow.js", SCRIPT, include_str!("page/flow.js")),
    ("ledger.js", SCRIPT, include_str!("page/ledger.js")),
    (
        "uPlot.iife.min.js",
        SCRIPT,
        include_str!("page/uplot/uPlot.iife.min.js"),
    ),
    (
        "uPlot.min.css",
        STYLE,
        include_str!("page/uplot/uPlot.min.css"),
    ),
    ("uPlot.LICENSE", TEXT, include_str!("page/uplot/LICENSE")),
];

/// Returns the page.
pub(super) async fn index() -> Response {
    ([(header::CONTENT_TYPE, HTML)], INDEX).into_response()
}

/// Returns a file of the page.
pub(super) async fn file(Path(name): Path<String>) -> Response {
    if name == "remedies.json" {
        return Json(remedies()).into_response();
    }
    match FILES.iter().find(|(known, ..)| *known == name) {
        Some((_, kind, text)) => ([(header::CONTENT_TYPE, *kind)], *text).into_response(),
        None => (
            StatusCode::NOT_FOUND,
            "not found; the page / names its files\n",
        )
            .into_response(),
    }
}

/// Returns the remedies of all metrics and of all causes of loss, so that the page and the reference agree.
fn remedies() -> Value {
    let metrics: BTreeMap<_, _> = super::metrics()
        .iter()
        .map(|metric| (metric.name, metric.remedy))
        .collect();
    let causes: BTreeMap<_, _> = Cause::ALL
        .iter()
        .map(|cause| (cause.name(), cause.remedy()))
        .collect();
    json!({ "metrics": metrics, "causes": causes })
}
