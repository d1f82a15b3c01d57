"use strict";
// The facts are in the page; everything here shows them. Text is only ever set as text, because
// names come from files that anybody may have written.

const facts = JSON.parse(document.getElementById("facts").textContent);
const { graph, profile } = facts;
const nodes = graph.nodes;

const ORIGINS = {
  hand: ["--hand", "a rule of graphgrad's"],
  derived: ["--derived", "derived"],
  user: ["--user", "a rule of the user's"],
  missing: ["--missing", "missing"],
  nondifferentiable: ["--nondifferentiable", "ends here: not differentiable"],
  "not needed": ["--unneeded", "not needed"],
  folded: ["--folded", "nothing left to compute"],
};

// ---- small helpers

const byId = (id) => document.getElementById(id);

/** An HTML element; `content` is text, elements, or both. */
function element(tag, attributes = {}, ...content) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...content);
  return made;
}

/** An SVG element. */
function shape(tag, attributes = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}

const milliseconds = (seconds) => `${(1e3 * seconds).toFixed(3)} ms`;
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(2)} MB`;
const phaseClass = (phase) =>
  ["forward", "backward", "update"].find((name) => phase.startsWith(name)) ?? "other";

/** A table; a cell is text, an element, or a number that is shown as it is. */
function table(header, rows) {
  const cells = (tag, row) =>
    row.map((cell) => element(tag, typeof cell === "number" ? { class: "number" } : {}, cell));
  const line = (tag, row) => element("tr", {}, ...cells(tag, row));
  return element("table", {}, line("th", header), ...rows.map((row) => line("td", row)));
}

const nodeLink = (number) => {
  const link = element("button", { class: "link" }, nodes[number].name);
  link.addEventListener("click", () => choose(number));
  return link;
};

/** A bar as long as its share of the largest. */
function bar(value, largest, phase = "") {
  const made = element("span", { class: `share ${phaseClass(phase)}` });
  made.style.width = `${(160 * value) / (largest || 1)}px`;
  return made;
}

// ---- colors

const figuresOf = {
  origin: () => null,
  time: (number) => profile?.node_seconds[number] ?? 0,
  memory: (number) => profile?.node_bytes[number] ?? 0,
};
const textOf = {
  time: (seconds) => `${(1e3 * seconds).toPrecision(3)} ms`,
  memory: (bytes) => `${(bytes / 1e6).toPrecision(3)} MB`,
};

/** From white over orange to red; the root shows small figures beside large ones. */
function heat(share) {
  const t = Math.sqrt(share);
  return `hsl(${45 - 40 * t} 95% ${96 - 38 * t}%)`;
}

function colorNodes(mode) {
  const figures = nodes.map((_, number) => figuresOf[mode](number));
  const largest = Math.max(0, ...figures);
  nodes.forEach((node, number) => {
    if (node.kind !== "node") return;
    const box = drawn[number];
    const share = figures[number] / (largest || 1);
    const fill = mode === "origin" ? `var(${ORIGINS[node.origin][0]})` : heat(share);
    box.querySelector("rect").style.fill = fill;
    box.querySelector(".figure").textContent = figures[number] ? textOf[mode](figures[number]) : "";
  });
  const legend = mode === "origin" ? originLegend() : heatLegend(mode, largest);
  byId("legend").replaceChildren(...legend);
}

function originLegend() {
  const used = Object.keys(ORIGINS).filter((origin) => nodes.some((n) => n.origin === origin));
  return used.flatMap((origin) => {
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = `var(${ORIGINS[origin][0]})`;
    return [swatch, ORIGINS[origin][1]];
  });
}

function heatLegend(mode, largest) {
  if (!profile) return [facts.why_no_profile];
  const scale = element("span", { class: "heat" });
  const stops = [0, 0.05, 0.25, 0.5, 1].map((share) => `${heat(share)} ${100 * share}%`);
  scale.style.background = `linear-gradient(to right, ${stops})`;
  const what =
    mode === "time"
      ? "of the kernels that a node is in, also where it shares them"
      : "computed for a node, in use at the peak";
  return ["0", scale, textOf[mode](largest), " ", element("span", { class: "faint" }, what)];
}

// ---- the graph

const [boxWidth, boxHeight] = graph.box;
const MARGIN = 20;
let zoom = 1;
const drawn = [];
const edges = [];
const picture = shape("svg", {
  viewBox: `${-MARGIN} 0 ${graph.width + 2 * MARGIN} ${graph.height}`,
});

/** The way of an edge: from box to box, straight down its lanes in the layers that it passes. */
function way(source, target, lanes) {
  const [x, y] = nodes[source].place;
  const [targetX, targetY] = nodes[target].place;
  const half = boxHeight / 2;
  const parts = [`M${x} ${y + half}`];
  const curve = (fromX, fromY, toX, toY) => {
    const middle = (fromY + toY) / 2;
    parts.push(`C${fromX} ${middle} ${toX} ${middle} ${toX} ${toY}`);
  };
  let [lastX, lastY] = [x, y + half];
  lanes.forEach((lane, index) => {
    const center = y + graph.row * (index + 1);
    if (lane === lastX) parts.push(`V${center - half}`);
    else curve(lastX, lastY, lane, center - half);
    parts.push(`V${center + half}`);
    [lastX, lastY] = [lane, center + half];
  });
  curve(lastX, lastY, targetX, targetY - half);
  return parts.join("");
}

/** Text of at most so many characters; of names the end tells most. */
const beginning = (text, most) => (text.length <= most ? text : `${text.slice(0, most - 1)}…`);
const end = (text, most) => (text.length <= most ? text : `…${text.slice(1 - most)}`);

function drawGraph() {
  for (const [source, target, lanes] of graph.edges) {
    const path = shape("path", { d: way(source, target, lanes) });
    edges.push({ source, target, path });
    picture.append(path);
  }
  nodes.forEach((node, number) => {
    const [x, y] = node.place;
    const group = shape("g", {
      class: `node ${node.kind}`,
      transform: `translate(${x - boxWidth / 2} ${y - boxHeight / 2})`,
    });
    group.append(
      shape("title", {}, `${node.op} ${node.name}`),
      shape("rect", { width: boxWidth, height: boxHeight }),
      shape("text", { class: "op", x: 8, y: 15 }, beginning(node.op, 19)),
      shape("text", { class: "name", x: 8, y: 29 }, end(node.name, 34)),
      shape("text", { class: "figure", x: boxWidth - 7, y: 15 }),
    );
    group.addEventListener("click", () => choose(number, false));
    drawn.push(group);
    picture.append(group);
  });
  byId("graph").append(picture);
  setZoom(1);
  if (nodes.length) byId("graph").scrollLeft = nodes[0].place[0] - byId("graph").clientWidth / 2;
}

/** Zoom; the point of the view at (x, y) stays where it is. */
function setZoom(value, x = byId("graph").clientWidth / 2, y = byId("graph").clientHeight / 2) {
  const view = byId("graph");
  const before = [(view.scrollLeft + x) / zoom, (view.scrollTop + y) / zoom];
  zoom = Math.min(3, Math.max(0.03, value));
  picture.setAttribute("width", (graph.width + 2 * MARGIN) * zoom);
  picture.setAttribute("height", graph.height * zoom);
  view.scrollLeft = before[0] * zoom - x;
  view.scrollTop = before[1] * zoom - y;
}

function fit() {
  const view = byId("graph");
  const wide = view.clientWidth / (graph.width + 2 * MARGIN);
  setZoom(Math.min(1, wide, view.clientHeight / graph.height));
}

function listenToGraph() {
  const view = byId("graph");
  byId("smaller").addEventListener("click", () => setZoom(zoom / 1.3));
  byId("larger").addEventListener("click", () => setZoom(zoom * 1.3));
  byId("fit").addEventListener("click", fit);
  view.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // scrolls
      event.preventDefault();
      const { left, top } = view.getBoundingClientRect();
      setZoom(zoom * Math.exp(-event.deltaY / 300), event.clientX - left, event.clientY - top);
    },
    { passive: false },
  );
  view.addEventListener("pointermove", (event) => {
    if (event.buttons !== 1 || event.pointerType === "touch") return;
    view.scrollLeft -= event.movementX;
    view.scrollTop -= event.movementY;
  });
}

// ---- the chosen node

function choose(number, show = true) {
  drawn.forEach((group, other) => group.classList.toggle("chosen", other === number));
  for (const { source, target, path } of edges) {
    path.classList.toggle("near", source === number || target === number);
  }
  if (show) drawn[number].scrollIntoView({ block: "center", inline: "center" });
  history.replaceState(null, "", `#${encodeURIComponent(nodes[number].name)}`);
  describe(number);
}

