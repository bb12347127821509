// Who took part how often, and which classes each client holds.

const SORTS = [["number", "client number"], ["drawn", "times drawn"], ["size", "number of samples"], ["class", "largest class"]];
const STATES = [["drawn", "took part"], ["lost", "lost"], ["refused", "refused"], ["idle", "idle"]];
const LEVELS = 10;

const sum = (values) => values.reduce((total, value) => total + value, 0);

/** The beginning of a name where there is no room for all of it. */
const cut = (name, room) => (String(name).length > room ? `${String(name).slice(0, Math.max(1, room - 1))}…` : name);

class ClientsView {
  constructor(report) {
    this.report = report;
    this.sort = "number";
    this.controls = el("div", { class: "controls" });
    this.body = el("div");
    this.tip = el("div", { class: "tip", hidden: true });
    this.figure = el("figure", {}, this.body, this.tip);
    this.bars = new Plot(() => this.classShares(), { height: 260 });
    this.classPart = el("div", {}, el("h3", {}, "Classes in the data, and in the rounds"), this.bars.node);
    this.classes = el("div", { class: "pair" }, this.classPart, el("div", {}, el("h3", {}, "Drift"), report.drift.node));
    this.node = el("div", {}, this.controls, this.figure, this.classes);
    new ResizeObserver(() => {
      if (Math.abs(this.body.clientWidth - this.width) > 1) this.draw();
    }).observe(this.body);
  }

  get run() {
    const runs = this.report.runs;
    return runs.find((run) => run.label === this.chosen) || runs[0];
  }

  update() {
    const names = this.report.runs.map((run) => [run.label, run.label]), key = JSON.stringify(names);
    if (key !== this.key) // an open menu stays open while data arrives
      this.controls.replaceChildren(
        choice("Run", names, this.run.label, (label) => { this.chosen = label; this.draw(); }),
        choice("Clients in the order of", SORTS, this.sort, (sort) => { this.sort = sort; this.draw(); }));
    this.key = key;
    this.draw();
  }

  labels() {
    const { labels } = this.run.clients;
    return typeof labels === "number" ? this.report.partitions[labels] : labels;
  }

  order() {
    const { drawn } = this.run.clients, labels = this.labels();
    const numbers = drawn.map((_, client) => client);
    const key = {
      number: (client) => client,
      drawn: (client) => -drawn[client],
      size: (client) => (labels ? -sum(labels[client] || []) : client),
      class: (client) => (labels && labels[client] ? labels[client].indexOf(Math.max(...labels[client])) : client),
    }[this.sort];
    return numbers.sort((one, other) => key(one) - key(other) || one - other);
  }

  name(bar) {
    const { width, number } = this.run.clients;
    if (width === 1) return `client ${this.clientName(bar)}`;
    return `clients ${bar * width} to ${Math.min(number, (bar + 1) * width) - 1}`;
  }

  clientName(client) {
    return (this.run.clients.names || [])[client] ?? client;
  }

  className(label) {
    return (this.run.clients.classes || [])[label] ?? label;
  }

  draw() {
    this.tip.hidden = true;
    this.width = this.body.clientWidth || 700;
    const labels = this.labels(), focused = [...this.body.querySelectorAll("svg.chart")].indexOf(document.activeElement);
    const order = this.order(), left = 58, right = this.width - 14, step = (right - left) / Math.max(1, order.length);
    this.body.replaceChildren(...(order.length ? [
      this.participation(order, left, right, step),
      labels ? this.holdings(order, labels, left, step) : el("p", { class: "soft" }, "This run did not store which classes its clients hold."),
    ] : [el("p", { class: "soft" }, this.run.summary.done ? "This run did not store who took part." : "No client has taken part yet.")]));
    if (focused >= 0) (this.body.querySelectorAll("svg.chart")[focused] || this.body).focus({ preventScroll: true });
    this.classPart.hidden = !labels;
    if (labels) this.bars.draw();
    this.report.drift.draw();
  }

