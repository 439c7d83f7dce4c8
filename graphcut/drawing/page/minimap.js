/* A small picture of the whole graph that is drawn, with what is in sight of it. */

import { $ } from "./elements.js";
import { colourOf } from "./part_words.js";

const MOST = { width: 150, height: 110 };
let drawn = null; // the boxes, their extent, and the zoom

export function drawMinimap(picture = drawn) {
  drawn = picture;
  const [place, canvas] = [$("#graph .boxes"), $("#graph .minimap")];
  const { boxes, width, height, zoom } = drawn;
  canvas.hidden = place.scrollWidth <= place.clientWidth && place.scrollHeight <= place.clientHeight;
  if (canvas.hidden) return;
  const scale = Math.min(MOST.width / width, MOST.height / height);
  Object.assign(canvas, { width: Math.max(20, width * scale), height: Math.max(20, height * scale) });
  const context = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  for (const box of boxes) {
    context.fillStyle = box.part === undefined ? style.getPropertyValue("--muted") : colourOf(box.part);
    context.fillRect((box.x - box.width / 2) * scale, box.y * scale, Math.max(1, box.width * scale), Math.max(1, box.height * scale));
  }
  context.strokeStyle = style.getPropertyValue("--pick");
  context.lineWidth = 2;
  const inSight = [place.scrollLeft, place.scrollTop, place.clientWidth, place.clientHeight].map((pixels) => (pixels / zoom) * scale);
  context.strokeRect(...inSight);
}

export function startMinimap() {
  const [place, canvas] = [$("#graph .boxes"), $("#graph .minimap")];
  place.addEventListener("scroll", () => drawMinimap(), { passive: true });
  const go = ({ offsetX, offsetY, buttons }) => {
    if (!buttons) return;
    const scale = drawn.zoom / Math.min(MOST.width / drawn.width, MOST.height / drawn.height);
    place.scrollTo(offsetX * scale - place.clientWidth / 2, offsetY * scale - place.clientHeight / 2);
  };
  for (const event of ["pointerdown", "pointermove"]) canvas.addEventListener(event, go);
}
