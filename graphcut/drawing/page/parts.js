/* The parts as a table, the headline, and how your cuts compare with the plan. */

import { canRedo, canUndo, cutAt, redo, stopCutting, undo } from "./cuts.js";
import { $, all, copyText, html, listen, narrowed, share } from "./elements.js";
import { command } from "./links.js";
import { against } from "./predicted.js";
import { costs, cutter, plan, profile, scene, shown, state, when } from "./shown.js";
import { nodeLink, table } from "./tables.js";
import { againstMean, count, duration, flop, grouped, isKnown, isOver, leastOf, needOf, percent, size, sizeLike, sizeOf, sumOf, titleOf, withoutCommon } from "./words.js";

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

/** A number with a bar below it; `tick` is where the budget ends, as a share of the bar. */
function meter(number, part, isBad = false, tick = 0) {
  number.classList.toggle("bad", isBad);
  return html("span", {}, number, html("i", { class: isBad ? "bad" : null, style: { "--share": share(part), "--tick": share(tick) } }));
}

const exactly = (text, number, unit = "B") => html("span", { text, title: `${unit === "s" ? number : grouped(number)} ${unit}` });

/** A table of parts: what is not known of any part has no column. */
function partTable(title, { parts }, isOwn) {
  const known = (...names) => names.flatMap((name) => parts.map((one) => one[name]).filter(isKnown));
  const areKnown = (name) => known(name).length === parts.length && known(name).some((value) => value > 0);
  const load = ["busy_s", "flops", "need_bytes", "weight_bytes", "nodes"].find(areKnown);
  const mean = sumOf(parts, (one) => one[load]) / parts.length;
  const scale = Math.max(1, ...known("need_bytes", "budget_bytes"));
  const most = Math.max(1, ...known("flops"));
  const cuts = known("cut");
  const ends = withoutCommon(cuts.map((cut) => profile.nodes[cut]));
  const nameOf = (one) => html("span", {}, narrowed(titleOf(one)), ...isKnown(one.cut) ? [nodeLink(one.cut, ends[cuts.indexOf(one.cut)])] : []);
  const need = (one) => {
    const text = one.budget_bytes ? `${needOf(one)}, ${percent(one.need_bytes / one.budget_bytes)}` : needOf(one);
    return meter(exactly(text, one.need_bytes), one.need_bytes / scale, isOver(one), (one.budget_bytes ?? 0) / scale);
  };
  const crosses = ({ crosses: one }) => (one ? exactly(`${sizeOf(one)} in ${grouped(one.tensors)}`, one.bytes, `B in ${one.tensors}`) : "");
  const optional = (name, word, css, cell) => (known(name).length ? [word, css, (one) => (isKnown(one[name]) ? cell(one) : "–")] : null);
  const ofSeveral = (column) => (parts.length > 1 ? column : null);
  return table(title, [
    [cuts.length ? "part, ends after" : "part", "name", nameOf],
    isOwn && costs?.is_cluster ? ["device", "", deviceOf] : parts.some((one) => one.device) ? ["device", "mono", (one) => narrowed(one.device)] : null,
    ["nodes", "number", (one) => grouped(one.nodes)],
    ["weights", "number", (one) => exactly(size(one.weight_bytes), one.weight_bytes)],
    optional("activation_bytes", "activations", "number", (one) => exactly(leastOf(one) + size(one.activation_bytes), one.activation_bytes)),
    optional("need_bytes", parts[0].measure + (known("budget_bytes").length ? ", of budget" : ""), "meter", need),
    optional("flops", "compute", "meter", (one) => meter(html("span", { text: leastOf(one) + flop(one.flops) }), one.flops / most)),
    optional("busy_s", "time", "number", (one) => exactly(leastOf(one) + duration(one.busy_s), one.busy_s, "s")),
    ofSeveral(["vs. mean", "number", (one) => againstMean(one[load], mean)]),
    ofSeveral(["sends", "number", (one) => (one.sent.tensors ? exactly(sizeOf(one.sent), one.sent.bytes) : "–")]),
    cuts.length ? ["crosses here", "number", crosses] : null,
  ], parts);
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
  const change = against(costs, yours, plan.parts.length);
  $("#parts .lead").textContent = `Nothing is recomputed here; the command recomputes what takes less time than to receive it.${change}`;
  const devices = costs?.is_cluster ? yours.parts.map((one) => one.device) : [];
  $("#parts code").textContent = command(scene.model, cutter.dims, yours.cuts.map((cut) => profile.nodes[cut]), devices);
}

function showParts() {
  const { yours } = state;
  $(".answer").replaceChildren(...yours ? answerOf(yours) : answer);
  if (cutter) showTools(yours);
  $("#parts .scroll").replaceChildren(...shown().parts.length ? [partTable("parts", shown(), yours)] : []);
}

export function startParts() {
  showParts();
  if (!cutter) return all(".cutting, #parts .own, #compare").forEach((one) => one.remove());
  $("#back").textContent = scene.cards.length ? "Back to the plan" : "No cuts";
  if (scene.cards.length) $("#compare .scroll").append(partTable("parts of the plan", plan, false));
  const clicked = { back: stopCutting, undo, redo, "copy-cuts": ({ target }) => copyText($("#parts code"), target) };
  for (const [id, action] of Object.entries(clicked)) listen($(`#${id}`), { click: action });
  return when("cut", showParts);
}
