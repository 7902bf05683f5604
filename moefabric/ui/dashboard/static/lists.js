// Text of the page: tiles, events, failures, processes, and circuits with their buttons.

import { byId, html, scaled, setText } from "./elements.js";

const MOST_EVENTS = 120;
let shown = [];

/** Shows the run: verdict with its reasons, iteration, operation and totals. */
export function showRun(run) {
  const verdict = byId("verdict");
  verdict.textContent = run?.verdict ?? "–";
  verdict.className = `big ${run?.verdict ?? ""}`;
  setText("verdict-note", run ? run.reasons?.join("; ") || "no reason against it so far" : "no run uses this fabric");
  setText("iteration", run ? `${Math.min(run.iteration + 1, run.iterations)} of ${run.iterations}` : "–");
  const operation = run?.operation;
  const place = operation && [operation.direction, operation.kind, operation.layer === null ? "" : `layer ${operation.layer}`, operation.region].filter(Boolean).join(" ");
  setText("operation", run ? [run.experiment, run.policy, place].filter(Boolean).join(" · ") : "");
  const totals = run?.totals;
  const lost = totals && (totals.lost_transfers || totals.corrupt) ? `, ${totals.lost_transfers} lost, ${totals.corrupt} corrupt` : "";
  setText("totals", totals ? `${totals.collectives} collectives, ${totals.reconfigurations} reconfigurations, ${scaled(totals.bytes, "B")}${lost}` : "");
}

/** Shows what all NICs send, and the part of it that goes by light. */
export function showTraffic([, light, eps]) {
  setText("traffic", scaled((light + eps) * 1e6, "b/s"));
  setText("traffic-note", light + eps ? `${Math.round((100 * light) / (light + eps))} % by light` : "no traffic");
}

/** Shows how many circuits are lit and dark. */
export function showCircuitCount(circuits) {
  const count = (key) => Object.values(circuits).reduce((sum, light) => sum + light[key].length, 0);
  setText("circuit-count", String(count("lit")));
  const silent = Object.values(circuits).filter((light) => light.fault).length;
  const notes = [`${Object.keys(circuits).length} OCS`, count("dark") ? `${count("dark")} dark` : "", silent ? `${silent} controllers silent` : ""];
  setText("circuit-note", notes.filter(Boolean).join(", "));
}

/** Shows the circuits of a region as buttons that remove them. */
export function showLit(light, onRemove) {
  const chip = (name, isDark) => {
    const button = html("button", { type: "button", class: isDark ? "dark" : "", "aria-label": `Remove ${name}${isDark ? ", dark" : ""}` }, `${name} ✕`);
    button.disabled = isDark;
    button.addEventListener("click", () => onRemove(name));
    return html("li", {}, button);
  };
  byId("lit").replaceChildren(...light.lit.map((name) => chip(name, false)), ...light.dark.map((name) => chip(name, true)));
}

/** Shows the present failures, each with a button that clears it. */
export function showFailures(failures, onClear) {
  setText("failure-count", String(failures.length));
  setText("failure-note", failures.length ? failures.slice(0, 3).map((f) => `${f.kind} ${f.what.join(" ")}`).join(", ") : "all components work");
  byId("failure-count").className = failures.length ? "big invalid" : "big";
  byId("clear-all").disabled = !failures.length;
  byId("failures").replaceChildren(...failures.map((failure) => {
    const name = `${failure.kind} ${failure.what.join(" ")}`;
    const button = html("button", { type: "button", "aria-label": `Clear ${name}` }, "Clear");
    button.addEventListener("click", () => onClear(failure));
    return html("li", {}, html("span", {}, name), button);
  }));
}

const ALARMS = new Set(["inject", "lost", "refused", "port-failed", "power-low", "fault", "fault-shown", "reboot"]);
const GOOD = new Set(["recovered", "settled", "power-clear", "port-recovered", "started", "clear", "fault-cleared"]);

/** Shows events, the latest first; `isAll` replaces those that are shown. */
export function showEvents(events, isAll) {
  shown = [...(isAll ? [] : shown), ...events].slice(-MOST_EVENTS);
  byId("events").replaceChildren(...shown.toReversed().map((event) => {
    const time = new Date(event.at * 1000);
    const kind = ALARMS.has(event.kind) ? "pill invalid" : event.kind === "detected" ? "pill degraded" : GOOD.has(event.kind) ? "pill pass" : "pill";
    const clock = `${time.toLocaleTimeString("en-GB")}.${String(time.getMilliseconds()).padStart(3, "0")}`;
    return html("li", {}, html("time", { datetime: time.toISOString() }, clock), html("span", {}, html("span", { class: kind }, event.kind)),
      html("span", {}, [event.ocs, event.text].filter(Boolean).join(": ")));
  }));
}

/** Shows controllers and processes. */
export function showHardware({ processes, controllers, lost_machines: lost = {} }) {
  const row = (name, state, isGood) => html("tr", {}, html("td", {}, name), html("td", { class: "text" }, isGood === undefined ? state : html("span", { class: isGood ? "pill pass" : "pill invalid" }, state)));
  byId("processes").replaceChildren(
    ...Object.entries(lost).map(([machine, why]) => row(`machine ${machine}`, `lost: ${why}`, false)),
    ...controllers.map((c) => row(`controller of ${c.region}`, c.ready ? "ready" : (c.fault ?? "not ready"), c.ready)),
    ...processes.map((process) => row(process.name, `pid ${process.pid}${process.machine ? ` on ${process.machine}` : ""}`)));
  setText("process-note", `${processes.length} processes`);
}
