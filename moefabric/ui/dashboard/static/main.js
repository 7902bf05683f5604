// The page: connects the stream of changes with the views, and controls with commands.

import { addRates, drawCharts, showHistory, showIterations, tick } from "./charts.js";
import { dropToken, follow, hasToken, post, setToken, takeTokenFromLink } from "./connection.js";
import { byId, html, setText } from "./elements.js";
import * as lists from "./lists.js";
import { drawNics, share, showFailedNics, showLoad } from "./nics.js";
import { drawDemand, drawTimeline } from "./pictures.js";
import { loadResults, renderChosen } from "./results.js";
import { drawTopology, showCircuits, showNicStates, showTopologyLoad } from "./topology.js";

const state = {};
let watched = null, stop = new AbortController(), eventsAreNew = true;

// --- which fabric ------------------------------------------------------------------------------

function connect(fabric) {
  stop.abort();
  stop = new AbortController();
  watched = fabric;
  eventsAreNew = true;
  for (const topic of Object.keys(state)) delete state[topic];
  lists.showEvents([], true);
  follow(fabric, stop.signal, change, showConnection);
}

function showConnection(kind) {
  byId("connection").className = kind;
  setText("connection", { up: watched ? "live" : "waiting for a fabric", lost: "connection lost; trying again" }[kind] ?? "");
  if (kind === "up") eventsAreNew = true;
  if (kind === "refused") {
    dropToken();
    askForToken("The token is wrong.");
  }
}

/** Follows the chosen fabric; if it ends, the one that runs. */
function showFabrics(names) {
  const select = byId("fabric");
  select.replaceChildren(...names.map((name) => html("option", { value: name }, name)));
  select.value = watched;
  select.closest("label").hidden = !names.length;
  byId("empty").hidden = Boolean(names.length) || !byId("results").hidden;
  const next = names.includes(watched) ? watched : (names.at(-1) ?? "");
  if (next !== watched) connect(next);
  showView();
}

// --- what changes ------------------------------------------------------------------------------

const servers = () => state.fabric?.regions.flatMap((region) => region.servers.map((server) => server.name)) ?? [];
const chosenRegion = () => byId("region").value || state.fabric?.regions[0].name;
const lightOf = (region) => state.circuits?.[region] ?? { lit: [], dark: [] };
const failedNics = () => new Set((state.failures ?? []).filter((f) => f.kind === "nic").flatMap((f) => f.what));
const carrierless = () => new Set((state.hardware?.servers ?? []).flatMap((s) => s.nics.filter((nic) => !nic.carrier).map((nic) => nic.name)));

const views = {
  fabrics: showFabrics,
  fabric(fabric) {
    document.title = `${fabric.name} · moefabric`;
    setText("description", `${servers().length} servers, NICs of ${fabric.nic_rate}; ${fabric.description}`);
    const optical = fabric.regions.filter((region) => region.ocs);
    byId("region").replaceChildren(...optical.map((region) => html("option", {}, region.name)));
    for (const id of ["light-form", "lit"]) byId(id).hidden = !optical.length;
    byId("no-light").hidden = Boolean(optical.length);
    showView();
    drawNics(fabric, toggleNic);
    drawAll();
  },
  circuits(circuits) {
    showCircuits(circuits);
    lists.showCircuitCount(circuits);
    lists.showLit(lightOf(chosenRegion()), removeCircuit);
    if (state.load) showTopologyLoad(share);
    drawDemand(state.demand, circuits);
  },
  load(load) {
    showLoad(load);
    showTopologyLoad(share);
    addRates(load.point);
    lists.showTraffic(load.point);
  },
  history: showHistory,
  run(run) {
    lists.showRun(run);
    showIterations(run?.done ?? []);
  },
  timeline: (spans) => drawTimeline(spans, servers()),
  demand: (demand) => drawDemand(demand, state.circuits ?? {}),
  failures(failures) {
    lists.showFailures(failures, (failure) => command("clear", { kind: failure.kind, what: failure.what }));
    showNics();
  },
  hardware(hardware) {
    lists.showHardware(hardware);
    showNics();
  },
  events(events) {
    lists.showEvents(events, eventsAreNew);
    eventsAreNew = false;
  },
};

