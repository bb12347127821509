// The page: what it was given, or what the server it came from says now.

class Report {
  constructor() {
    this.runs = [];
    this.partitions = [];
    this.settings = { metric: "", axis: "round", band: "range", smoothing: 1, logX: false, logY: false, fitEnd: false, singles: false, dataset: "" };
    this.switches = new Set();
    this.colours = new Map();
    this.sections = new Map();
    const options = { switches: this.switches, onswitch: () => this.drawCurves() };
    this.curves = new Plot(() => this.curveSpec(this.settings.metric, this.settings), options);
    this.drift = new Plot(() => this.curveSpec("drift", { ...this.settings, axis: "round", logX: false, logY: true, fitEnd: false, singles: false }),
      { switches: this.switches, withLegend: false, height: 260 });
    this.controls = el("div", { class: "controls" });
    this.clients = new ClientsView(this);
  }

  /** Take new data; what the reader has chosen stays. */
  update(data) {
    Object.assign(this, { title: data.title, tables: data.tables, charts: data.charts, notes: data.notes, command: data.command });
    this.runs = data.runs;
    this.curvesMade = new Map();
    this.partitions = data.partitions || [];
    this.chooseColours();
    document.title = this.title;
    document.getElementById("title").textContent = this.title;
    document.getElementById("facts").textContent = this.facts();
    this.drawSections();
  }

  /** A group keeps its colour while it is there; a new one takes the first that is free. */
  chooseColours() {
    const groups = groupsOf(this.runs);
    for (const name of [...this.colours.keys()]) if (!groups.has(name)) this.colours.delete(name);
    for (const name of groups.keys()) {
      const taken = new Set(this.colours.values());
      let free = 0;
      while (taken.has(free)) free++;
      if (!this.colours.has(name)) this.colours.set(name, free);
    }
  }

  facts() {
    if (!this.runs.length) return "No run yet.";
    const datasets = [...new Set(this.runs.map((run) => run.dataset).filter(Boolean))];
    const done = sum(this.runs.map((run) => run.summary.done)), planned = this.runs.map((run) => run.summary.planned);
    const rounds = planned.includes(null) ? plural(done, "round") : `${done} of ${plural(sum(planned), "round")}`;
    return [plural(this.runs.length, "run"), this.colours.size > 1 ? plural(this.colours.size, "group") : [...this.colours.keys()].join(""),
      datasets.join(", "), rounds].filter(Boolean).join(" · ");
  }

  drawSections() {
    const has = this.runs.length > 0;
    this.section("results", "Results", this.tables.length || this.notes.length ? () => [
      this.tables.map((table) => tableOf(table)), this.notes.map((note) => el("p", { class: "note" }, note))] : null, JSON.stringify([this.tables, this.notes]));
    this.section("figures", "Figures", this.charts.length ? () => {
      this.given = this.charts.map(givenChart);
      return [el("div", { class: this.charts.length > 1 ? "pair" : null }, this.given.map((one) => one.node))];
    } : null, JSON.stringify(this.charts));
    this.section("curves", "Curves", has ? () => [this.controls, this.curves.node] : null, "once");
    this.section("clients", "Clients and classes", has ? () => [this.clients.node] : null, "once");
    this.section("runs", "Runs", has ? () => [runsTable(this.runs), vectorsTable(this.runs)] : null,
      JSON.stringify(this.runs.map((run) => [run.label, run.summary, run.folder, run.vectors])));
    this.section("configuration", "Configuration", has ? () => [configuration(this.runs)] : null,
      JSON.stringify(this.runs.map((run) => [run.label, run.config])));
    this.section("commands", "Commands", has || this.command ? () => [commands(this)] : null,
      JSON.stringify([this.command, this.runs.map((run) => [run.label, run.command])]));
    document.getElementById("contents").replaceChildren(
      ...[...this.sections].map(([id, { title }]) => el("a", { href: `#${id}` }, title)));
    for (const one of this.given || []) one.plot.draw();
    if (!has) return;
    this.drawControls();
    this.drawCurves();
    this.clients.update();
  }

