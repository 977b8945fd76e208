// Shows one view at a time, and requests the status once a second while the page is visible.
import { setText } from "./common.js";
import * as strip from "./strip.js";
import * as scope from "./scope.js";
import * as flow from "./flow.js";
import * as ledger from "./ledger.js";

const views = { strip, scope, flow, ledger };
const state = document.getElementById("state");
let current = null;
let status = null;
let timer = null;

const header = () => {
  setText(document.getElementById("name"), status.name);
  document.title = `${status.name} · ${status.state}`;
  const stalled = status.stalled.length ? `: ${status.stalled.join(", ")}` : "";
  const silent = status.silent.length ? `: ${status.silent.join(", ")}` : "";
  const unclean = status.last_run ? " · the last run ended uncleanly, see status" : "";
  setText(state, `${status.state}${stalled}${silent} · version ${status.version}${unclean}`);
  state.className = stalled || silent ? "bad" : "";
};

const update = async () => {
  clearTimeout(timer);
  if (document.hidden) return;
  try {
    status = await (await fetch("/status", { cache: "no-store" })).json();
    header();
    views[current].update?.(status);
  } catch (error) {
    setText(state, `The server does not respond: ${error.message}`);
    state.className = "bad";
  }
  timer = setTimeout(update, 1000);
};

const show = () => {
  const wanted = location.hash.slice(1).split("?")[0];
  const next = wanted in views ? wanted : current ?? "strip";
  if (next === current) return;
  if (current && !document.hidden) views[current].stop?.();
  current = next;
  for (const name of Object.keys(views)) {
    document.getElementById(`view-${name}`).hidden = name !== next;
    const link = document.querySelector(`nav a[href="#${name}"]`);
    if (name === next) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (document.hidden) return;
  views[next].start?.();
  if (status) views[next].update?.(status);
};

// A page in the background requests nothing and costs the server nothing.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    clearTimeout(timer);
    views[current].stop?.();
  } else {
    views[current].start?.();
    update();
  }
});
addEventListener("hashchange", () => {
  show();
  views[current].follow?.();
});
show();
update();
