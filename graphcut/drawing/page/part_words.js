/* What the page says of a part. */

import { duration, leastOf, sizeLike } from "./number_words.js";

export const isOver = (part) => part.budget_bytes !== null && part.need_bytes > part.budget_bytes;
export const needOf = (part) => (part.need_exact ? "" : "≥ ") + sizeLike(part.need_bytes, part.budget_bytes);
export const titleOf = (part) => (part.content ? `${part.name} · ${part.content}` : part.name);

/** Its time and its memory, as far as they are known. */
export const figuresOf = (part) => [(part.busy_s ?? null) === null ? "" : leastOf(part) + duration(part.busy_s), part.need_bytes >= 0 ? needOf(part) : ""].filter(Boolean);

/** A colour for each part: neighbours differ. */
export const colourOf = (index) => `hsl(${(215 + 137.5 * index) % 360} 60% 50%)`;
