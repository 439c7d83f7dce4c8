/* Names of nodes, tensors and parts, which come from models and may be anything. */

import { grouped } from "./number_words.js";

/** Makes characters visible that show nothing or change the direction of text: two names must not look the same. */
export const visible = (text) =>
  String(text).toWellFormed().replace(/[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, "\ufffd");

/** The operator without its domain. */
export const shortOperator = (name) => name.replace(/^.*[.:]/, "");

export const shortPart = (name) => name.replace(/\.onnx$/, "");

export const listed = (items) =>
  items.length <= 8 ? items.join(", ") : `${items.slice(0, 8).join(", ")} and ${grouped(items.length - 8)} more`;
