// Elements and numbers. Text is set as text, never parsed as HTML.

export const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value !== null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

/** Returns a new HTML element. */
export const html = (name, attributes = {}, ...children) =>
  fill(document.createElement(name), attributes, children);

/** Returns a new SVG element. */
export const svg = (name, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

/** Sets the text of an element, if it differs. */
export function setText(id, text) {
  const node = byId(id);
  if (node.textContent !== text) node.textContent = text;
}

const PREFIXES = ["", "k", "M", "G", "T", "P"];

/** Returns a number with three digits and a prefix, such as 12.3 G. */
export function scaled(value, unit) {
  let step = 0;
  while (Math.abs(value) >= 999.5 && step < PREFIXES.length - 1) {
    value /= 1000;
    step += 1;
  }
  const digits = value === 0 || Math.abs(value) >= 99.5 || (step === 0 && Number.isInteger(value)) ? 0 : Math.abs(value) >= 9.95 ? 1 : 2;
  return `${value.toFixed(digits)} ${PREFIXES[step]}${unit}`;
}

/** Returns a rate in Mbit/s as text. */
export const rate = (mbps) => scaled(mbps * 1e6, "b/s");

/** Returns seconds as text. */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1) return `${value.toPrecision(3)} s`;
  return value >= 1e-3 ? `${(value * 1e3).toPrecision(3)} ms` : `${(value * 1e6).toPrecision(3)} µs`;
}

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Returns a canvas of a size in CSS pixels, and its context. */
export function canvas(width, height, label) {
  const node = html("canvas", { role: "img", "aria-label": label });
  const ratio = devicePixelRatio || 1;
  node.width = width * ratio;
  node.height = height * ratio;
  node.style.width = `${width}px`;
  node.style.height = `${height}px`;
  const context = node.getContext("2d");
  context.scale(ratio, ratio);
  context.font = "12px Inter, 'Segoe UI', 'Liberation Sans', sans-serif";
  return [node, context];
}