function change(topic, value) {
  state[topic] = value;
  views[topic]?.(value);
}

function showNics() {
  const [failed, down] = [failedNics(), carrierless()];
  showFailedNics(failed, down);
  showNicStates(new Set([...failed, ...down]));
}

/** Draws what depends on the width of the page and its colours. */
function drawAll() {
  if (!state.fabric || byId("live").hidden) return;
  drawTopology(state.fabric);
  drawCharts();
  for (const topic of ["circuits", "failures", "load", "timeline", "demand", "run"]) {
    if (topic in state) views[topic](state[topic]);
  }
}

// --- commands ----------------------------------------------------------------------------------

async function command(name, value) {
  const line = byId("command");
  line.className = "";
  line.textContent = "…";
  try {
    await post(`api/fabrics/${encodeURIComponent(watched)}/${name}`, value);
    line.textContent = `${name} ${[...(value.circuits ?? []), ...(value.what ?? [])].join(" ")}: done`;
  } catch (error) {
    line.className = "fault";
    line.textContent = error.message;
  }
}

const toggleNic = (nic, hasFailed) => command(hasFailed ? "clear" : "fault", { kind: "nic", what: [nic] });
const removeCircuit = (name) => command("dark", { circuits: [name], region: chosenRegion() });
const words = (id) => byId(id).value.split(/[\s,]+/).filter(Boolean);

function onSubmit(id, action) {
  byId(id).addEventListener("submit", (event) => {
    event.preventDefault();
    action();
  });
}

// --- views -------------------------------------------------------------------------------------

let isResults = false;

function showView() {
  byId("results").hidden = !isResults;
  byId("live").hidden = isResults || !state.fabric;
  byId("empty").hidden = isResults || Boolean(watched);
  byId("show-live").setAttribute("aria-pressed", String(!isResults));
  byId("show-results").setAttribute("aria-pressed", String(isResults));
}

function choose(results) {
  isResults = results;
  showView();
  if (results) loadResults();
  else drawAll();
}

function askForToken(fault = "") {
  stop.abort();
  byId("login").hidden = false;
  for (const id of ["live", "empty", "results"]) byId(id).hidden = true;
  document.querySelector("nav").hidden = byId("fabric").closest("label").hidden = true;
  setText("login-fault", fault);
  byId("token").focus();
}

function open() {
  byId("login").hidden = true;
  document.querySelector("nav").hidden = false;
  connect("");
}

onSubmit("login", () => {
  setToken(byId("token").value.trim());
  byId("token").value = "";
  open();
});
onSubmit("light-form", () => command("light", { circuits: words("circuits") }));
onSubmit("fault-form", () => command("fault", { kind: byId("fault-kind").value, what: words("fault-what") }));
byId("dark").addEventListener("click", () => command("dark", { circuits: [], region: chosenRegion() }));
byId("clear-all").addEventListener("click", () => command("clear", {}));
byId("region").addEventListener("change", () => lists.showLit(lightOf(chosenRegion()), removeCircuit));
byId("fabric").addEventListener("change", (event) => connect(event.target.value));
byId("show-live").addEventListener("click", () => choose(false));
byId("show-results").addEventListener("click", () => choose(true));
byId("render").addEventListener("click", renderChosen);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

let width = innerWidth, redraw = 0;
addEventListener("resize", () => {
  if (innerWidth === width) return; // a phone's address bar changes the height only
  width = innerWidth;
  cancelAnimationFrame(redraw);
  redraw = requestAnimationFrame(drawAll);
});
setInterval(tick, 1000);

addEventListener("hashchange", () => location.reload()); // another link with a token
takeTokenFromLink();
if (hasToken()) open();
else askForToken();
