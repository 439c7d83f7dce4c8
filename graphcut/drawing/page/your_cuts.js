/* Your cuts: their parts, and how they compare with the plan. */

import { command } from "./commands.js";
import { cutAt, stopCutting } from "./cuts.js";
import { $, copy, html, letKeysScroll } from "./elements.js";
import { against } from "./predicted.js";
import { costs, cutter, profile, scene } from "./scene.js";
import { state, when } from "./state.js";
import { exactly, nodeLink, partTable } from "./tables.js";
import { count, grouped, sizeOf } from "./number_words.js";

/** A choice of the device of a part. */
function deviceOf(part) {
  const choice = html("select", { "aria-label": `device of ${part.name}` });
  const first = new Map(costs.devices.map((device, place) => [device.name, place]).reverse());
  for (const [name, place] of [...first].reverse()) choice.append(html("option", { value: place, text: name }));
  if (costs.devices[part.place]) choice.value = first.get(costs.devices[part.place].name);
  else choice.prepend(html("option", { value: "", text: "none left", selected: "" }));
  choice.addEventListener("change", () => {
    cutAt(state.yours.cuts, state.yours.parts.map((one, i) => (i === part.index ? Number(choice.value) : one.place)));
    document.querySelectorAll("#yours select")[part.index].focus();
  });
  return choice;
}

function showYours() {
  const { yours } = state;
  $("#yours").hidden = !yours;
  if (!yours) return;
  const { parts, times } = yours;
  const most = yours.boundaries.reduce((best, total) => (total.bytes > best.bytes ? total : best));
  const why = !costs || times ? "" : ` The cluster has ${count(costs.devices.length, "device")}: times are not known.`;
  $("#yours .lead").textContent =
    `${count(parts.length, "part")}; at most ${sizeOf(most)} crosses a boundary. Nothing is recomputed here; the command recomputes what takes less time than to receive it.${why}${against(scene, costs, yours)}`;
  const devices = costs?.is_cluster ? parts.map((one) => costs.devices[one.place]?.name) : [];
  const isPlaced = !devices.includes(undefined);
  $("#yours code").textContent = command(scene.model, cutter.dims, yours.cuts.map((cut) => profile.nodes[cut]), isPlaced ? devices : []);
  const rows = parts.map((one, index) => ({
    ...one, index, cut: yours.cuts[index], need_exact: !costs?.counting.length || one.is_exact,
    measure: scene.cards.length && scene.cards[0].measure !== "weights" ? scene.cards[0].measure : "weights and graph",
  }));
  $("#yours .scroll").replaceChildren(partTable("your cuts", rows, [
    ["part", "", (one) => one.name],
    ["ends after", "name", (one) => (one.cut === undefined ? "" : nodeLink(one.cut, profile.nodes[one.cut]))],
    costs?.is_cluster ? ["device", "", deviceOf] : null,
  ], [["crosses here", "number", ({ cut, index }) => {
    const total = yours.boundaries[index];
    return cut === undefined ? "" : exactly(`${sizeOf(total)} in ${grouped(total.tensors)}`, total.bytes, `B in ${total.tensors}`);
  }]]));
  letKeysScroll();
}

export function startCutting() {
  if (!cutter) return document.querySelectorAll(".cutting").forEach((one) => one.remove());
  $("#back").textContent = scene.cards.length ? "Back to the plan" : "No cuts";
  $("#back").addEventListener("click", stopCutting);
  $("#copy-cuts").addEventListener("click", ({ currentTarget }) => copy($("#yours code").textContent, currentTarget));
  return when("cut", showYours);
}
