// Elements made from data. Text becomes text nodes and never markup, whatever it says.

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

let numFields = 0;

function choice(label, options, value, onchange) {
  const id = `field-${++numFields}`;
  const select = el("select", { id, onchange: () => onchange(select.value) });
  for (const [key, text] of options) select.append(el("option", { value: key, selected: key === value }, text));
  return el("div", { class: "field" }, el("label", { for: id }, label), select);
}

function check(label, value, onchange) {
  const box = el("input", { type: "checkbox", checked: value, onchange: () => onchange(box.checked) });
  return el("label", { class: "check" }, box, label);
}

let numTables = 0;

function tableOf({ title, columns, rows, notes = [], numeric = [], tall = false }) {
  const kind = (text, column) => (numeric[column] ? "number" : text.length > 40 ? "long" : null);
  const id = `table-${++numTables}`;
  const head = el("tr", {}, columns.map((text, column) => el("th", { scope: "col", class: kind(text, column) }, text)));
  const body = rows.map((row) => el("tr", {}, row.map((cell, column) =>
    column === 0 ? el("th", { scope: "row", class: kind(cell, 0) }, cell) : el("td", { class: kind(cell, column) }, cell))));
  return el("div", { class: "table" },
    title ? el("p", { class: "caption", id }, title) : null,
    el("div", { class: tall ? "scroll tall" : "scroll", tabindex: 0, role: "region",
      ...(title ? { "aria-labelledby": id } : { "aria-label": columns.filter(Boolean).join(", ") }) },
      el("table", {}, el("thead", {}, head), el("tbody", {}, body))),
    notes.map((note) => el("p", { class: "note" }, note)));
}

function copyButton(text, what) {
  const button = el("button", { type: "button", "aria-label": `Copy ${what}` }, "Copy");
  button.addEventListener("click", async () => {
    const done = await copied(text);
    button.textContent = done ? "Copied" : "Press Ctrl-C";
    say(done ? `${what} copied` : "The text is selected: press Ctrl-C");
    if (!done) getSelection().selectAllChildren(button.previousSibling);
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  return button;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // no permission, or a page that the browser does not trust with the clipboard
  }
}

const commandLine = (text, what) => el("div", { class: "command" }, el("pre", {}, text), copyButton(text, what));

function say(text) {
  document.getElementById("spoken").textContent = text;
}

// Numbers as people read them.

function format(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
  return String(Number(value.toPrecision(size >= 1e4 ? 6 : 4)));
}

const isShare = (metric) => metric.includes("accuracy");
const formatMetric = (metric, value) =>
  isShare(metric) && value !== null && Number.isFinite(value) ? `${(100 * value).toFixed(2)} %` : format(value);
const titled = (metric) => metric.replaceAll("_", " ");
const plural = (count, one, many) => `${count} ${count === 1 ? one : many || one + "s"}`;
