/* The parts as a table, the headline, and how your cuts compare with the plan. */

import { command } from "./commands.js";
import { canRedo, canUndo, cutAt, redo, stopCutting, undo } from "./cuts.js";
import { $, copy, html, inLine, letKeysScroll } from "./elements.js";
import { shortened, visible } from "./names.js";
import { isOver, needOf, titleOf } from "./part_words.js";
import { against } from "./predicted.js";
import { costs, cutter, profile, scene } from "./scene.js";
import { plan, shown } from "./shown.js";
import { state, when } from "./state.js";
import { exactly, nodeLink, partTable } from "./tables.js";
import { count, duration, grouped, sizeLike, sizeOf } from "./number_words.js";

let isCompared = false; // whether the parts of the plan are beside yours
const answer = [...$(".answer").childNodes]; // of the plan

/** A choice of the device of a part. */
function deviceOf(part) {
  const choice = html("select", { "aria-label": `device of ${part.name}` });
  const first = new Map(costs.devices.map((device, place) => [device.name, place]).reverse());
  for (const [name, place] of [...first].reverse()) choice.append(html("option", { value: place, text: name }));
  choice.value = first.get(costs.devices[part.place].name);
  choice.addEventListener("change", () => {
    cutAt(state.yours.cuts, state.yours.parts.map((one, i) => (i === part.index ? Number(choice.value) : one.place)));
    document.querySelectorAll("#parts select")[part.index].focus();
  });
  return choice;
}

function tableOf(title, { parts }, isOwn) {
  const cuts = parts.map((one) => one.cut).filter((cut) => cut !== undefined);
  const hasCuts = cuts.length > 0;
  const texts = shortened(cuts.map((cut) => visible(profile.nodes[cut])), 24);
  const short = Object.fromEntries(cuts.map((cut, i) => [cut, texts[i]]));
  const nameOf = (part) => (part.cut === undefined ? titleOf(part) : html("span", {}, inLine("span", null, titleOf(part)), nodeLink(part.cut, short[part.cut])));
  return partTable(title, parts, [
    [hasCuts ? "part, ends after" : "part", "name", nameOf],
    isOwn && costs?.is_cluster ? ["device", "", deviceOf] : parts.some((one) => one.device) ? ["device", "mono clip", (one) => one.device] : null,
  ], hasCuts ? [["crosses here", "number", ({ crosses }) => (
    crosses ? exactly(`${sizeOf(crosses)} in ${grouped(crosses.tensors)}`, crosses.bytes, `B in ${crosses.tensors}`) : "")]] : []);
}

/** What your cuts make, in the words of the headline of a plan. */
function answerOf({ parts, boundaries }) {
  const most = boundaries.reduce((best, total) => (total.bytes > best.bytes ? total : best));
  const largest = parts.reduce((best, part) => (part.need_bytes > best.need_bytes ? part : best));
  const of = largest.budget_bytes ? ` of ${sizeLike(largest.budget_bytes, largest.budget_bytes)}` : "";
  const need = largest.need_bytes >= 0 ? ` The largest, ${largest.name}, ${largest.measure === "needs" ? "needs" : "takes"} ${needOf(largest)}${of}.` : "";
  const slowest = parts.reduce((best, part) => (part.busy_s > best.busy_s ? part : best));
  const time = slowest.busy_s >= 0 ? ` The slowest, ${slowest.name}, takes ${duration(slowest.busy_s)}.` : "";
  const over = parts.filter(isOver).length;
  return [`Your cuts: ${count(parts.length, "part")}.${need}${time} At most ${sizeOf(most)} crosses a boundary. `,
    ...over ? [html("span", { class: "badge bad", text: `✗ ${count(over, "part")} over budget` })] : []];
}

function showTools(yours) {
  for (const one of document.querySelectorAll("#parts .own")) one.hidden = !yours;
  $("#compare").hidden = !yours || !scene.cards.length;
  for (const [id, can] of [["undo", canUndo()], ["redo", canRedo()]]) {
    $(`#${id}`).disabled = !can;
    $(`#${id}`).hidden = !canUndo() && !canRedo();
  }
  if (!yours) return;
  const change = against({ cards: plan().parts, boundaries: plan().boundaries }, costs, yours);
  $("#parts .lead").textContent = `Nothing is recomputed here; the command recomputes what takes less time than to receive it.${change}`;
  const devices = costs?.is_cluster ? yours.parts.map((one) => one.device) : [];
  $("#parts code").textContent = command(scene.model, cutter.dims, yours.cuts.map((cut) => profile.nodes[cut]), devices);
}

function showParts() {
  const { yours } = state;
  $(".answer").replaceChildren(...yours ? answerOf(yours) : answer);
  $("#parts").hidden = !shown().parts.length;
  if (cutter) showTools(yours);
  const tables = shown().parts.length ? [tableOf("parts", shown(), yours)] : [];
  if (yours && isCompared && scene.cards.length) tables.push(html("h3", { text: "The plan" }), tableOf("parts of the plan", plan(), false));
  $("#parts .scroll").replaceChildren(...tables);
  letKeysScroll();
}

export function startParts() {
  showParts();
  if (!cutter) return document.querySelectorAll(".cutting, #parts .own").forEach((one) => one.remove());
  $("#back").textContent = scene.cards.length ? "Back to the plan" : "No cuts";
  const clicked = {
    back: stopCutting, undo, redo, "copy-cuts": ({ currentTarget }) => copy($("#parts code").textContent, currentTarget),
    compare: ({ currentTarget }) => {
      isCompared = !isCompared;
      currentTarget.setAttribute("aria-pressed", isCompared);
      showParts();
    },
  };
  for (const [id, action] of Object.entries(clicked)) $(`#${id}`).addEventListener("click", action);
  return when("cut", showParts);
}
