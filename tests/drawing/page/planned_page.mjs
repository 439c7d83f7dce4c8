/* Imported before the modules of the page, which read what it opens. */

import { graph, planned } from "./scenes.mjs";
import { openPage } from "./stand_in.mjs";

openPage(planned, { graph });
