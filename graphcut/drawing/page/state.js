/* What the reader changes in the page, and who is told of it. */

export const state = {
  pinned: null, // the thing in the panel: its kind and its index
  at: null, // the chosen node of the profile
  drag: null, // what the pointer drags in the profile
  yours: null, // what `predicted` gives while the reader cuts
};

const listeners = { pinned: [], chosen: [], cut: [] };

/** Calls `listener` after each change of one kind, in the order in which listeners were added. */
export const when = (change, listener) => listeners[change].push(listener);

export const tell = (change) => listeners[change].forEach((listener) => listener());

const REST_MS = 120;

/** Calls a function after a change of the cuts: while a cut is dragged only when it rests. For what is below the fold, and takes long. */
export function whenCutRests(listener) {
  let waiting = 0;
  when("cut", () => {
    clearTimeout(waiting);
    if (state.drag) waiting = setTimeout(listener, REST_MS);
    else listener();
  });
}
