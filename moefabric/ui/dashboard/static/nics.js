// A button for each NIC: its load, whether it works, and its failure.

import { byId, html, rate } from "./elements.js";

const MOST_OPEN = 160; // NICs above which only the first region is open

const buttons = new Map();
const indices = new Map();
const capacities = new Map();
let load = { sent: [], received: [] };
let failed = new Set(), down = new Set();

/** Returns the larger part of its rate that a NIC sends or receives. */
export const share = (nic) => Math.max(load.sent[indices.get(nic)] ?? 0, load.received[indices.get(nic)] ?? 0) / capacities.get(nic);

/** Makes the lists of all regions; NICs of closed regions are made when they are opened. */
export function drawNics(fabric, onToggle) {
  indices.clear();
  buttons.clear();
  const servers = fabric.regions.flatMap((region) => region.servers);
  for (const server of servers) server.nics.forEach((nic) => capacities.set(nic, server.nic_rate_bps / 1e6));
  const all = servers.flatMap((server) => server.nics);
  all.forEach((nic, index) => indices.set(nic, index));
  byId("nics").replaceChildren(...fabric.regions.map((region, index) => {
    const servers = html("div", { class: "servers" });
    const count = region.servers.reduce((sum, server) => sum + server.nics.length, 0);
    const summary = html("summary", {}, region.name, html("span", {}, `${region.servers.length} servers, ${count} NICs`));
    const details = html("details", {}, summary, servers);
    details.addEventListener("toggle", () => {
      if (details.open && !servers.firstChild) fillServers(region, servers, onToggle);
    });
    if (index === 0 || all.length <= MOST_OPEN) {
      fillServers(region, servers, onToggle);
      details.open = true;
    }
    return details;
  }));
}

function fillServers(region, servers, onToggle) {
  for (const server of region.servers) {
    servers.append(html("div", { class: "server" }, html("b", { title: server.address }, server.name),
      html("div", {}, ...server.nics.map((nic) => nicButton(nic, onToggle)))));
  }
  for (const nic of region.servers.flatMap((server) => server.nics)) {
    showState(nic);
    showRate(nic);
  }
}

function nicButton(nic, onToggle) {
  const kind = nic.includes("/o") ? "nic optical" : "nic";
  const button = html("button", { type: "button", class: kind, "data-nic": nic, "aria-pressed": "false" }, nic.split("/")[1], html("i"), html("i"));
  button.addEventListener("click", () => onToggle(nic, failed.has(nic)));
  buttons.set(nic, button);
  return button;
}

function showState(nic) {
  const button = buttons.get(nic);
  button.setAttribute("aria-pressed", String(failed.has(nic)));
  button.classList.toggle("down", down.has(nic));
  button.setAttribute("aria-label", failed.has(nic) ? `${nic} has failed; let it work` : `Make ${nic} fail`);
}

function showRate(nic) {
  const button = buttons.get(nic), index = indices.get(nic);
  const [sent, received] = [load.sent[index] ?? 0, load.received[index] ?? 0];
  const [upper, lower] = button.querySelectorAll("i");
  upper.style.transform = `scaleX(${Math.min(1, sent / capacities.get(nic))})`;
  lower.style.transform = `scaleX(${Math.min(1, received / capacities.get(nic))})`;
  const state = down.has(nic) ? ", no carrier" : "";
  button.title = `${nic}: sends ${rate(sent)}, receives ${rate(received)}${state}`;
}

/** Shows rates, in Mbit/s by NIC. */
export function showLoad(value) {
  const before = load;
  load = value;
  for (const nic of buttons.keys()) {
    const index = indices.get(nic);
    if (before.sent[index] !== load.sent[index] || before.received[index] !== load.received[index]) showRate(nic);
  }
}

/** Shows which NICs have an injected failure, and which have no carrier. */
export function showFailedNics(failures, withoutCarrier) {
  failed = failures;
  down = withoutCarrier;
  for (const nic of buttons.keys()) {
    showState(nic);
    showRate(nic);
  }
}
