/* Tables. */

import { $, html, narrowed } from "./elements.js";
import { profile, select, whenCutRests } from "./shown.js";

/** A table; `columns` are [title, class, row → text or element], or null. It has roles, since one that is shown as blocks loses its own. */
export function table(title, columns, rows) {
  const shown = columns.filter((column) => column !== null);
  const row = (cells) => html("tr", { role: "row" }, ...cells);
  const group = (tag, ...content) => html(tag, { role: "rowgroup" }, ...content);
  const head = row(shown.map(([name, css]) => html("th", { role: "columnheader", scope: "col", class: css, text: name })));
  const body = rows.map((one) => row(shown.map(([name, css, cell]) => {
    const content = cell(one);
    const attributes = { role: "cell", class: css, "data-title": name || null };
    return content instanceof Element ? html("td", attributes, content) : html("td", { ...attributes, text: content });
  })));
  return html("table", { role: "table", "aria-label": title }, ...shown.some(([name]) => name) ? [group("thead", head)] : [], group("tbody", ...body));
}

/** Adds tables to a section, made when they are opened, and anew for other cuts. */
export function asTable(id, title, make) {
  const place = html("div", { class: "scroll", tabindex: 0 });
  const fill = () => place.replaceChildren(...details.open ? make() : []);
  const details = html("details", { on: { toggle: fill } }, html("summary", {}, title), place);
  $(`#${id}`).append(details);
  whenCutRests(fill);
}

/** A node of the profile that a click chooses; the arrow keys step from there. */
export function nodeLink(index, name) {
  const choose = () => {
    select(index);
    $("#profile .plot").focus({ preventScroll: true });
    $("#profile").scrollIntoView({ block: "nearest" });
  };
  return html("button", { class: "link", title: profile.nodes[index], on: { click: choose } }, narrowed(name));
}
