"use strict";
// Prints what the view "Ledger" shows for a list of responses of /status: `node page_shown.js < RESPONSES`.
// A marked cell ends in `!`.
const fs = require("fs");
const path = require("path");
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
const cell = ({ textContent, className }) => textContent + (className ? "!" : "");
// Node.js needs absolute addresses of modules.
const module_ = (name, replace = (text) => text) => {
  const text = replace(fs.readFileSync(path.join(__dirname, "page", name), "utf8"));
  return `data:text/javascript;base64,${Buffer.from(text).toString("base64")}`;
};
const ledger = module_("ledger.js", (text) => text.replace("./common.js", module_("common.js")));
import(ledger).then(({ update }) => {
  for (const answer of JSON.parse(fs.readFileSync(0, "utf8"))) update(answer);
  for (const part of ids.tables.children) {
    if (part.tag === "table") for (const row of part.children) console.log(row.children.map(cell).join(" | "));
    else console.log(`${part.tag === "h2" ? "# " : ""}${cell(part)}`);
  }
});