/** Choose the node that the address names behind its #, if it names one. */
function chooseLinked() {
  const linked = nodes.findIndex((node) => `#${encodeURIComponent(node.name)}` === location.hash);
  if (linked >= 0) choose(linked);
}

function describe(number) {
  const node = nodes[number];
  const list = (title, entries) =>
    entries.length
      ? [element("h3", {}, title), element("ul", {}, ...entries.map((e) => element("li", {}, e)))]
      : [];
  const calls = new Map(node.calls.map((call) => [call.join(), call]));
  const kernels = (profile?.kernels ?? []).filter((kernel) => kernel.nodes.includes(number));
  const bytes = figuresOf.memory(number);
  byId("details").replaceChildren(
    element("h3", {}, node.name),
    element("p", {}, node.op, node.origin && `; gradient: ${ORIGINS[node.origin][1]}`),
    ...list(
      "becomes",
      [...calls.values()].map(([op, origin, reason]) => `${op}: ${origin}${reason && ", "}${reason}`),
    ),
    ...list("results", node.types),
    ...list("weights and statistics", node.params.map(describeWeight)),
    ...list("reads", edges.filter((e) => e.target === number).map((e) => nodeLink(e.source))),
    ...list("read by", edges.filter((e) => e.source === number).map((e) => nodeLink(e.target))),
    ...list(
      "kernels",
      kernels.map(
        (kernel) =>
          `${milliseconds(kernel.seconds)}, ${kernel.phase}: ${kernel.op_class}` +
          (kernel.nodes.length > 1 ? ` (and ${kernel.nodes.length - 1} more)` : ""),
      ),
    ),
    ...(bytes ? [element("p", {}, `${megabytes(bytes)} of it in use at the peak`)] : []),
  );
}

