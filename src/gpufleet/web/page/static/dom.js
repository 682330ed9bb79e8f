/** Elements of the page. Every text becomes a text node: nothing is parsed as HTML. */

const SVG = "http://www.w3.org/2000/svg";
const UNPRINTABLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;

/** Maximum length of a text from outside. */
const LONGEST = 240;

/**
 * Create an HTML element. `on` of the attributes has listeners by event type. Attributes and children that are null,
 * undefined or false are left out.
 */
export function element(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Create an SVG element; as `element`. */
export function shape(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "on") {
      for (const [type, listener] of Object.entries(value)) node.addEventListener(type, listener);
    } else {
      node.setAttribute(key, value === true ? "" : String(value));
    }
  }
  node.append(...present(children));
  return node;
}

function present(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

/** Return a text from outside with `?` for characters without a shape, such as direction marks, and at most 240 characters. */
export function printable(text) {
  const shown = String(text).replace(UNPRINTABLE, "?");
  return shown.length <= LONGEST ? shown : `${shown.slice(0, LONGEST - 1)}…`;
}

/** Create an element for a text from outside. Its direction does not affect the text around it. */
export function foreign(text) {
  return element("bdi", null, printable(text));
}

/** Replace the children of a container. Open details and the focus stay, if they have the same `data-key`. */
export function replace(container, ...children) {
  const open = new Map();
  for (const one of container.querySelectorAll("details[data-key]")) open.set(one.dataset.key, one.open);
  const active = document.activeElement;
  const focused = container.contains(active) ? active.dataset.key : undefined;
  container.replaceChildren(...present(children));
  for (const one of container.querySelectorAll("details[data-key]")) {
    if (open.has(one.dataset.key)) one.open = open.get(one.dataset.key);
  }
  if (focused !== undefined) {
    container.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }
}

/** Create details whose content is built when they are opened. */
export function lazyDetails(key, summary, build) {
  const details = element(
    "details",
    { "data-key": key },
    element("summary", { "data-key": `${key} summary` }, summary),
  );
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) details.append(build());
  });
  return details;
}

/** Create a section with a heading. */
export function section(title, ...children) {
  return element("section", null, element("h2", null, title), ...children);
}

/** Create a table that scrolls in its own region. `rows` are arrays of cells; the first cell of a row is its header. */
export function table(label, columns, rows) {
  const head = columns.map((name) => element("th", { scope: "col" }, name));
  const body = rows.map(([first, ...others]) =>
    element("tr", null, element("th", { scope: "row" }, first), ...others.map((cell) => element("td", null, cell))),
  );
  return element(
    "div",
    { class: "scroll", role: "region", "aria-label": label, tabindex: 0, "data-key": `table ${label}` },
    element("table", null, element("thead", null, element("tr", null, head)), element("tbody", null, body)),
  );
}

/** Create a description list of [name, content] pairs; pairs without content are left out. */
export function facts(pairs) {
  const shown = pairs.filter(([, content]) => content !== null && content !== undefined && content !== "");
  return element(
    "dl",
    { class: "facts" },
    shown.map(([name, content]) => element("div", null, element("dt", null, name), element("dd", null, content))),
  );
}

/** Create a labelled list of choices; an empty value is shown as `all`. `listener` gets the chosen value. */
export function select(label, key, values, current, listener) {
  const options = values.map((value) =>
    element("option", { value, selected: value === current }, value === "" ? "all" : printable(value)),
  );
  const box = element("select", { "data-key": key, on: { change: (event) => listener(event.target.value) } }, options);
  return element("label", null, `${label} `, box);
}
