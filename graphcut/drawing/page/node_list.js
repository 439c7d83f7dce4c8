/* The list of nodes; only the visible rows are in the page. */

import { aliveAt } from "./cuts.js";
import { $, html, inLine, onKeys } from "./elements.js";
import { shortOperator } from "./names.js";
import { select } from "./panel.js";
import { cutter, profile } from "./scene.js";
import { partIn, shown } from "./shown.js";
import { state, when, whenCutRests } from "./state.js";
import { count, grouped } from "./number_words.js";

const list = $("#list");
const ROW_HEIGHT = 22;
let hits = null;
let lowerCase = null;
let chosen = -1;

const hitCount = () => (hits === null ? profile.nodes.length : hits.length);
const hitAt = (row) => (hits === null ? row : hits[row]);

function rowElement(row) {
  const index = hitAt(row);
  const { nodes, ops } = profile;
  const texts = [grouped(index + 1), shortOperator(ops[index]), "", aliveAt(index), shown().parts[partIn(index)]?.name ?? ""];
  const element = html("div", {
    class: "node", role: "option", id: `row${row}`, title: `${nodes[index]} · ${ops[index]}`,
    "aria-posinset": row + 1, "aria-setsize": hitCount(), "aria-selected": state.at === index,
  }, ...texts.map((text) => html("span", { text })));
  const name = inLine("bdi", null, nodes[index]);
  name.setAttribute("dir", "ltr");
  element.children[2].append(name);
  element.style.top = `${row * ROW_HEIGHT}px`;
  element.addEventListener("click", () => { chosen = row; select(index); });
  return element;
}

export function drawRows() {
  if (!profile) return;
  const first = Math.max(0, Math.floor(list.scrollTop / ROW_HEIGHT) - 4);
  const last = Math.min(hitCount(), first + Math.ceil(list.clientHeight / ROW_HEIGHT) + 8);
  const rows = [];
  for (let row = first; row < last; row += 1) rows.push(rowElement(row));
  const space = html("div");
  space.style.height = `${hitCount() * ROW_HEIGHT}px`;
  list.replaceChildren(space, ...rows);
  if (chosen >= first && chosen < last) list.setAttribute("aria-activedescendant", `row${chosen}`);
  else list.removeAttribute("aria-activedescendant");
}

function search(words) {
  const wanted = words.trim().toLowerCase();
  lowerCase ??= profile.nodes.map((name, i) => `${profile.ops[i]} ${name}`.toLowerCase());
  hits = wanted ? [...lowerCase.keys()].filter((i) => lowerCase[i].includes(wanted)) : null;
  chosen = -1;
  list.scrollTop = 0;
  showHitCount();
  drawRows();
}

function showHitCount() {
  const all = count(profile.nodes.length, "node");
  $("#found").textContent = hits === null ? all : `${grouped(hits.length)} of ${all}`;
}

function choose(row) {
  if (!hitCount()) return;
  chosen = Math.max(0, Math.min(hitCount() - 1, row));
  const top = chosen * ROW_HEIGHT;
  if (top < list.scrollTop) list.scrollTop = top;
  if (top + ROW_HEIGHT > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW_HEIGHT - list.clientHeight;
  select(hitAt(chosen));
}

export function startNodes() {
  if (!profile?.nodes.length) return;
  $("#nodes").hidden = false;
  if (!profile.parts.length && !cutter) $("#nodes .titles span:last-child").textContent = "";
  showHitCount();
  when("chosen", drawRows);
  whenCutRests(drawRows);
  list.addEventListener("scroll", drawRows, { passive: true });
  $("#search").addEventListener("input", (event) => search(event.target.value));
  const enterList = () => { list.focus(); choose(0); };
  onKeys($("#search"), { Enter: enterList, ArrowDown: enterList });
  const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12, Home: -Infinity, End: Infinity };
  onKeys(list, Object.fromEntries(Object.entries(moves).map(([key, by]) => [key, () => choose(chosen + by)])));
}
