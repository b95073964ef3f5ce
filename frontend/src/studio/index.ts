// The studio's page.

import coreStyle from "../core/style.css";
import { html, render } from "../core/html";
import { adopt } from "../views/sheet";
import { Studio } from "./app";
import style from "./style.css";

adopt(document, coreStyle);
adopt(document, style);
const place = document.getElementById("studio")!;
place.textContent = "";
render(html`<${Studio} />`, place);
