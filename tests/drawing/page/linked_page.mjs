/* The same page by a link. */

import { FAST, MARKUP, graph, planned } from "./scenes.mjs";
import { openPage } from "./stand_in.mjs";

openPage(planned, { graph, hash: `#${new URLSearchParams([["cut", MARKUP], ["on", FAST], ["on", "pi"], ["node", MARKUP]])}` });
