// Time series: traffic by light and by packet switches, and times of iterations.

import { byId, colour, html, rate, seconds } from "./elements.js";

const WINDOW_S = 120, MOST_POINTS = 600, HEIGHT = 190, READING_S = 1.2;

/** The time of day of seconds since 1970, as the lists of events have it. */
const timeOfDay = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");

let points = [];
let done = [];
let charts = [];

const axis = (extra = {}) => ({
  stroke: colour("soft"), grid: { stroke: colour("rule"), width: 1 }, ticks: { stroke: colour("rule"), width: 1 }, font: "12px sans-serif", ...extra,
});

function chart(id, options, data) {
  const place = byId(id);
  place.replaceChildren();
  const made = new uPlot({ width: Math.max(200, place.clientWidth), height: HEIGHT, cursor: { drag: { x: false, y: false } }, ...options }, data, place);
  made.root.setAttribute("aria-hidden", "true"); // the tiles and totals say the same as text
  return made;
}

/** Times, and rates by light and by packet switches; null where no page was open. */
export const rateData = () => [0, 1, 2].map((column) => points.map((point) => point[column]));

/** Makes both charts for the present width and colours. */
export function drawCharts() {
  for (const made of charts) made.destroy();
  const traffic = chart("rate-chart", {
    scales: { x: { time: true }, y: { range: (_, _low, high) => [0, Math.max(1, high * 1.08)] } },
    series: [
      { label: "time", value: (_, at) => (at === null ? "–" : timeOfDay(at)) },
      { label: "by light", stroke: colour("light"), fill: `${colour("light")}33`, width: 2, value: (_, v) => (v === null ? "–" : rate(v)), points: { show: false } },
      { label: "by packet switches", stroke: colour("bar"), width: 2, value: (_, v) => (v === null ? "–" : rate(v)), points: { show: false } },
    ],
    axes: [axis({ space: 90, values: (_, marks) => marks.map(timeOfDay) }), axis({ size: 76, values: (_, marks) => marks.map((mark) => rate(mark)) })],
  }, rateData());
  charts = [traffic];
  drawIterations();
  tick();
}

function drawIterations() {
  byId("iteration-chart").replaceChildren();
  if (!done.length) {
    byId("iteration-chart").append(html("p", { class: "blank" }, "No iteration has ended."));
    return;
  }
  const single = done.length < 2;
  charts[1] = chart("iteration-chart", {
    scales: { x: { time: false, ...(single ? { range: [done[0].iteration - 1, done[0].iteration + 1] } : {}) }, y: { range: (_, _low, high) => [0, high * 1.15 || 1] } },
    series: [
      { label: "iteration" },
      { label: "measured", stroke: colour("dispatch"), width: 2, value: (_, v) => seconds(v), points: { show: true, size: 5 } },
      { label: "predicted", stroke: colour("soft"), width: 1.5, dash: [5, 4], value: (_, v) => seconds(v), points: { show: single, size: 5 } },
      { label: "exposed communication", stroke: colour("received"), width: 1.5, value: (_, v) => seconds(v), points: { show: single, size: 5 } },
    ],
    axes: [axis({ incrs: [1, 2, 5, 10, 20, 50, 100, 1000] }), axis({ size: 64, values: (_, marks) => marks.map((mark) => seconds(mark)) })],
  }, iterationData());
}

const iterationData = () => ["iteration", "measured_s", "predicted_s", "exposed_comm_s"].map((key) => done.map((entry) => entry[key] ?? null));

/** Takes the past rates: [time, light, packet switches] in Mbit/s. */
export function showHistory(history) {
  points = history;
  tick();
}

/** Takes the rates of an instant. Only changes arrive: until shortly before, the last rates held. */
export function addRates(point) {
  const last = points[points.length - 1];
  if (!point || (last && point[0] <= last[0])) return;
  const held = last && point[0] - last[0] > READING_S ? [[point[0] - READING_S / 2, last[1], last[2]]] : [];
  points = [...points, ...held, point].slice(-MOST_POINTS);
  tick();
}

/** Moves the time axis on; the last rates stay until others arrive. */
export function tick() {
  if (!charts[0] || document.hidden) return;
  const now = Date.now() / 1000, last = points[points.length - 1];
  const data = rateData();
  if (last && now > last[0]) [now, last[1], last[2]].forEach((value, column) => data[column].push(value));
  charts[0].batch(() => {
    charts[0].setData(data, false);
    charts[0].setScale("x", { min: now - WINDOW_S, max: now });
  });
}

/** Takes the iterations that have ended. */
export function showIterations(entries) {
  const shape = done.length > 1 === entries.length > 1 && charts[1];
  done = entries;
  if (!charts[0]) return;
  if (shape && done.length > 1) charts[1].setData(iterationData());
  else drawIterations();
}