  /** Make a section, or leave it alone where nothing in it has changed: an open detail stays open. */
  section(id, title, content, key) {
    const old = this.sections.get(id);
    if (!content) {
      if (old) old.node.remove();
      this.sections.delete(id);
      return;
    }
    if (old && old.key === key) return;
    const node = el("section", { id, class: "card", "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), ...content().flat());
    if (old) {
      const open = old.node.querySelector("details[open]");
      if (open && node.querySelector("details")) node.querySelector("details").open = true;
      old.node.replaceWith(node);
    } else {
      const order = ["results", "figures", "curves", "clients", "runs", "configuration", "commands"];
      const next = order.slice(order.indexOf(id) + 1).map((later) => this.sections.get(later)).find(Boolean);
      document.getElementById("content").insertBefore(node, next ? next.node : null);
    }
    this.sections.set(id, { node, key, title });
    const sorted = [...this.sections].sort(([, one], [, other]) =>
      one.node.compareDocumentPosition(other.node) & Node.DOCUMENT_POSITION_FOLLOWING ? -1 : 1);
    this.sections = new Map(sorted);
  }

  shownRuns() {
    const { dataset } = this.settings;
    return dataset ? this.runs.filter((run) => run.dataset === dataset) : this.runs;
  }

  drawControls() {
    const { settings } = this, metrics = metricsOf(this.runs);
    const datasets = [...new Set(this.runs.map((run) => run.dataset))];
    if (!metrics.includes(settings.metric)) settings.metric = metrics[0] || "";
    if (!datasets.includes(settings.dataset)) settings.dataset = "";
    const key = JSON.stringify([metrics, datasets, this.runs.length > this.colours.size]);
    if (key === this.controlsKey) return; // an open menu stays open while data arrives
    this.controlsKey = key;
    const set = (name, more) => (value) => { settings[name] = value; if (more) more(); this.drawCurves(); };
    const several = this.runs.length > this.colours.size;
    const whole = () => { this.curves.zoom = null; };
    this.controls.replaceChildren(...[
      choice("Show", metrics.map((metric) => [metric, titled(metric)]), settings.metric, set("metric")),
      choice("Against", X_AXES, settings.axis, set("axis", whole)),
      datasets.length > 1 ? choice("Data set", [["", "all"], ...datasets.map((one) => [one, one])], settings.dataset, set("dataset", whole)) : null,
      several ? choice("Band over seeds", [["range", "low to high"], ["deviation", "± deviation"], ["none", "none"]], settings.band, set("band")) : null,
      choice("Smoothing", [["1", "none"], ["3", "3 values"], ["5", "5 values"], ["10", "10 values"], ["25", "25 values"], ["100", "100 values"]],
        String(settings.smoothing), (value) => set("smoothing")(Number(value))),
      check("log x", settings.logX, set("logX", whole)),
      check("log y", settings.logY, set("logY")),
      check("fit to the end", settings.fitEnd, set("fitEnd")),
      several ? check("each run", settings.singles, set("singles")) : null,
    ].filter(Boolean));
  }

  drawCurves() {
    this.curves.draw();
    this.drift.draw();
  }

  /** Means over many long runs take a moment: they are made once for each choice. */
  curve(name, members, ...chosen) {
    const key = JSON.stringify([name, this.settings.dataset, chosen]);
    const [metric, axis, smoothing, band] = chosen;
    if (!this.curvesMade.has(key)) this.curvesMade.set(key, groupCurve(members, metric, axis, { smoothing, band }));
    return this.curvesMade.get(key);
  }

  curveSpec(metric, { axis, band, smoothing, logX, logY, fitEnd, singles }) {
    const runs = this.shownRuns();
    const series = [];
    for (const [name, members] of groupsOf(runs)) {
      const curve = this.curve(name, members, metric, axis, smoothing, band);
      if (!curve) continue;
      const faint = smoothing > 1 ? members.map((run) => measured(run, metric, axis)) : singles && members.length > 1 ? curve.singles : [];
      series.push({ name, index: this.colours.get(name), style: "line", raw: faint, ...curve });
    }
    const aims = runs.map((run) => run.summary).filter((summary) => summary.target !== null && summary.target_metric === metric);
    const targets = [...new Set(aims.map((summary) => summary.target))];
    const axisName = X_AXES.find(([key]) => key === axis)[1];
    return {
      series, logX, logY, fitEnd, targets, xLabel: axis === "round" ? "round" : axisName, yLabel: titled(metric), label: `${titled(metric)} against ${axisName}`,
      formatX: format, formatY: (value) => (isShare(metric) ? `${format(100 * value)} %` : format(value)),
      head: (point) => (axis === "round" ? `round ${point.round}` : `${format(point.x)} ${axisName.split(",")[0]} (round ${point.round})`),
      describe: (point) => formatMetric(metric, point.y) + (point.count > 1 ? ` ± ${formatMetric(metric, point.spread)}` : ""),
      note: smoothing > 1 ? `Smoothed over ${smoothing} values; each run as measured is drawn faintly.` : "",
    };
  }
}

/** Ask the server for what has changed: first which runs have, then those alone. */
class Live {
  constructor(report) {
    this.report = report;
    this.known = new Map();
    this.line = document.getElementById("live");
    this.line.hidden = false;
  }

  async go() {
    for (;;) {
      try {
        await this.ask();
        this.line.classList.remove("ended");
      } catch {
        this.line.textContent = "fedlada watch has ended: this is what it last said";
        this.line.classList.add("ended");
      }
      await new Promise((done) => { setTimeout(done, document.hidden ? 5000 : 1000); });
    }
  }

  async ask() {
    const answer = await fetch("data", { cache: "no-cache" });
    if (!answer.ok) throw new Error("no data");
    const tag = answer.headers.get("ETag");
    const index = await answer.json();
    if (tag !== this.tag) {
      const runs = await Promise.all(index.runs.map((run) => this.run(run)));
      this.known = new Map(index.runs.map(({ id, version }, place) => [id, { version, run: runs[place] }]));
      this.report.update({ ...index, runs });
      this.tag = tag;
      this.changed = new Date();
    }
    this.line.textContent = `live · last change ${this.changed.toLocaleTimeString()}`;
  }

  async run({ id, version }) {
    const known = this.known.get(id);
    if (known && known.version === version) return known.run;
    const answer = await fetch(`run/${id}`, { cache: "no-cache" });
    if (!answer.ok) throw new Error("no run");
    return answer.json();
  }
}

const data = JSON.parse(document.getElementById("data").textContent);
const report = new Report();
if (data.live) {
  new Live(report).go();
} else {
  report.update(data);
}
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not([open])")) {
    details.open = true;
    details.dataset.closed = "";
  }
});
addEventListener("afterprint", () => {
  for (const details of document.querySelectorAll("details[data-closed]")) {
    details.open = false;
    delete details.dataset.closed;
  }
});
