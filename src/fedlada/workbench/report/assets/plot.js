// A chart in SVG: lines with bands, points, bars or arrows; hover, keyboard, zoom, a legend that switches series.

const MARKERS = [
  "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z", "M-3.2 -3.2h6.4v6.4h-6.4z", "M0 -4.2L4 3.2H-4z", "M0 -4.5L4.5 0L0 4.5L-4.5 0z",
  "M0 4.2L4 -3.2H-4z", "M-1.2 -4h2.4v2.8h2.8v2.4h-2.8v2.8h-2.4v-2.8h-2.8v-2.4h2.8z",
  "M-4 -1.5L0 -4.2L4 -1.5L2.5 3.6H-2.5z", "M0 -4.6L1.5 -1.5L4.6 0L1.5 1.5L0 4.6L-1.5 1.5L-4.6 0L-1.5 -1.5z",
];
const colour = (index) => `s${index % 8}`;
/** Beyond eight series colours come again, with other markers, hollow. */
const marker = (index, x, y) =>
  svg("path", { class: `${colour(index)} ${index < 8 ? "filled" : "hollow"}`, d: MARKERS[(index + Math.floor(index / 8)) % 8],
    transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` });
const swatch = (index, style = "line") =>
  svg("svg", { width: 26, height: 12, viewBox: "0 0 26 12", "aria-hidden": "true" }, style === "bars"
    ? svg("rect", { class: `${colour(index)} filled`, x: 7, y: 0, width: 12, height: 12 })
    : [svg("line", { class: `${colour(index)} line`, x1: 1, x2: 25, y1: 6, y2: 6 }), marker(index, 13, 6)]);

/**
 * `spec()` gives {label, xLabel, yLabel, series: [{name, index, points: [{x, y, low, high, text}], hasBand, tails, raw, style}],
 * logX, logY, targets, formatX, formatY, head}; `switches` is the set of names that are switched off, which charts can share.
 */
class Plot {
  constructor(spec, { switches = new Set(), onswitch = null, withLegend = true, height = 380 } = {}) {
    Object.assign(this, { spec, switches, onswitch: onswitch || (() => this.draw()), withLegend, height });
    this.zoom = null;
    this.lit = null;
    this.legend = el("ul", { class: "legend", "aria-label": "Series: press to hide or show" });
    this.canvas = el("div");
    this.tip = el("div", { class: "tip", hidden: true });
    this.figure = el("figure", {}, this.canvas, this.tip);
    this.note = el("p", { class: "note" });
    this.node = el("div", {}, withLegend ? this.legend : null, this.figure, this.note);
    new ResizeObserver(() => {
      if (Math.abs(this.canvas.clientWidth - this.width) > 1) this.draw();
    }).observe(this.canvas);
  }

  draw() {
    const spec = this.current = this.spec();
    this.width = this.canvas.clientWidth || 700;
    this.shown = spec.series.filter((one) => !this.switches.has(one.name));
    if (this.withLegend) this.drawLegend(spec);
    const narrow = this.width < 520;
    const height = narrow ? Math.min(this.height, 300) : this.height;
    this.box = { left: 58, right: this.width - 14, top: 12, bottom: height - 46 };
    const { x, y, hiddenByLog } = this.scales(spec);
    Object.assign(this, { x, y });
    this.places = this.shown.map((one) => {
      const points = [one.points, ...(one.tails || [])].flat().filter((point) => x.shows(point.x) && y.shows(point.y));
      return { one, points, places: Float64Array.from(points, (point) => x.at(point.x)) };
    });
    const image = svg("svg", {
      class: "chart", viewBox: `0 0 ${this.width} ${height}`, role: "img", tabindex: 0,
      "aria-label": `${spec.label}. ${this.shown.map((one) => one.name).join(", ") || "nothing shown"}. Arrow keys read values, plus and minus zoom.`,
    });
    this.drawAxes(image, spec, narrow);
    // What lies outside a chosen range is cut at the frame; markers on the frame stay whole otherwise.
    const { left, right, top, bottom } = this.box, cut = Boolean(this.zoom || spec.fitEnd);
    const marks = svg("svg", { x: left, y: top, width: right - left, height: bottom - top,
      viewBox: `${left} ${top} ${right - left} ${bottom - top}`, overflow: cut ? "hidden" : "visible" });
    for (const one of this.shown) marks.append(this.drawSeries(one));
    image.append(marks);
    this.cross = svg("g");
    image.append(this.cross);
    this.listen(image);
    const focused = this.canvas.contains(document.activeElement);
    this.canvas.replaceChildren(image);
    if (focused) image.focus({ preventScroll: true });
    this.image = image;
    if (this.pointed !== undefined && !this.tip.hidden) this.point(this.pointed);
    this.note.textContent = [
      hiddenByLog ? `${plural(hiddenByLog, "value is", "values are")} not above zero and cannot stand on a logarithmic axis.` : "",
      this.shown.length || !spec.series.length ? "" : "Every series is switched off.", spec.note || "",
    ].filter(Boolean).join(" ");
  }

  scales(spec) {
    const every = this.shown.flatMap((one) => [...one.points, ...(one.tails || []).flat()]);
    const xs = every.map((point) => point.x);
    if (this.shown.some((one) => one.style === "bars") && xs.length) {
      const sorted = [...new Set(xs)].sort((a, b) => a - b), last = sorted[sorted.length - 1];
      const gap = sorted.slice(1).reduce((least, value, index) => Math.min(least, value - sorted[index]), last - sorted[0] || 1);
      xs.push(sorted[0] - 0.6 * gap, last + 0.6 * gap);
    }
    const x = scale(this.zoom || xs, spec.logX, this.box.left, this.box.right);
    // Fitted to the end, the first quarter of the way, where everything changes, does not set the vertical range.
    const [first, last] = this.zoom || [spec.fitEnd ? x.value(x.at(x.low) + (x.at(x.high) - x.at(x.low)) / 4) : -Infinity, Infinity];
    const inView = every.filter((point) => point.x >= first && point.x <= last);
    const ys = inView.flatMap((point) => [point.y, point.low ?? point.y, point.high ?? point.y]);
    if (this.shown.some((one) => one.style === "bars")) ys.push(0);
    if (!this.zoom) ys.push(...(spec.targets || []));
    const rough = scale(ys, spec.logY, 0, 1);
    // A little air, so that no line lies on the frame.
    const y = scale([rough.value(rough.low === 0 ? 0 : -0.04), rough.value(1.04)], spec.logY, this.box.bottom, this.box.top);
    return { x, y, hiddenByLog: every.filter((point) => !x.shows(point.x) || !y.shows(point.y)).length };
  }

  drawAxes(image, spec, narrow) {
    const { left, right, top, bottom } = this.box;
    for (const tick of this.y.ticks(narrow ? 4 : 6)) {
      const place = this.y.at(tick);
      image.append(svg("line", { class: "grid", x1: left, x2: right, y1: place, y2: place }),
        svg("text", { x: left - 8, y: place + 4, "text-anchor": "end" }, spec.formatY(tick)));
    }
    let free = -Infinity;
    for (const tick of spec.ticksX || this.x.ticks(narrow ? 4 : 8)) {
      const place = this.x.at(tick), text = spec.formatX(tick), half = text.length * 3.6;
      image.append(svg("line", { class: "axis", x1: place, x2: place, y1: bottom, y2: bottom + 4 }));
      if (place - half < free) continue; // labels never overlap
      image.append(svg("text", { x: Math.min(place, this.width - half), y: bottom + 18, "text-anchor": "middle" }, text));
      free = place + half + 8;
    }
    image.append(svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
      svg("text", { class: "label", x: (left + right) / 2, y: bottom + 38, "text-anchor": "middle" }, spec.xLabel),
      svg("text", { class: "label", transform: `translate(13 ${(top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, spec.yLabel));
    for (const target of spec.targets || []) {
      const place = this.y.at(target);
      if (!(place >= top && place <= bottom)) continue;
      image.append(svg("line", { class: "target", x1: left, x2: right, y1: place, y2: place }),
        svg("text", { x: left + 6, y: place - 5 }, `target ${spec.formatY(target)}`));
    }
  }

  drawSeries(one) {
    const group = svg("g", { class: this.lit && this.lit !== one.name ? "dim" : null, "data-series": one.name });
    const points = one.points.filter((point) => this.x.shows(point.x) && this.y.shows(point.y));
    const at = (point, value) => `${this.x.at(point.x).toFixed(1)} ${this.y.at(value).toFixed(1)}`;
    if (one.style === "bars") this.drawBars(group, one, points);
    if (one.hasBand && points.length && one.style !== "bars") {
      const low = (point) => (this.y.shows(point.low) ? point.low : this.y.low);
      const there = points.map((point) => at(point, point.high)), back = points.map((point) => at(point, low(point))).reverse();
      group.append(svg("path", { class: `${colour(one.index)} filled band`, d: `M${[...there, ...back].join("L")}Z` }));
    }
    for (const raw of one.raw || []) group.append(svg("path", { class: `${colour(one.index)} raw`, d: this.path(raw) }));
    for (const tail of one.tails || []) group.append(svg("path", { class: `${colour(one.index)} tail`, d: this.path(tail) }));
    if (one.style === "line") group.append(svg("path", { class: `${colour(one.index)} line`, d: this.path(points) }));
    if (one.style === "arrows") this.drawArrows(group, one, points);
    if (one.style !== "bars") {
      const many = one.style === "line" && points.length > 45, onlyFirst = one.style === "arrows";
      const every = many ? Math.ceil(points.length / 10) : onlyFirst ? points.length : 1;
      const first = many ? Math.floor((every * ((one.index % 8) + 1)) / 9) : 0; // markers of two lines seldom meet
      for (let index = first; index < points.length; index += every)
        group.append(marker(one.index, this.x.at(points[index].x), this.y.at(points[index].y)));
    }
    return group;
  }

  path(points) {
    const shown = points.filter((point) => this.x.shows(point.x) && this.y.shows(point.y));
    return shown.length ? `M${shown.map((point) => `${this.x.at(point.x).toFixed(1)} ${this.y.at(point.y).toFixed(1)}`).join("L")}` : "";
  }

  drawBars(group, one, points) {
    const bars = this.shown.filter((other) => other.style === "bars"), place = bars.indexOf(one);
    const xs = [...new Set(bars.flatMap((other) => other.points.map((point) => this.x.at(point.x))))].sort((a, b) => a - b);
    const gap = xs.slice(1).reduce((least, x, index) => Math.min(least, x - xs[index]), 60);
    const width = Math.max(0.5, (gap * 0.84) / bars.length);
    const foot = this.y.at(this.y.isLog ? this.y.low : Math.max(0, this.y.low));
    for (const point of points) {
      const left = this.x.at(point.x) - (width * bars.length) / 2 + place * width, top = this.y.at(point.y);
      group.append(svg("rect", { class: `${colour(one.index)} filled`, x: left.toFixed(1), width: Math.max(0.5, width - 0.6).toFixed(1),
        y: Math.min(top, foot).toFixed(1), height: Math.abs(foot - top).toFixed(1) }));
    }
  }

  drawArrows(group, one, points) {
    points.slice(1).forEach((to, index) => {
      const [x1, y1, x2, y2] = [this.x.at(points[index].x), this.y.at(points[index].y), this.x.at(to.x), this.y.at(to.y)];
      const angle = (Math.atan2(y2 - y1, x2 - x1) * 180) / Math.PI;
      group.append(svg("line", { class: `${colour(one.index)} line`, x1, y1, x2, y2 }),
        svg("path", { class: `${colour(one.index)} filled`, d: "M0 0L-11 4.5L-11 -4.5Z", transform: `translate(${x2} ${y2}) rotate(${angle})` }));
    });
  }

  drawLegend(spec) {
    const key = JSON.stringify(spec.series.map((one) => [one.name, one.index]));
    if (key !== this.legendKey) this.makeLegend(spec);
    this.legendKey = key;
    this.buttons.forEach((button, name) => button.setAttribute("aria-pressed", String(!this.switches.has(name))));
    this.showAll.hidden = !spec.series.some((one) => this.switches.has(one.name));
    this.wholeRange.hidden = !this.zoom;
  }

  makeLegend(spec) {
    const flip = (name) => (this.switches.delete(name) ? null : this.switches.add(name));
    const alone = (name) => {
      spec.series.forEach((other) => this.switches.add(other.name));
      this.switches.delete(name);
    };
    this.buttons = new Map(spec.series.map((one) => [one.name, el("button", {
      type: "button", title: "Click to hide or show, double-click to see it alone",
      onclick: () => { flip(one.name); this.onswitch(); },
      ondblclick: () => { alone(one.name); this.onswitch(); },
      onpointerenter: () => this.light(one.name), onpointerleave: () => this.light(null),
      onfocus: () => this.light(one.name), onblur: () => this.light(null),
    }, swatch(one.index, one.style), one.name)]));
    const quiet = (text, onclick) => el("button", { type: "button", class: "quiet", onclick }, text);
    this.showAll = quiet("Show all", () => { this.switches.clear(); this.onswitch(); });
    this.wholeRange = quiet("Whole range", () => { this.zoom = null; this.draw(); });
    this.legend.replaceChildren(...[...this.buttons.values(), this.showAll, this.wholeRange].map((button) => el("li", {}, button)));
  }

  light(name) {
    this.lit = name && !this.switches.has(name) ? name : null;
    for (const group of this.canvas.querySelectorAll("[data-series]"))
      group.classList.toggle("dim", Boolean(this.lit) && group.dataset.series !== this.lit);
  }

  listen(image) {
    const pixel = (event) => ((event.clientX - image.getBoundingClientRect().left) / image.getBoundingClientRect().width) * this.width;
    let start = null;
    image.addEventListener("pointermove", (event) => {
      const here = pixel(event);
      if (start !== null && Math.abs(here - start) > 6) this.brush(start, here);
      else this.point(here);
    });
    image.addEventListener("pointerleave", () => { if (start === null) this.leave(); });
    image.addEventListener("pointerdown", (event) => {
      this.point(pixel(event));
      if (event.pointerType === "mouse" && event.button === 0) {
        start = pixel(event);
        image.setPointerCapture(event.pointerId);
      }
    });
    image.addEventListener("pointerup", (event) => {
      const from = start, to = pixel(event);
      start = null;
      if (from !== null && Math.abs(to - from) > 6) this.zoomTo(from, to);
    });
    image.addEventListener("dblclick", () => { this.zoom = null; this.draw(); });
    image.addEventListener("blur", () => this.leave());
    image.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const places = [...new Set(this.shown.flatMap((one) => one.points.map((point) => point.x)))]
      .filter((x) => this.x.shows(x) && x >= this.x.low && x <= this.x.high).sort((a, b) => a - b).map((x) => this.x.at(x));
    const { left, right } = this.box, quarter = (right - left) / 4;
    const jump = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 }[event.key];
    if (event.key === "Escape") this.leave();
    else if (event.key === "+" || event.key === "=") this.zoomTo(left + quarter, right - quarter);
    else if (event.key === "-" || event.key === "0") { this.zoom = null; this.draw(); }
    else if (jump && places.length) {
      const now = places.findIndex((place) => place >= (this.pointed ?? -1) - 0.01);
      const next = this.pointed === undefined ? 0 : Math.min(places.length - 1, Math.max(0, (now < 0 ? places.length - 1 : now) + jump));
      this.point(places[next], true);
    } else return;
    event.preventDefault();
  }

  zoomTo(from, to) {
    const [low, high] = [Math.min(from, to), Math.max(from, to)].map((pixel) => this.x.value(Math.min(this.box.right, Math.max(this.box.left, pixel))));
    this.leave();
    if (high > low) this.zoom = [low, high];
    this.draw();
  }

  brush(from, to) {
    this.tip.hidden = true;
    const [a, b] = [Math.min(from, to), Math.max(from, to)];
    this.cross.replaceChildren(svg("rect", { class: "brush", x: a, width: b - a, y: this.box.top, height: this.box.bottom - this.box.top }));
  }

  leave() {
    this.tip.hidden = true;
    this.pointed = undefined;
    this.cross.replaceChildren();
  }

  /** Show every series' point nearest to a place, the highest first. */
  point(pixel, aloud = false) {
    const near = this.places.map(({ one, places, points }) => {
      let best = -1;
      for (let index = 0; index < places.length; index++)
        if (best < 0 || Math.abs(places[index] - pixel) < Math.abs(places[best] - pixel)) best = index;
      return best < 0 ? null : { one, point: points[best], away: Math.abs(places[best] - pixel) };
    }).filter(Boolean);
    if (!near.length) return this.leave();
    const closest = near.reduce((a, b) => (b.away < a.away ? b : a));
    const place = this.x.at(closest.point.x);
    const here = near.filter((one) => one.away < closest.away + 24).sort((a, b) => b.point.y - a.point.y);
    this.pointed = aloud ? place : pixel;
    this.cross.replaceChildren(
      svg("line", { class: "cross", x1: place, x2: place, y1: this.box.top, y2: this.box.bottom }),
      ...here.map(({ one, point }) => svg("circle", { class: `${colour(one.index)} hollow`, cx: this.x.at(point.x), cy: this.y.at(point.y), r: 4.5 })));
    const head = this.current.head(closest.point);
    this.tip.replaceChildren(el("b", {}, head), el("table", {}, el("tbody", {}, here.map(({ one, point }) =>
      el("tr", {}, el("td", {}, swatch(one.index, one.style), " ", one.name), el("td", {}, this.current.describe(point)))))));
    this.tip.hidden = false;
    const ratio = this.figure.clientWidth / this.width, wide = this.tip.offsetWidth, x = place * ratio;
    const left = x + 14 + wide > this.figure.clientWidth ? x - wide - 14 : x + 14;
    this.tip.style.left = `${Math.max(0, Math.min(left, this.figure.clientWidth - wide))}px`;
    const { top, bottom } = this.box, above = mean(here.map(({ point }) => this.y.at(point.y))) < (top + bottom) / 2;
    this.tip.style.top = `${above ? Math.max(0, bottom * ratio - this.tip.offsetHeight - 8) : top + 4}px`; // where the lines are not
    if (aloud) say(`${head}: ${here.map(({ one, point }) => `${one.name} ${this.current.describe(point)}`).join(", ")}`);
  }
}
