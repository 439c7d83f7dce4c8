/* The dependency maps as a matrix. */

import { $, html, inLine } from "./elements.js";
import { kindOf, matrixOf } from "./flows.js";
import { listed, shortened, visible } from "./names.js";
import { fillPanel, showPinned } from "./panel.js";
import { kinds, scene } from "./scene.js";
import { state, whenCutRests } from "./state.js";
import { count, grouped, sizeOf } from "./number_words.js";

const FEW_COLUMNS = matchMedia("(max-width: 640px)").matches ? 5 : 8; // with room for the bytes in each cell

function matrixCell({ names: titles }, cell) {
  const title = `${titles[cell.source]} → ${titles[cell.readers[0]]}`;
  const what = `${sizeOf(cell)}, ${count(cell.tensors.length, "tensor")}; ${kindOf(cell)}`;
  const isText = titles.length <= FEW_COLUMNS;
  const button = html("button", {
    class: kinds[kindOf(cell)][1], title: `${title}: ${what}`, "aria-label": `${title}: ${what}`,
    text: isText ? sizeOf(cell) : "",
  });
  button.style.setProperty("--share", `${isText ? 12 + 20 * cell.share : 30 + 70 * cell.share}%`);
  const peek = () => fillPanel(title, [
    ["size", sizeOf(cell)],
    ["kind", kinds[kindOf(cell)][0]],
    ["tensors", grouped(cell.tensors.length)],
    ["names", listed(cell.tensors)],
  ]);
  for (const event of ["pointerenter", "focus", "click"]) button.addEventListener(event, peek);
  for (const event of ["pointerleave", "blur"]) button.addEventListener(event, showPinned);
  return html("td", { role: "cell" }, button);
}

function showMatrix(matrix) {
  const at = new Map(matrix.cells.map((cell) => [`${cell.source} ${cell.readers[0]}`, cell]));
  const short = shortened(matrix.names.map(visible), 26);
  const body = matrix.names.map((name, row) => html("tr", { role: "row" },
    html("th", { role: "rowheader", scope: "row", title: name }, inLine("bdi", null, short[row])),
    ...matrix.names.map((_, column) => {
      if (column === row) return html("td", { role: "cell", class: "own", text: row });
      const cell = at.get(`${row} ${column}`);
      return cell ? matrixCell(matrix, cell) : html("td", { role: "cell" });
    })));
  $("#matrix").hidden = !matrix.cells.length;
  $("#matrix .scroll").replaceChildren(
    html("table", { role: "table", "aria-label": "dependency maps" }, html("tbody", { role: "rowgroup" }, ...body)));
}

export function startMatrix() {
  const show = () => showMatrix(state.yours ? matrixOf(state.yours) : scene.matrix);
  show();
  whenCutRests(show);
}
