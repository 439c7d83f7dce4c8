/* The address of the page: it names the cuts and what is pinned. */

import { cutAfter } from "./cuts.js";
import { linkTo, linkToCuts, readAddress, thingAt } from "./links.js";
import { pin, select } from "./panel.js";
import { costs, cutter, profile } from "./scene.js";
import { shown } from "./shown.js";
import { state, when } from "./state.js";

let writing = 0;
let address = location.hash; // as it was last written or followed

/** Writes the address when nothing has changed for a moment: browsers refuse many changes in a short time, and they take long. */
function writeLink() {
  clearTimeout(writing);
  if (window.parent === window) writing = setTimeout(writeLinkNow, 100); // the frame of a notebook has no address to share
}

function writeLinkNow() {
  if (location.hash !== address) return; // it was changed just now, and is followed next
  const { pinned, yours } = state;
  const devices = yours?.on?.map((device) => costs.devices[device]?.name ?? "");
  const words = [
    yours ? linkToCuts(yours.cuts.map((cut) => profile.nodes[cut]), devices) : "",
    pinned ? linkTo(pinned, shown().tensors, profile?.nodes) : "",
  ];
  history.replaceState(null, "", `#${words.filter(Boolean).join("&")}`);
  address = location.hash;
}

/** Cuts and pins what the address names; ignores an address that names nothing. */
function followLink() {
  address = location.hash;
  const { cuts, on, link } = readAddress(address);
  if (cuts.length && cutter) cutAfter(cuts, on);
  const thing = thingAt(link, shown().parts, shown().tensors, profile?.nodes ?? []);
  if (thing?.kind === "node") select(thing.index);
  else if (thing) pin(thing.kind, thing.index);
}

export function startAddress() {
  when("pinned", writeLink);
  when("cut", writeLink);
  followLink();
  window.addEventListener("hashchange", followLink);
}
