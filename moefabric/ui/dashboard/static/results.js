// Saved results: a list, and the page of one in a frame that runs no code.

import { get, post } from "./connection.js";
import { byId, html, scaled, setText } from "./elements.js";

let chosen = "";

/** Loads the list of results. */
export async function loadResults() {
  chosen = "";
  byId("render").disabled = true;
  try {
    const entries = await get("api/results");
    byId("saved").replaceChildren(...entries.map(row));
    setText("results-note", entries.length ? "Choose one to read it." : "The folder has no results: `moefabric run EXPERIMENT.yaml --json out/NAME.json` writes one.");
  } catch (error) {
    setText("results-note", error.message);
  }
}

function row(entry) {
  const choice = html("input", { type: "radio", name: "result", "aria-label": entry.file });
  choice.addEventListener("change", () => {
    chosen = entry.file;
    byId("render").disabled = false;
  });
  const verdict = entry.verdict ?? (entry.file.endsWith(".jsonl") ? "journal" : "unknown");
  const written = new Date(entry.modified * 1000).toISOString().slice(0, 16).replace("T", " ");
  return html("tr", {}, html("td", {}, html("label", {}, choice)), html("td", {}, entry.experiment), html("td", {}, entry.file),
    html("td", {}, html("span", { class: `pill ${verdict}` }, verdict)), html("td", {}, written), html("td", {}, scaled(entry.size, "B")));
}

/** Shows the chosen result. */
export async function renderChosen() {
  byId("render").disabled = true;
  setText("results-note", "Rendering …");
  try {
    const { page } = await post("api/results/page", { file: chosen });
    byId("report").src = page;
    byId("report").hidden = false;
    setText("results-note", chosen);
  } catch (error) {
    setText("results-note", error.message);
  }
  byId("render").disabled = false;
}
