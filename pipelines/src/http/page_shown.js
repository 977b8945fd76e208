"use strict";
// Prints what page.html shows for a list of responses of /status: `node page_shown.js PAGE < RESPONSES`.
// A marked cell ends in `!`.
const fs = require("fs");
class Element {
  constructor(tag) { Object.assign(this, { tag, children: [], textContent: "", className: "" }); }
  append(child) { this.children.push(child); }
  replaceChildren(...children) { this.children = children; }
}
const ids = {};
globalThis.document = {
  createElement: (tag) => new Element(tag),
  getElementById: (id) => (ids[id] ??= new Element("span")),
};
const answers = JSON.parse(fs.readFileSync(0, "utf8"));
globalThis.fetch = async () => ({ json: async () => answers.shift() });
const cell = ({ textContent, className }) => textContent + (className ? "!" : "");
globalThis.setTimeout = (update) => {
  if (answers.length) return update();
  console.log(cell(ids.state));
  for (const part of ids.tables.children) {
    if (part.tag === "table") for (const row of part.children) console.log(row.children.map(cell).join(" | "));
    else console.log(`${part.tag === "h2" ? "# " : ""}${cell(part)}`);
  }
};
const page = fs.readFileSync(process.argv[2], "utf8");
(0, eval)(page.match(/<script>([^]*)<\/script>/)[1]);