function describeWeight(name) {
  const entry = facts.untrained.find((other) => other.name === name);
  return entry ? `${name}: does not train (${entry.reason})` : name;
}

// ---- search

let found = [];
let position = 0;

function search(text) {
  const wanted = text.trim().toLowerCase();
  const holds = (node) =>
    [node.name, node.op, ...node.params, ...node.types].some((part) =>
      part.toLowerCase().includes(wanted),
    );
  found = wanted ? nodes.flatMap((node, number) => (holds(node) ? [number] : [])) : [];
  drawn.forEach((group, number) =>
    group.classList.toggle("dim", Boolean(wanted) && !found.includes(number)),
  );
  position = 0;
  showMatch();
  byId("matches").textContent = wanted ? `${found.length} of ${nodes.length}` : "";
}

function showMatch() {
  if (found.length) choose(found[position % found.length]);
}

function listenToSearch() {
  byId("search").addEventListener("input", (event) => search(event.target.value));
  byId("search").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    position += event.shiftKey ? found.length - 1 : 1;
    showMatch();
  });
}

// ---- the memory timeline

const CHART = { width: 1400, height: 240, left: 64, bottom: 18 };

function drawMemory() {
  const section = byId("memory");
  const memory = profile?.memory;
  if (!memory || !memory.tensors.length) return nothing(section, "not known");
  const count = memory.tensors.length;
  const totals = memory.tensors.map((bytes, call) => bytes + memory.scratch[call]);
  const highest = Math.max(...totals) || 1;
  const bottom = CHART.height - CHART.bottom;
  const x = (call) => CHART.left + ((CHART.width - CHART.left) * call) / count;
  const y = (bytes) => bottom - (bottom - 14) * (bytes / highest);
  const area = (values) => {
    const steps = values.map((bytes, call) => `V${y(bytes)}H${x(call + 1)}`);
    return `M${x(0)} ${bottom}${steps.join("")}V${bottom}Z`;
  };
  const chart = shape("svg", { viewBox: `0 0 ${CHART.width} ${CHART.height}` });
  chart.append(
    shape("path", { class: "scratch", d: area(totals) }),
    shape("path", { class: "tensors", d: area(memory.tensors) }),
    shape("path", { class: "arguments", d: `M${x(0)} ${y(memory.arguments)}H${CHART.width}` }),
    shape("text", { x: 0, y: y(highest) + 4 }, megabytes(highest)),
    shape("text", { x: 0, y: y(memory.arguments) + 4 }, megabytes(memory.arguments)),
  );
  const kernelOf = new Map(profile.kernels.map((kernel) => [kernel.call, kernel]));
  for (let call = 0; call < count; call++) {
    const phase = phaseClass(kernelOf.get(call)?.phase ?? "");
    const place = { x: x(call), y: bottom + 3, width: x(1) - x(0), height: 8 };
    chart.append(shape("rect", { class: phase, ...place }));
  }
  const cursor = shape("line", { class: "cursor", y1: 0, y2: bottom });
  chart.append(cursor);
  const told = element("p", { class: "faint" });
  const tell = (call) => {
    const kernel = kernelOf.get(call);
    cursor.setAttribute("x1", x(call + 0.5));
    cursor.setAttribute("x2", x(call + 0.5));
    told.textContent =
      `kernel ${call + 1} of ${count}${call === memory.peak ? ", the peak" : ""}: ` +
      `${megabytes(totals[call])}, of which ${megabytes(memory.scratch[call])} held by the ` +
      `kernel itself; ${kernel.op_class}, ${kernel.phase}, ${milliseconds(kernel.seconds)}: ` +
      kernel.nodes.map((number) => nodes[number].name).join(", ");
  };
  const callAt = (event) => {
    const { left, width } = chart.getBoundingClientRect();
    const along = ((event.clientX - left) / width) * CHART.width - CHART.left;
    const call = Math.floor((along / (CHART.width - CHART.left)) * count);
    return Math.max(0, Math.min(count - 1, call));
  };
  chart.addEventListener("pointermove", (event) => tell(callAt(event)));
  chart.addEventListener("click", (event) => {
    const [first] = kernelOf.get(callAt(event)).nodes;
    if (first !== undefined) choose(first);
  });
  tell(memory.peak);
  section.append(
    element(
      "p",
      { class: "faint" },
      "Tensors in use at each kernel, what kernels hold for themselves (red), and the arguments ",
      "of the step (dashed). Below: ",
      ...["forward", "backward", "update"].flatMap((phase) => [
        element("span", { class: `swatch ${phase}` }),
        phase,
      ]),
    ),
    chart,
    told,
    atPeak(memory, kernelOf),
  );
}

