//! The handlers of all routes.

use super::scope::{Hub, ScopeError, Stream, View, forward, index_of};
use super::{Exposition, HttpError, HttpState, host, page};
use crate::history::Span;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{AppendHeaders, IntoResponse, Json, Response};
use axum::routing::get;
use daq_core::ledger::{Loss, Report};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Content security policy: the page may run only scripts and use only styles that are files of this server, and may send
/// requests only to this server. Other pages cannot embed it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const BINARY: [(header::HeaderName, &str); 1] =
    [(header::CONTENT_TYPE, "application/octet-stream")];

struct Shared {
    state: HttpState,
    exposition: Exposition,
    scopes: Arc<Hub>,
}

/// The response of `/status`.
#[derive(Serialize)]
struct Status<'a> {
    version: &'static str,
    name: &'a str,
    state: &'static str,
    ready: bool,
    stalled: &'a [String],
    silent: &'a [String],
    seconds: f64,
    /// The loss state of each source, as text.
    loss: BTreeMap<&'a str, Loss>,
    /// Number of log messages that were not written to stderr.
    log_dropped: u64,
    report: &'a Report,
    plan: &'a Value,
    last_run: Option<&'a Value>,
}

/// Returns a router with all routes. Their handlers use `state`.
pub(super) fn router(state: HttpState, scopes: Arc<Hub>) -> Result<Router, HttpError> {
    let exposition = Exposition::new(state.report.clone())?;
    let shared = Arc::new(Shared {
        state,
        exposition,
        scopes,
    });
    Ok(Router::new()
        .route("/", get(page::index))
        .route("/page/{name}", get(page::file))
        .route("/metrics", get(metrics))
        .route("/-/healthy", get(healthy))
        .route("/-/ready", get(ready))
        .route("/status", get(status))
        .route("/rings/{name}/scope", get(scope))
        .route("/rings/{name}/frame.npy", get(frame))
        .route("/history", get(history))
        .fallback(async || {
            (
                StatusCode::NOT_FOUND,
                "not found; the page / links to all routes\n",
            )
        })
        .layer(middleware::from_fn_with_state(shared.clone(), guard))
        .with_state(shared))
}

/// Rejects requests for host names of other sites. Adds headers that prevent browsers from caching the response,
/// guessing its type or embedding it.
async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let refused = host::refused(request.uri(), request.headers(), &shared.state.hosts);
    let mut response = match refused {
        Some(name) => (
            StatusCode::MISDIRECTED_REQUEST,
            format!(
                "{name:?} is not a host name of this server; use its IP address, or add the name to `hosts` in [http]\n"
            ),
        )
            .into_response(),
        None => next.run(request).await,
    };
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
    ] {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    match shared.exposition.text() {
        Ok(text) => (
            [(
                header::CONTENT_TYPE,
                "text/plain; version=0.0.4; charset=utf-8",
            )],
            text,
        )
            .into_response(),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("metrics: {error}\n"),
        )
            .into_response(),
    }
}

async fn healthy(State(shared): State<Arc<Shared>>) -> Response {
    let health = (shared.state.health)();
    if health.advances() {
        "healthy\n".into_response()
    } else {
        let text = format!("threads without progress: {}\n", health.stalled.join(", "));
        (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
    }
}

async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    let health = (shared.state.health)();
    if health.is_ready() {
        "ready\n".into_response()
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            match [&health.stalled[..], &health.silent[..]]
                .concat()
                .join("; ")
            {
                why if why.is_empty() => format!("not ready: {}\n", health.state()),
                why => format!("not ready: {}: {why}\n", health.state()),
            },
        )
            .into_response()
    }
}

async fn history(State(shared): State<Arc<Shared>>, uri: Uri) -> Response {
    let (mut span, mut since) = (Span::default(), 0);
    for pair in uri.query().unwrap_or_default().split('&') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let parsed = match key {
            "" => Ok(()),
            "span" => value.parse().map(|value| span = value),
            "since" => value
                .parse()
                .map(|value| since = value)
                .map_err(|_| format!("since `{value}` is not a number of seconds since 1970")),
            _ => Err(format!("`{key}` is neither span nor since")),
        };
        if let Err(why) = parsed {
            let text = format!("{why}; write /history?span=10m or /history?span=24h\n");
            return (StatusCode::BAD_REQUEST, text).into_response();
        }
    }
    Json(shared.state.history.answer(span, since)).into_response()
}

async fn status(State(shared): State<Arc<Shared>>) -> Response {
    let (report, health) = ((shared.state.report)(), (shared.state.health)());
    Json(Status {
        version: env!("CARGO_PKG_VERSION"),
        name: &shared.state.name,
        state: health.state(),
        ready: health.is_ready(),
        stalled: &health.stalled,
        silent: &health.silent,
        seconds: report.seconds,
        loss: report
            .sources
            .iter()
            .map(|(name, source)| (name.as_str(), source.loss()))
            .collect(),
        log_dropped: crate::console::dropped(),
        report: &report,
        plan: &shared.state.plan,
        last_run: shared.state.last_run.as_ref(),
    })
    .into_response()
}

/// Size of the pieces in which a file is sent.
const PIECE: usize = 1 << 20;

/// Streams reduced frames of a ring until the browser disconnects.
async fn scope(
    State(shared): State<Arc<Shared>>,
    Path(ring): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, ScopeError> {
    let view = View::parse(&query.unwrap_or_default())?;
    let messages = shared.scopes.subscribe(&ring, view)?;
    let (queue, body) = mpsc::channel(1);
    tokio::spawn(forward(messages, queue));
    Ok((BINARY, Body::new(Stream(body))).into_response())
}

/// Sends a frame of a ring as a file: the newest, or one that browsers show.
async fn frame(
    State(shared): State<Arc<Shared>>,
    Path(ring): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, ScopeError> {
    let index = index_of(&query.unwrap_or_default())?;
    let download = shared.scopes.download(&ring, index).await?;
    let file = download.file;
    let length = (header::CONTENT_LENGTH, file.len().to_string());
    let (queue, body) = mpsc::channel::<Bytes>(1);
    tokio::spawn(async move {
        // The permit is returned when the file is sent, or when the client has disconnected.
        let _permit = download.permit;
        for start in (0..file.len()).step_by(PIECE) {
            let piece = file.slice(start..file.len().min(start + PIECE));
            if queue.send(piece).await.is_err() {
                return;
            }
        }
    });
    Ok((
        BINARY,
        [length],
        AppendHeaders(download.headers),
        Body::new(Stream(body)),
    )
        .into_response())
}

impl IntoResponse for ScopeError {
    fn into_response(self) -> Response {
        let code = match self {
            Self::Query(_) => StatusCode::BAD_REQUEST,
            Self::UnknownRing { .. } | Self::Gone { .. } => StatusCode::NOT_FOUND,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        (code, format!("{self}\n")).into_response()
    }
}
