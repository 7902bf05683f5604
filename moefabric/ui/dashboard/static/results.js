// Saved results: a list, and a page of one or several in a frame that runs no code.

import { get, post } from "./connection.js";
import { byId, html, scaled, setText } from "./elements.js";

const chosen = new Set();

/** Loads the list of results. */
export async function loadResults() {
  chosen.clear();
  showChoice();
  try {
    const entries = await get("api/results");
    byId("saved").replaceChildren(...entries.map(row));
    setText("results-note", entries.length ? "Choose one to read it, or several to compare them." : "The folder has no results: `moefabric run EXPERIMENT.yaml --json out/NAME.json` writes one.");
  } catch (error) {
    setText("results-note", error.message);
  }
}

function row(entry) {
  const box = html("input", { type: "checkbox", "aria-label": entry.file });
  box.addEventListener("change", () => {
    if (box.checked) chosen.add(entry.file);
    else chosen.delete(entry.file);
    showChoice();
  });
  const verdict = entry.verdict ?? (entry.file.endsWith(".jsonl") ? "journal" : "unknown");
  const written = new Date(entry.modified * 1000).toISOString().slice(0, 16).replace("T", " ");
  return html("tr", {}, html("td", {}, html("label", {}, box)), html("td", {}, entry.experiment), html("td", {}, entry.file),
    html("td", {}, html("span", { class: `pill ${verdict}` }, verdict)), html("td", {}, written), html("td", {}, scaled(entry.size, "B")));
}

function showChoice() {
  byId("render").disabled = !chosen.size;
  byId("render").textContent = chosen.size > 1 ? `Compare ${chosen.size}` : "Show";
}

/** Shows the chosen results. */
export async function renderChosen() {
  byId("render").disabled = true;
  setText("results-note", "Rendering …");
  try {
    const { page } = await post("api/results/page", { files: [...chosen] });
    byId("report").src = page;
    byId("report").hidden = false;
    setText("results-note", [...chosen].join(", "));
  } catch (error) {
    setText("results-note", error.message);
  }
  showChoice();
}