function atPeak(memory, kernelOf) {
  const rows = memory.at_peak.map(({ name, bytes, kind, call }) => {
    const kernel = kernelOf.get(call);
    const place = kernel?.nodes.length ? nodeLink(kernel.nodes[0]) : "";
    return [name, megabytes(bytes), kind, kernel?.op_class ?? "", place];
  });
  const more = memory.more_at_peak ? `, the largest ${rows.length}` : "";
  return element(
    "details",
    {},
    element("summary", {}, `in use at the peak${more}`),
    table(["tensor", "size", "kind", "computed by", "node"], rows),
  );
}

// ---- tables

function nothing(section, text) {
  section.append(element("p", { class: "faint" }, text));
}

const SLOWEST = 25;
const PLACES = 12; // names that are shown unasked

function listSlowest() {
  if (!profile) return nothing(byId("nodes"), facts.why_no_profile);
  const seconds = Object.entries(profile.node_seconds)
    .map(([number, time]) => [Number(number), time])
    .sort((a, b) => b[1] - a[1]);
  if (!seconds.length) return nothing(byId("nodes"), "not known: the model comes from no file");
  const rows = seconds.slice(0, SLOWEST).map(([number, time]) => {
    const kernels = profile.kernels.filter((kernel) => kernel.nodes.includes(number));
    const alone = kernels.filter((kernel) => kernel.nodes.length === 1);
    const own = alone.reduce((sum, kernel) => sum + kernel.seconds, 0);
    const bars = bar(time, seconds[0][1]);
    return [nodeLink(number), nodes[number].op, milliseconds(time), milliseconds(own), bars];
  });
  byId("nodes").append(
    element(
      "p",
      { class: "faint" },
      "The time of all kernels that a node is in, forward and backward. A kernel that computes ",
      "several nodes counts for each of them; what a node has alone is in the next column.",
    ),
    table(["node", "operator", "kernels", "alone", ""], rows),
  );
}

