// The parts of this folder are served as one module, app.js, in the order that `dashboard/mod.rs` names.
//
// Elements are made by these functions only. Names, labels and reasons become text nodes and attributes, never markup.

const $ = (selector, root = document) => root.querySelector(selector);

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An HTML element with attributes (`onclick` and the like are listeners) and children: nodes or text. */
function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
function svg(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** Sets text only if it differs, so that a screen reader and a selection are left alone. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function setClass(node, name) {
  if (node.className !== name) node.className = name;
}

/** Builds the content of a node anew only if `key` has changed, so that the focus and a selection in it last. Tells whether it did. */
function rebuild(node, key, build) {
  const text = JSON.stringify(key);
  if (node.builtFrom === text) return false;
  node.builtFrom = text;
  const focused = node.contains(document.activeElement) ? document.activeElement.dataset.act : undefined;
  node.replaceChildren(...[build()].flat().filter((child) => child !== null));
  if (focused !== undefined) $(`[data-act="${focused}"]`, node)?.focus();
  return true;
}

/** A table in a box that scrolls sideways. Columns are texts or header cells. */
function table(caption, columns, rows) {
  const head = columns.map((column) => (typeof column === "string" ? el("th", { scope: "col" }, column) : column));
  return el("div", { class: "scroll" },
    el("table", null,
      el("caption", { class: "visually-hidden" }, caption),
      el("thead", null, el("tr", null, head)),
      el("tbody", null, rows)));
}

let announced;

/** Tells the user what happened; screen readers speak it. */
function announce(text) {
  clearTimeout(announced);
  $("#status").textContent = text;
  announced = setTimeout(() => { $("#status").textContent = ""; }, 7000);
}
