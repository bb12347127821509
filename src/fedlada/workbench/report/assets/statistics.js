// What is drawn of each group of runs: the mean over its seeds where all have a value, and a band around it.

const X_AXES = [
  ["round", "rounds"],
  ["megabytes", "megabytes, up + down"],
  ["megabytes_up", "megabytes, up"],
  ["seconds", "seconds of training"],
];

function column(run, metric) {
  const found = run.columns.find(([name]) => name === metric);
  if (!found) return null;
  return Array.isArray(found[1]) ? found[1] : run.x.round.map(() => found[1]); // a column that never changes is one number
}

/** The measured points of one run, in the order of rounds. */
function measured(run, metric, axis) {
  const values = column(run, metric);
  if (!values) return [];
  const points = [];
  values.forEach((y, index) => {
    if (y !== null) points.push({ round: run.x.round[index], x: run.x[axis][index], y });
  });
  return points;
}

/** The mean of each value and those around it: `width` evaluations in all, fewer at the ends. */
function smoothed(points, width) {
  if (width <= 1) return points;
  const before = Math.floor((width - 1) / 2), after = width - 1 - before;
  const sums = [0];
  for (const point of points) sums.push(sums[sums.length - 1] + point.y);
  return points.map((point, index) => {
    const first = Math.max(0, index - before), last = Math.min(points.length, index + after + 1);
    return { ...point, y: (sums[last] - sums[first]) / (last - first) };
  });
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

function deviation(values) {
  if (values.length < 2) return 0;
  const centre = mean(values);
  return Math.sqrt(values.reduce((sum, value) => sum + (value - centre) ** 2, 0) / (values.length - 1));
}

/** One group: its mean curve over the rounds that all its runs have, and what single runs have beyond those. */
function groupCurve(runs, metric, axis, { smoothing, band }) {
  const all = runs.map((run) => smoothed(measured(run, metric, axis), smoothing)).filter((points) => points.length);
  if (!all.length) return null;
  const byRound = all.map((points) => new Map(points.map((point) => [point.round, point])));
  const common = all[0].map((point) => point.round).filter((round) => byRound.every((run) => run.has(round)));
  const points = common.map((round) => {
    const here = byRound.map((run) => run.get(round));
    const ys = here.map((point) => point.y), y = mean(ys), spread = deviation(ys);
    const [low, high] = band === "deviation" ? [y - spread, y + spread] : [Math.min(...ys), Math.max(...ys)];
    return { round, x: mean(here.map((point) => point.x)), y, low, high, spread, count: ys.length };
  });
  const last = common.length ? common[common.length - 1] : -Infinity;
  const tails = all.length > 1
    ? all.map((run) => run.filter((point) => point.round >= last)).filter((run) => run.length > 1)
    : [];
  return { points, tails, singles: all, hasBand: all.length > 1 && band !== "none" };
}

function groupsOf(runs) {
  const groups = new Map();
  for (const run of runs) groups.set(run.group, [...(groups.get(run.group) || []), run]);
  return groups;
}

const FIRST_METRICS = [
  "test_accuracy", "client_accuracy", "personal_accuracy", "nodes_accuracy", "test_loss", "client_loss", "personal_loss",
  "nodes_loss", "train_loss", "full_train_accuracy", "full_train_loss", "drift",
];

function metricsOf(runs) {
  const names = new Set(runs.flatMap((run) => run.columns.map(([name]) => name)));
  const order = (name) => (FIRST_METRICS.includes(name) ? FIRST_METRICS.indexOf(name) : FIRST_METRICS.length);
  return [...names].sort((one, other) => order(one) - order(other) || one.localeCompare(other));
}

// Axes.

function linearTicks(low, high, wanted) {
  const rough = (high - low) / Math.max(1, wanted), power = 10 ** Math.floor(Math.log10(rough));
  const size = rough / power, step = power * (size < 1.42 ? 1 : size < 3.17 ? 2 : size < 7.08 ? 5 : 10); // the nearest, by ratio
  const ticks = [];
  for (let number = Math.ceil(low / step - 1e-9); number * step <= high + step * 1e-9; number++)
    ticks.push(Number((number * step).toPrecision(12)));
  return ticks;
}

function logTicks(low, high, wanted) {
  const ticks = [];
  const decades = Math.log10(high) - Math.log10(low);
  const factors = decades < 1.2 ? [1, 2, 3, 5, 7] : decades < 3 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / (wanted + 2)));
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += every)
    for (const factor of factors) ticks.push(Number((factor * 10 ** power).toPrecision(12)));
  const inside = ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  return inside.length >= 2 ? inside : linearTicks(low, high, wanted).filter((tick) => tick > 0);
}

/** A scale from data to pixels that never divides by nothing. */
function scale(values, isLog, from, to) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null || !Number.isFinite(value) || (isLog && value <= 0)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) [low, high] = isLog ? [1, 10] : [0, 1];
  if (low === high) {
    const room = isLog ? 1.5 : Math.abs(low) * 0.05 || 0.5;
    [low, high] = isLog ? [low / room, high * room] : [low - room, high + room];
  }
  const place = isLog ? Math.log : (value) => value;
  const back = isLog ? Math.exp : (value) => value;
  const [a, b] = [place(low), place(high)];
  return {
    low, high, isLog,
    at: (value) => from + ((place(value) - a) / (b - a)) * (to - from),
    value: (pixel) => back(a + ((pixel - from) / (to - from)) * (b - a)),
    ticks: (wanted) => (isLog ? logTicks(low, high, wanted) : linearTicks(low, high, wanted)),
    shows: (value) => value !== null && Number.isFinite(value) && !(isLog && value <= 0),
  };
}
