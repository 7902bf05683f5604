// Pictures of a run: the timeline of the last finished iteration, and the demand of its last collective.

import { byId, canvas, colour, html, scaled, seconds, setText } from "./elements.js";

const COLOURS = { attention: "attention", expert: "expert", dispatch: "dispatch", combine: "combine", reconfiguration: "light", dark: "dark-mark", tensor: "other" };
const AXIS = 22, MOST_LABELS = 32;

/** Draws a row for each server. */
export function drawTimeline(spans, servers) {
  const place = byId("timeline");
  place.replaceChildren();
  if (!spans?.length) {
    setText("timeline-note", "");
    place.append(html("p", { class: "blank" }, "No iteration has ended."));
    return;
  }
  const rows = servers.filter((server) => spans.some((span) => span.server === server));
  const left = rows.length <= MOST_LABELS ? 46 : 8, width = Math.max(200, place.clientWidth);
  const row = Math.max(3, Math.min(26, 420 / rows.length)), gap = row > 8 ? 3 : row > 4 ? 1 : 0.5;
  const end = Math.max(...spans.map((span) => span.end_s)), scale = (width - left - 8) / (end || 1);
  const label = `${spans.length} operations of ${rows.length} servers in ${seconds(end)}`;
  const [node, context] = canvas(width, rows.length * row + AXIS, label);
  const index = new Map(rows.map((server, i) => [server, i]));
  context.fillStyle = colour("lane");
  rows.forEach((_, i) => context.fillRect(left, i * row, width - left - 8, row - gap));
  for (const span of spans) {
    context.fillStyle = colour(COLOURS[span.kind] ?? "other");
    const x = left + span.start_s * scale;
    context.fillRect(x, index.get(span.server) * row, Math.max(1, (span.end_s - span.start_s) * scale), row - gap);
  }
  context.fillStyle = colour("soft");
  context.textBaseline = "middle";
  if (left > 8 && row >= 10) rows.forEach((server, i) => context.fillText(server, 0, (i + 0.5) * row - gap / 2));
  for (let mark = 0; mark <= 4; mark += 1) {
    context.textAlign = mark === 4 ? "right" : mark ? "center" : "left";
    context.fillText(seconds((end * mark) / 4).replace(/^0\.00 µs$/, "0"), left + (end * mark * scale) / 4, rows.length * row + AXIS / 2 + 3);
  }
  const kinds = [...new Set(spans.map((span) => span.kind))];
  const legend = html("p", { class: "legend" }, ...kinds.flatMap((kind) => {
    const key = html("span", { class: "key block" });
    key.style.background = colour(COLOURS[kind] ?? "other");
    return [key, kind];
  }));
  place.append(node, legend);
  setText("timeline-note", label);
}

/** Draws bytes by row (sender) and column (receiver); a dot marks pairs with a circuit. */
export function drawDemand(demand, circuits) {
  const place = byId("demand");
  place.replaceChildren();
  const count = demand?.servers?.length ?? 0;
  if (!count) {
    setText("demand-note", "");
    place.append(html("p", { class: "blank" }, "No collective has run."));
    return;
  }
  const left = count <= MOST_LABELS ? 40 : 0, top = count <= MOST_LABELS ? 20 : 0;
  const cell = Math.max(2, Math.floor(Math.min(44, (Math.min(520, place.clientWidth) - left) / count)));
  const most = Math.max(...demand.bytes.flat(), 1), total = demand.bytes.flat().reduce((a, b) => a + b, 0);
  const label = `${scaled(total, "B")} between ${count} servers, ${scaled(most, "B")} at most for a pair`;
  const [node, context] = canvas(left + count * cell, top + count * cell, label);
  const lit = new Set(Object.values(circuits).flatMap((light) => light.lit.map((name) => name.split("~").map((nic) => nic.split("/")[0]).sort().join("~"))));
  const gap = cell > 5 ? 1 : 0;
  demand.bytes.forEach((row, i) => row.forEach((bytes, j) => {
    const [x, y] = [left + j * cell, top + i * cell];
    context.fillStyle = colour("lane");
    context.fillRect(x, y, cell - gap, cell - gap);
    context.globalAlpha = bytes / most;
    context.fillStyle = colour("heat");
    context.fillRect(x, y, cell - gap, cell - gap);
    context.globalAlpha = 1;
    if (cell > 5 && lit.has([demand.servers[i], demand.servers[j]].sort().join("~"))) {
      context.fillStyle = colour("light");
      context.beginPath();
      context.arc(x + cell / 2, y + cell / 2, Math.max(1.5, cell / 9), 0, 7);
      context.fill();
    }
  }));
  context.fillStyle = colour("soft");
  context.textBaseline = "middle";
  const every = Math.ceil(26 / cell);
  if (left) demand.servers.forEach((server, i) => {
    if (i % Math.max(1, Math.ceil(13 / cell)) === 0) context.fillText(server, 0, top + (i + 0.5) * cell);
    if (i % every === 0) {
      context.textAlign = "center";
      context.fillText(server, left + (i + 0.5) * cell, top / 2);
      context.textAlign = "left";
    }
  });
  place.append(node);
  setText("demand-note", label);
}
