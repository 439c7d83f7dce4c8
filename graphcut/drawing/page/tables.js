/* Tables. */

import { $, button, html } from "./elements.js";
import { profile, select, when } from "./shown.js";
import { shortened, visible } from "./words.js";

export const MAX_ROWS = 1000;

/** A table; `columns` are [title, class, row → text or element], or null. It has roles, since one that is shown as blocks loses its own. */
export function table(title, columns, rows) {
  const shown = columns.filter((column) => column !== null);
  const row = (cells) => html("tr", { role: "row" }, ...cells);
  const group = (tag, ...content) => html(tag, { role: "rowgroup" }, ...content);
  const head = row(shown.map(([name, css]) => html("th", { role: "columnheader", scope: "col", class: css, text: name })));
  const short = shown.map(([, css, cell]) => (css.includes("clip") ? shortened(rows.map((one) => visible(cell(one))), 24) : null));
  const body = rows.map((one, i) => row(shown.map(([name, css, cell], column) => {
    const content = cell(one);
    const attributes = { role: "cell", class: css, "data-title": name || null, title: short[column] ? content : null };
    return content instanceof Element ? html("td", attributes, content) : html("td", { ...attributes, text: short[column]?.[i] ?? content });
  })));
  return html("table", { role: "table", "aria-label": title }, ...shown.some(([name]) => name) ? [group("thead", head)] : [], group("tbody", ...body));
}

/** Gives a chart its tables, made when they are opened, and anew for other cuts; gives what makes them anew. */
export function asTable(id, make) {
  const place = html("div", { class: "scroll", tabindex: 0 });
  const fill = () => place.replaceChildren(...details.open ? make() : []);
  const details = html("details", { class: "table", on: { toggle: fill } }, html("summary", {}, "As a table"), place);
  ($(`#${id} .folds`) ?? $(`#${id}`)).append(details);
  when("cut", () => { if (details.open) fill(); });
  return fill;
}

/** A node of the profile that a click chooses; the arrow keys step from there. */
export const nodeLink = (index, text) => button({ class: "link", text, title: profile.nodes[index] }, () => {
  select(index);
  $("#profile .plot").focus({ preventScroll: true });
  $("#profile").scrollIntoView({ block: "nearest" });
});
