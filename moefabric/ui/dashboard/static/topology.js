// Drawing of the fabric: packet switches, servers, and the light of each region's OCS.

import { byId, html, svg } from "./elements.js";

// Heights in pixels. Several regions are drawn small; their leaves are above all of them.
const LARGE = { leaf: 26, server: 92, serverHeight: 44, ocs: 190, height: 318 };
const SMALL = { leaf: 0, server: 8, serverHeight: 26, ocs: 62, height: 134 };
const GONE_MS = 450;
const MOST_MOVING = 32; // servers above which loads change at once, which takes the browser less time

const drawings = new Map();

/** Returns the middle of each of `count` columns. */
const columns = (count, width) => Array.from({ length: count }, (_, i) => ((i + 0.5) * width) / count);

const box = (name, x, y, width, height, kind) => svg("g", {},
  svg("rect", { class: kind, x: x - width / 2, y, width, height, rx: 4 }),
  ...(width >= 7.5 * name.length ? [svg("text", { class: "name", x, y: y + height / 2 }, name)] : []),
  svg("title", {}, name));

/** Draws the leaves and spines that join the regions. */
function drawEps(fabric, width) {
  if (!fabric.leaves.length || (fabric.regions.length === 1 && !fabric.spines.length)) return null;
  const [leaves, spines] = [fabric.leaves, fabric.spines].map((names) => columns(names.length, width));
  const size = (places) => Math.min(96, (width / places.length) * 0.82);
  const label = `${fabric.leaves.length} leaves, ${fabric.spines.length} spines`;
  return svg("svg", { class: "net", viewBox: spines.length ? `0 0 ${width} 108` : `0 70 ${width} 40`, role: "img", "aria-label": label },
    ...spines.flatMap((x) => leaves.map((to) => svg("path", { class: "wire", d: `M${x} 30L${to} 78` }))),
    ...spines.map((x, i) => box(fabric.spines[i], x, 6, size(spines), 24, "switch")),
    ...leaves.map((x, i) => box(fabric.leaves[i], x, 78, size(leaves), 24, "switch")));
}