function listClasses() {
  if (!profile) return nothing(byId("classes"), facts.why_no_profile);
  const [largest] = profile.classes;
  const rows = profile.classes.map((entry) => [
    entry.phase,
    entry.op_class,
    entry.gradients.join(", "),
    entry.dtypes.join(", "),
    entry.calls,
    milliseconds(entry.seconds),
    bar(entry.seconds, largest.seconds, entry.phase),
  ]);
  const header = ["phase", "operators", "gradient", "floats", "calls", "time", ""];
  byId("classes").append(table(header, rows));
}

function listUntrained() {
  const section = byId("untrained");
  const ended = facts.without_gradient;
  const reasons = new Set(facts.untrained.map((entry) => entry.reason));
  if (!reasons.size) nothing(section, "every weight trains");
  for (const reason of reasons) {
    const rows = facts.untrained.flatMap((e) => (e.reason === reason ? [[e.name, e.type]] : []));
    const open = rows.length > PLACES ? {} : { open: "" };
    const summary = element("summary", {}, `${reason}: ${rows.length}`);
    section.append(element("details", open, summary, table(["name", "type"], rows)));
  }
  if (!ended.length) return;
  section.append(
    element("h2", {}, "Where no gradient goes, and why"),
    table(
      ["operator", "calls", "gradient", "why", "where"],
      ended.map(({ op, count, provenance, reason, where }) => {
        const more = where.length > PLACES ? ` and ${where.length - PLACES} more` : "";
        const places = where.slice(0, PLACES).join(", ") + more;
        return [op, count, ORIGINS[provenance][1], reason, places];
      }),
    ),
  );
}

function listNotes() {
  if (!facts.notes.length) return nothing(byId("notes"), "none");
  byId("notes").append(element("ul", {}, ...facts.notes.map((note) => element("li", {}, note))));
}

// ---- start

byId("title").textContent = facts.title;
byId("tiles").append(
  ...facts.tiles.map(([name, text]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, text)),
  ),
);
drawGraph();
listenToGraph();
listenToSearch();
colorNodes("origin");
byId("color").addEventListener("change", (event) => colorNodes(event.target.value));
drawMemory();
listSlowest();
listClasses();
listUntrained();
listNotes();
nothing(byId("details"), "Choose a node to see its gradient, kernels and weights.");
chooseLinked();
window.addEventListener("hashchange", chooseLinked);