  participation(order, left, right, step) {
    const { clients } = this.run, top = 14, bottom = 160, height = bottom + (this.labels() ? 8 : 46);
    const kinds = STATES.filter(([kind]) => clients[kind] && clients[kind].length);
    const total = (client) => sum(kinds.map(([kind]) => clients[kind][client] || 0));
    const y = scale([0, ...order.map(total)], false, bottom, top);
    const image = this.image(height, `How often each client was drawn, ${plural(clients.number, "client")}`);
    for (const tick of y.ticks(4).filter(Number.isInteger))
      image.append(svg("line", { class: "grid", x1: left, x2: right, y1: y.at(tick), y2: y.at(tick) }),
        svg("text", { x: left - 8, y: y.at(tick) + 4, "text-anchor": "end" }, tick));
    kinds.forEach(([kind], index) => {
      // One path for each state: thousands of clients stay a handful of elements.
      const bars = order.map((client, place) => {
        const below = sum(kinds.slice(0, index).map(([other]) => clients[other][client] || 0));
        const count = clients[kind][client] || 0;
        if (!count) return "";
        const [from, to] = [y.at(below), y.at(below + count)];
        return `M${(left + place * step + step * 0.08).toFixed(2)} ${from.toFixed(1)}h${(step * 0.84).toFixed(2)}V${to.toFixed(1)}h${(-step * 0.84).toFixed(2)}z`;
      });
      image.append(svg("path", { class: `${colour(index ? index + 2 : 0)} filled`, d: bars.join("") }));
    });
    image.append(svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
    if (!this.labels()) this.clientTicks(image, order, left, step, bottom + 18);
    const legend = kinds.length > 1
      ? el("ul", { class: "legend" }, kinds.map(([, text], index) => el("li", {}, swatch(index ? index + 2 : 0, "bars"), " ", text)))
      : null;
    const average = sum(order.map(total)) / clients.number;
    this.hover(image, order, left, step);
    return el("div", {},
      el("h3", {}, "Times drawn"),
      el("p", { class: "soft" }, `${plural(clients.number, "client")}, drawn ${format(average)} times on average` +
        (clients.width > 1 ? `; each bar stands for ${clients.width} of them` : "")),
      legend, image);
  }

  holdings(order, labels, left, step) {
    const numClasses = labels[0].length, row = Math.max(2, Math.min(22, 420 / numClasses)), top = 4;
    const height = top + numClasses * row + 46;
    const most = Math.max(1, ...labels.map((counts) => Math.max(...counts)));
    const image = this.image(height, `Samples of each of ${numClasses} classes that each client holds; the darker, the more`);
    const cells = Array.from({ length: LEVELS }, () => []);
    order.forEach((client, place) => (labels[client] || []).forEach((count, label) => {
      if (!count) return;
      const level = Math.min(LEVELS - 1, Math.floor(Math.sqrt(count / most) * LEVELS));
      cells[level].push(`M${(left + place * step).toFixed(2)} ${(top + label * row).toFixed(2)}h${(step * 0.94).toFixed(2)}v${(row * 0.94).toFixed(2)}h${(-step * 0.94).toFixed(2)}z`);
    }));
    cells.forEach((paths, level) => image.append(
      svg("path", { class: "cell", "fill-opacity": ((level + 1) / LEVELS).toFixed(2), d: paths.join("") })));
    const every = Math.max(1, Math.ceil(13 / row));
    for (let label = 0; label < numClasses; label += every)
      image.append(svg("text", { x: left - 8, y: top + (label + 0.5) * row + 4, "text-anchor": "end" },
        cut(this.className(label), 7), svg("title", {}, this.className(label))));
    image.append(svg("text", { class: "label", transform: `translate(13 ${top + (numClasses * row) / 2}) rotate(-90)`, "text-anchor": "middle" }, "class"));
    this.clientTicks(image, order, left, step, top + numClasses * row + 16);
    this.hover(image, order, left, step, { top, row, numClasses });
    return el("div", {},
      el("h3", {}, "Which classes the clients hold"),
      el("p", { class: "soft" }, `Samples of each class at each client; the fullest cell has ${most}.`), image);
  }

  clientTicks(image, order, left, step, y) {
    const every = Math.max(1, Math.ceil(34 / step)), { width } = this.run.clients;
    for (let place = 0; place < order.length; place += every)
      image.append(svg("text", { x: left + (place + 0.5) * step, y, "text-anchor": "middle" },
        width === 1 ? cut(this.clientName(order[place]), Math.floor((every * step) / 7)) : order[place] * width));
    image.append(svg("text", { class: "label", x: left + (order.length * step) / 2, y: y + 19, "text-anchor": "middle" }, "client"));
  }

  image(height, label) {
    return svg("svg", { class: "chart", viewBox: `0 0 ${this.width} ${height}`, role: "img", tabindex: 0,
      "aria-label": `${label}. Arrow keys read the clients one by one.` });
  }

  hover(image, order, left, step, grid = null) {
    let place = -1;
    const show = (next, y, aloud) => {
      place = Math.max(0, Math.min(order.length - 1, next));
      const label = grid && y !== null ? Math.floor((y - grid.top) / grid.row) : -1;
      const lines = this.describe(order[place], grid && label >= 0 && label < grid.numClasses ? label : null);
      this.tip.replaceChildren(el("b", {}, lines[0]), ...lines.slice(1).map((line) => el("div", {}, line)));
      this.tip.hidden = false;
      const ratio = this.figure.clientWidth / this.width, wide = this.tip.offsetWidth, x = (left + (place + 0.5) * step) * ratio;
      const at = x + 14 + wide > this.figure.clientWidth ? x - wide - 14 : x + 14;
      this.tip.style.left = `${Math.max(0, at)}px`;
      this.tip.style.top = `${image.getBoundingClientRect().top - this.figure.getBoundingClientRect().top + 10}px`;
      if (aloud) say(lines.join(", "));
    };
    image.addEventListener("pointermove", (event) => {
      const box = image.getBoundingClientRect(), ratio = this.width / box.width;
      const x = (event.clientX - box.left) * ratio;
      if (x >= left) show(Math.floor((x - left) / step), (event.clientY - box.top) * ratio, false);
    });
    image.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    image.addEventListener("blur", () => { this.tip.hidden = true; });
    image.addEventListener("keydown", (event) => {
      const jump = { ArrowRight: 1, ArrowLeft: -1, Home: -1e9, End: 1e9 }[event.key];
      if (!jump) return;
      show(place + jump, null, true);
      event.preventDefault();
    });
  }

  describe(client, label) {
    const { clients } = this.run, labels = this.labels();
    const lines = [this.name(client)];
    for (const [kind, text] of STATES)
      if (clients[kind] && clients[kind].length) lines.push(`${text}: ${plural(clients[kind][client] || 0, "time")}`);
    if (labels && labels[client]) {
      const counts = labels[client], total = sum(counts);
      lines.push(plural(total, "sample"));
      if (label !== null) lines.push(`class ${this.className(label)}: ${counts[label]}`);
      else lines.push(`${plural(counts.filter(Boolean).length, "class", "classes")}, most of class ${this.className(counts.indexOf(Math.max(...counts)))}`);
    }
    return lines;
  }

  /** What training saw of each class, beside what there is. */
  classShares() {
    const labels = this.labels() || [[]], seen = this.run.clients.seen || [];
    const held = labels[0].map((_, label) => sum(labels.map((counts) => counts[label])));
    const bars = (name, index, values) => ({ name, index, style: "bars",
      points: values.map((count, x) => ({ x, y: count / Math.max(1, sum(values)), count })) });
    const every = Math.ceil(held.length / 25);
    return {
      label: "Share of each class in all clients' data and in what the drawn clients held", xLabel: "class", yLabel: "share of samples",
      series: [bars("held by all clients", 7, held), bars("held by those drawn, each time", 0, seen)],
      formatX: String, ticksX: held.map((_, label) => label).filter((label) => label % every === 0), formatY: (y) => `${format(100 * y)} %`,
      head: (point) => `class ${this.className(point.x)}`, describe: (point) => `${format(100 * point.y)} % (${point.count})`,
    };
  }
}