/** Draws a region, and returns its drawing with what changes: circuits, dots and loads. */
function drawRegion(region, width, size) {
  const servers = columns(region.servers.length, width);
  const serverWidth = Math.min(130, (width / servers.length) * 0.84);
  const parts = { circuits: new Map(), at: new Map(), dots: new Map(), busy: new Map(), lines: svg("g") };
  const names = size.leaf ? [...new Set(region.servers.flatMap((server) => Object.values(server.leaves)))] : [];
  const leaves = columns(names.length, width), leafWidth = Math.min(150, (width / Math.max(1, leaves.length)) * 0.8);
  const wires = [], boxes = [], dots = [], bottom = size.server + size.serverHeight;
  const radius = Math.max(1.6, Math.min(4.5, serverWidth / 14));
  region.servers.forEach((server, index) => {
    const x = servers[index];
    boxes.push(box(server.name, x, size.server, serverWidth, size.serverHeight, "box"));
    const busy = svg("rect", { class: "busy", x: x - serverWidth / 2, y: bottom, width: serverWidth, height: 0, rx: 3 });
    parts.busy.set(server.name, busy);
    boxes.push(busy);
    for (const optical of [true, false]) {
      const nics = server.nics.filter((nic) => nic.includes("/o") === optical);
      nics.forEach((nic, number) => {
        const at = x - serverWidth / 2 + ((number + 0.5) * serverWidth) / nics.length;
        const y = optical ? bottom : size.server;
        if (optical) {
          wires.push(svg("path", { class: "fibre", d: `M${at} ${y}V${size.ocs}` }));
          parts.at.set(nic, at);
        } else if (names.length) {
          const to = leaves[names.indexOf(server.leaves[nic])];
          wires.push(svg("path", { class: "wire", d: `M${at} ${y}L${to} ${6 + size.leaf}` }));
        }
        const dot = svg("circle", { class: optical ? "dot optical" : "dot", cx: at, cy: y, r: radius }, svg("title", {}, nic));
        parts.dots.set(nic, dot);
        dots.push(dot);
      });
    }
  });
  if (region.ocs) boxes.push(svg("rect", { class: "optics", x: 1, y: size.ocs, width: width - 2, height: size.height - size.ocs - 2, rx: 6 }));
  names.forEach((name, i) => boxes.push(box(name, leaves[i], 6, leafWidth, size.leaf, "switch")));
  const height = region.ocs ? size.height : bottom + 8;
  const drawing = svg("svg", { class: "net", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Region ${region.name}` },
    ...wires, ...boxes, parts.lines, ...dots);
  return { drawing, width, region, size, ...parts };
}

/** Returns the path of a circuit: fibre, mirrors, fibre. */
function circuitPath(parts, name) {
  const [a, b] = name.split("~").map((nic) => parts.at.get(nic));
  if (a === undefined || b === undefined) return null;
  const { ocs, height, server, serverHeight } = parts.size;
  const depth = (height - ocs) * (0.35 + 0.85 * Math.min(1, Math.abs(a - b) / parts.width));
  const start = server + serverHeight;
  return `M${a} ${start}V${ocs}C${a} ${ocs + depth} ${b} ${ocs + depth} ${b} ${ocs}V${start}`;
}

/** Draws the circuits of a region: in a drawing that has some, new ones grow and removed ones fade. */
function moveLight(parts, light) {
  const wanted = new Map([...light.lit.map((name) => [name, false]), ...light.dark.map((name) => [name, true])]);
  for (const [name, path] of parts.circuits) {
    if (!wanted.has(name)) {
      path.classList.add("gone");
      parts.circuits.delete(name);
      setTimeout(() => path.remove(), GONE_MS);
    }
  }
  for (const [name, isDark] of wanted) {
    let path = parts.circuits.get(name);
    const shape = circuitPath(parts, name);
    if (!path && shape) {
      path = svg("path", { class: parts.isDrawn ? "circuit new" : "circuit", d: shape, pathLength: 1, "data-circuit": name }, svg("title", {}, name));
      parts.lines.append(path);
      parts.circuits.set(name, path);
      requestAnimationFrame(() => requestAnimationFrame(() => path.classList.remove("new")));
    }
    path?.classList.toggle("dark", isDark);
  }
  parts.isDrawn = true;
  const { lit, dark, fault } = light;
  const count = fault ? "its controller is silent" : `${lit.length} lit${dark.length ? `, ${dark.length} dark` : ""}`;
  parts.note.textContent = parts.region.ocs ? `${parts.region.ocs} of ${parts.region.ocs_ports} ports: ${count}` : "no OCS";
  parts.drawing.setAttribute("aria-label", `Region ${parts.region.name}: lit ${lit.join(" ") || "no circuits"}`);
}

/** Draws the whole fabric for the present width. */
export function drawTopology(fabric) {
  byId("eps").replaceChildren();
  byId("regions").replaceChildren();
  drawings.clear();
  const servers = fabric.regions.reduce((sum, region) => sum + region.servers.length, 0);
  byId("live").classList.toggle("calm", servers > MOST_MOVING);
  byId("regions").classList.toggle("many", fabric.regions.length > 1);
  const size = fabric.regions.length > 1 ? SMALL : LARGE;
  const eps = drawEps(fabric, byId("eps").clientWidth);
  if (eps) byId("eps").append(eps);
  const panels = fabric.regions.map((region) => {
    const note = html("span");
    const panel = html("div", { class: "region" }, html("h3", {}, `${region.name}${region.backup ? " (backup)" : ""}`, note));
    byId("regions").append(panel);
    return [region, panel, note];
  });
  for (const [region, panel, note] of panels) {
    const parts = { ...drawRegion(region, Math.max(120, panel.clientWidth - 20), size), note };
    panel.append(parts.drawing);
    drawings.set(region.name, parts);
  }
}

/** Shows the circuits of all regions. */
export function showCircuits(circuits) {
  for (const [name, light] of Object.entries(circuits)) {
    const parts = drawings.get(name);
    if (parts) moveLight(parts, light);
  }
}

/** Shows which NICs have failed or lost their carrier. */
export function showNicStates(failed) {
  for (const parts of drawings.values()) {
    for (const [nic, dot] of parts.dots) dot.classList.toggle("out", failed.has(nic));
  }
}

/** Shows the load of servers and circuits; `share` returns a NIC's part of its rate. */
export function showTopologyLoad(share) {
  for (const parts of drawings.values()) {
    for (const server of parts.region.servers) {
      const load = server.nics.reduce((sum, nic) => sum + share(nic), 0) / Math.max(1, server.nics.length);
      const busy = parts.busy.get(server.name), height = parts.size.serverHeight * Math.min(1, load);
      busy.setAttribute("y", parts.size.server + parts.size.serverHeight - height);
      busy.setAttribute("height", height);
    }
    for (const [name, path] of parts.circuits) {
      path.style.strokeWidth = `${1.6 + 2.4 * Math.min(1, Math.max(...name.split("~").map(share)))}px`;
    }
  }
}
