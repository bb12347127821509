// Tables of the runs, their configurations and their commands.

const formatTarget = ({ target, target_metric: metric }) =>
  metric === "test_accuracy" ? formatMetric(metric, target) : `${titled(metric)} ${formatMetric(metric, target)}`;

/** Two columns: a metric that judges runs at the end of each, and at its best. */
function lastAndBest(judge) {
  const name = titled(judge.replace(/^test_/, ""));
  const cell = (show) => ({ summary }) => (summary.judge === judge && summary.last !== null ? show(summary) : "–");
  return [
    [`last ${name}`, cell(({ last }) => formatMetric(judge, last))],
    [`${isShare(judge) ? "best" : "lowest"} ${name}`, cell((one) => `${formatMetric(judge, one.best)} in round ${one.best_round}`)],
  ];
}

function runsTable(runs) {
  const some = (key) => runs.some((run) => run.summary[key] !== null);
  const judges = [...new Set(runs.filter(({ summary }) => summary.last !== null).map(({ summary }) => summary.judge))];
  const columns = [
    ["run", (run) => run.label],
    ["rounds", ({ summary }) => (summary.planned === null ? String(summary.done) : `${summary.done} of ${summary.planned}`)],
    some("epsilon") && ["epsilon spent", ({ summary }) => summary.epsilon === null ? "–" : String(summary.epsilon)],
    ...judges.flatMap(lastAndBest),
    some("target") && ["rounds to target", ({ summary }) =>
      summary.target === null ? "–" : `${summary.rounds_to_target ?? "∞"} (${formatTarget(summary)})`],
    ["megabytes", ({ summary }) => format(summary.megabytes)],
    ["seconds", ({ summary }) => format(summary.seconds)],
    runs.some((run) => run.folder) && ["folder", (run) => run.folder],
  ].filter(Boolean);
  return tableOf({
    columns: columns.map(([name]) => name), rows: runs.map((run) => columns.map(([, cell]) => cell(run))),
    numeric: columns.map(([name]) => name !== "run" && name !== "folder"), tall: runs.length > 14,
  });
}

/** Megabytes of each vector by group, where runs say which vectors travelled. */
function vectorsTable(runs) {
  const names = [...new Set(runs.flatMap((run) => run.vectors.map(([name]) => name)))];
  if (!names.length) return null;
  const rows = [...groupsOf(runs)].map(([group, members]) => [group, ...names.map((name) => {
    const bytes = members.map((run) => (run.vectors.find(([one]) => one === name) || [name, 0])[1]);
    return format(mean(bytes) / 1e6);
  })]);
  return tableOf({ title: "Megabytes by vector, mean over the runs of a group", columns: ["", ...names], rows, numeric: [false, ...names.map(() => true)] });
}

function configuration(runs) {
  const fields = [...new Set(runs.flatMap((run) => run.config.map(([name]) => name)))];
  const values = runs.map((run) => new Map(run.config));
  const of = (config, name) => (config.has(name) ? config.get(name) : "–");
  const differ = fields.filter((name) => new Set(values.map((config) => of(config, name))).size > 1);
  const same = fields.filter((name) => !differ.includes(name));
  const parts = [];
  if (differ.length)
    parts.push(tableOf({ title: "What differs between the runs", columns: ["run", ...differ.map(titled)], tall: runs.length > 14,
      rows: runs.map((run, index) => [run.label, ...differ.map((name) => of(values[index], name))]) }));
  const common = tableOf({ columns: ["setting", "value"], rows: same.map((name) => [name, of(values[0], name)]) });
  parts.push(el("details", { open: runs.length === 1 },
    el("summary", {}, runs.length === 1 ? "Every setting" : `What all runs share (${plural(same.length, "setting")})`), common));
  return el("div", {}, parts);
}

function commands(report) {
  const parts = report.command ? [el("p", {}, "All of it:"), commandLine(report.command, "the command")] : [];
  const known = report.runs.filter((run) => run.command);
  const lines = known.map((run) => el("div", {}, el("h3", {}, run.label), commandLine(run.command, `the command of ${run.label}`)));
  if (known.length > 1) parts.push(el("details", { open: !report.command && known.length < 7 }, el("summary", {}, `Each run on its own (${known.length})`), lines));
  else parts.push(...lines);
  if (known.length < report.runs.length)
    parts.push(el("p", { class: "soft" }, `${plural(report.runs.length - known.length, "run was", "runs were")} made from Python, by fedlada.simulate.`));
  return el("div", {}, parts);
}

/** A chart that came with the page, as data. */
function givenChart(chart) {
  const text = (value) => format(value);
  const series = chart.series.map((one, index) => ({
    name: one.name, index, style: one.style, hasBand: one.low.length > 0,
    points: one.x.map((x, place) => ({ x, y: one.y[place], low: one.low[place] ?? one.y[place], high: one.high[place] ?? one.y[place] }))
      .filter((point) => point.x !== null && point.y !== null),
  }));
  const plot = new Plot(() => ({
    label: chart.title, xLabel: chart.x_label, yLabel: chart.y_label, series, logX: chart.log_x, logY: chart.log_y,
    targets: chart.targets.filter((value) => value !== null), note: chart.note, formatX: text, formatY: text,
    head: (point) => `${chart.x_label} ${format(point.x)}`,
    describe: (point) => format(point.y) + (point.low !== point.y || point.high !== point.y ? ` (${format(point.low)} to ${format(point.high)})` : ""),
  }), { height: 320 });
  return { plot, node: el("div", {}, el("h3", {}, chart.title), plot.node) };
}
