/* The parts as a table, the headline, and how your cuts compare with the plan. */

import { canRedo, canUndo, cutAt, redo, stopCutting, undo } from "./cuts.js";
import { $, all, copyText, html } from "./elements.js";
import { command } from "./links.js";
import { against } from "./predicted.js";
import { costs, cutter, plan, profile, scene, shown, state, when } from "./shown.js";
import { exactly, nodeLink, partTable } from "./tables.js";
import { count, duration, grouped, isOver, needOf, shortened, sizeLike, sizeOf, titleOf, visible } from "./words.js";

let isCompared = false; // whether the parts of the plan are beside yours
const answer = [...$(".answer").childNodes]; // of the plan

/** A choice of the device of a part; devices with one name are one. */
function deviceOf(part) {
  const first = (name) => costs.devices.findIndex((device) => device.name === name);
  const names = [...new Set(costs.devices.map(({ name }) => name))];
  const choose = () => {
    cutAt(state.yours.cuts, state.yours.parts.map((one, i) => (i === part.index ? Number(choice.value) : one.place)));
    all("#parts select")[part.index].focus();
  };
  const choice = html("select", { "aria-label": `device of ${part.name}`, on: { change: choose } },
    ...names.map((name) => html("option", { value: first(name), text: name })));
  choice.value = first(costs.devices[part.place].name);
  return choice;
}

function tableOf(title, { parts }, isOwn) {
  const cuts = parts.map((one) => one.cut).filter((cut) => cut !== undefined);
  const texts = shortened(cuts.map((cut) => visible(profile.nodes[cut])), 24);
  const nameOf = (part) => (part.cut === undefined ? titleOf(part) : html("span", {},
    html("span", {}, titleOf(part)), nodeLink(part.cut, texts[cuts.indexOf(part.cut)])));
  const crosses = ({ crosses: one }) => (one ? exactly(`${sizeOf(one)} in ${grouped(one.tensors)}`, one.bytes, `B in ${one.tensors}`) : "");
  return partTable(title, parts, [
    [cuts.length ? "part, ends after" : "part", "name", nameOf],
    isOwn && costs?.is_cluster ? ["device", "", deviceOf] : parts.some((one) => one.device) ? ["device", "mono clip", (one) => one.device] : null,
  ], cuts.length ? [["crosses here", "number", crosses]] : []);
}

/** What your cuts make, in the words of the headline of a plan. */
function answerOf({ parts, boundaries }) {
  const largest = (items, name) => items.reduce((best, one) => (one[name] > best[name] ? one : best));
  const [needs, slowest] = [largest(parts, "need_bytes"), largest(parts, "busy_s")];
  const of = needs.budget_bytes ? ` of ${sizeLike(needs.budget_bytes, needs.budget_bytes)}` : "";
  const need = needs.need_bytes >= 0 ? ` The largest, ${needs.name}, ${needs.measure === "needs" ? "needs" : "takes"} ${needOf(needs)}${of}.` : "";
  const time = slowest.busy_s >= 0 ? ` The slowest, ${slowest.name}, takes ${duration(slowest.busy_s)}.` : "";
  const over = parts.filter(isOver).length;
  return [`Your cuts: ${count(parts.length, "part")}.${need}${time} At most ${sizeOf(largest(boundaries, "bytes"))} crosses a boundary. `,
    ...over ? [html("span", { class: "badge bad" }, `✗ ${count(over, "part")} over budget`)] : []];
}

function showTools(yours) {
  for (const one of all("#parts .own")) one.hidden = !yours;
  $("#compare").hidden = !yours || !scene.cards.length;
  for (const [id, can] of [["undo", canUndo()], ["redo", canRedo()]]) {
    Object.assign($(`#${id}`), { disabled: !can, hidden: !canUndo() && !canRedo() });
  }
  if (!yours) return;
  const change = against({ cards: plan.parts, boundaries: plan.boundaries }, costs, yours);
  $("#parts .lead").textContent = `Nothing is recomputed here; the command recomputes what takes less time than to receive it.${change}`;
  const devices = costs?.is_cluster ? yours.parts.map((one) => one.device) : [];
  $("#parts code").textContent = command(scene.model, cutter.dims, yours.cuts.map((cut) => profile.nodes[cut]), devices);
}

function showParts() {
  const { yours } = state;
  $(".answer").replaceChildren(...yours ? answerOf(yours) : answer);
  if (cutter) showTools(yours);
  const tables = shown().parts.length ? [tableOf("parts", shown(), yours)] : [];
  if (yours && isCompared && scene.cards.length) tables.push(html("h3", { text: "The plan" }), tableOf("parts of the plan", plan, false));
  $("#parts .scroll").replaceChildren(...tables);
}

export function startParts() {
  showParts();
  if (!cutter) return all(".cutting, #parts .own").forEach((one) => one.remove());
  $("#back").textContent = scene.cards.length ? "Back to the plan" : "No cuts";
  const compare = () => {
    isCompared = !isCompared;
    $("#compare").setAttribute("aria-pressed", isCompared);
    showParts();
  };
  const clicked = { back: stopCutting, undo, redo, compare, "copy-cuts": ({ target }) => copyText($("#parts code"), target) };
  for (const [id, action] of Object.entries(clicked)) $(`#${id}`).addEventListener("click", action);
  return when("cut", showParts);
}
