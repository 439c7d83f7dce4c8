/* The schedule of your cuts, from the predicted times of their parts; that of the plan is simulated, and drawn in the page already where it is for readers without scripts, too. */

import { $, html, inLine } from "./elements.js";
import { groupsOf } from "./nodes_around.js";
import { colourOf } from "./part_words.js";
import { scene } from "./scene.js";
import { shown } from "./shown.js";
import { state, whenCutRests } from "./state.js";
import { asTable, table } from "./tables.js";
import { isOne } from "./things.js";
import { duration, grouped } from "./number_words.js";

const simulated = [...$("#schedule .chart").childNodes];

/** A block for each run of `all` that is in `runs`, in a row for each device. */
function chart(runs, all) {
  const end = Math.max(...runs.map((run) => run.began_s + run.seconds)) || 1;
  const devices = [...new Set(runs.map((run) => run.device))];
  return devices.map((device) => {
    const blocks = runs.flatMap((run) => {
      if (run.device !== device) return [];
      const block = inLine("i", `run`, grouped(run.part));
      block.title = `part ${run.part}, request ${run.request + 1}: ${duration(run.seconds)}, from ${duration(run.began_s)} on`;
      Object.assign(block.style, { left: `${(run.began_s / end) * 100}%`, width: `${(run.seconds / end) * 100}%` });
      block.style.setProperty("--part", colourOf(run.part));
      return [isOne(block, "run", all.indexOf(run))];
    });
    return html("div", { class: "lane schedule" }, inLine("span", "what", device), inLine("span", "bytes", ""), html("span", { class: "track" }, ...blocks));
  });
}

function showSchedule() {
  const { runs, title } = shown();
  $("#schedule").hidden = !runs.length;
  const charts = [...groupsOf(runs, (run) => run.title ?? title)].flatMap(([text, own]) => [html("p", { class: "lead", text }), ...chart(own, runs)]);
  $("#schedule .chart").replaceChildren(...state.yours || !simulated.length ? charts : simulated);
}

export function startSchedule() {
  if (!scene.schedules.length) return;
  showSchedule();
  asTable("schedule", () => [table("runs of parts", [
    ["of", "", (run) => run.title ?? shown().title],
    ["device", "", (run) => run.device],
    ["part", "number", (run) => grouped(run.part)],
    ["request", "number", (run) => grouped(run.request + 1)],
    ["begins", "number", (run) => duration(run.began_s)],
    ["takes", "number", (run) => duration(run.seconds)],
  ], shown().runs)]);
  whenCutRests(showSchedule);
}
