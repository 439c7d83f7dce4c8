/* Imported before the modules of the page, which read what it opens. */

import { analyzed } from "./scenes.mjs";
import { openPage } from "./stand_in.mjs";

openPage(analyzed);
