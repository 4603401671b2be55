// Four curves over time. Few members have a line each; of many there is the median, and a band from least to largest.
const MOST = 480;
const FIGURES = [
  ["main", "Score", value => Math.abs(value) < 10 ? value.toFixed(3).replace(/0$/, "") : String(+value.toPrecision(3))],
  ["distance", "Distance to neighbors", value => value >= 0.01 || value === 0 ? String(+value.toPrecision(2)) : value.toExponential(0).replace("-", "−")],
  ["staleness", "Staleness, rounds", value => String(+value.toPrecision(3))],
  ["bytes_per_s", "Sent, bytes a second", value => bytes(value)],
];

export function bytes(count) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (count < 1000) return unit === "B" ? `${Math.round(count)} B` : `${count < 10 ? count.toFixed(1) : Math.round(count)} ${unit}`;
    count /= 1000;
  }
  return `${count.toFixed(1)} TB`;
}

const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });
const seconds = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const faded = hue => `color-mix(in srgb, ${hue} 16%, transparent)`;

export class Curves {
  constructor(place) {
    this.place = place;
    this.times = [];
    this.lines = Object.fromEntries(FIGURES.map(([name]) => [name, []]));
    this.names = [];
    this.each = true;
    this.offset = 0;
    this.charts = [];
    this.main = null;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.build());
    new ResizeObserver(() => this.resize()).observe(place);
  }

  // Lines are by member index. `offset` turns seconds of the node's clock into seconds of this browser's.
  start(history, nameOf, offset, main) {
    this.each = history.members;
    this.main = main;
    const latest = history.figures.main.at(-1) ?? [];
    this.names = this.each ? latest.map((_, index) => nameOf(index)) : ["least", "median", "largest"];
    this.offset = offset;
    this.times = history.times.slice();
    for (const [name] of FIGURES) {
      const points = history.figures[name];
      this.lines[name] = this.names.map((_, line) => points.map(point => point[line] ?? null));
    }
    this.build();
  }

  add(point) {
    const at = point.time[0];
    if (this.times.length && at <= this.times[this.times.length - 1]) return;
    if (point.main.length !== this.names.length) return false;
    this.times.push(at);
    for (const [name] of FIGURES) this.lines[name].forEach((line, place) => line.push(point[name][place] ?? null));
    if (this.times.length > MOST) this.thin();
    this.show();
    return true;
  }

  thin() {
    const half = list => list.filter((_, place) => place % 2 === 0);
    this.times = half(this.times);
    for (const [name] of FIGURES) this.lines[name] = this.lines[name].map(half);
  }

  data(name) {
    const times = this.times.map(at => at + this.offset);
    const lines = name === "distance" ? this.lines[name].map(line => line.map(value => value > 0 ? value : null)) : this.lines[name];
    return [times, ...lines];
  }

  build() {
    if (!window.uPlot) return;
    this.charts.forEach(chart => chart.plot.destroy());
    this.place.replaceChildren();
    this.charts = FIGURES.map(([name, title, format]) => {
      const card = document.createElement("div"), head = document.createElement("h2"), hint = document.createElement("span");
      const plotPlace = document.createElement("div"), nothing = document.createElement("div");
      card.className = ["distance", "staleness"].includes(name) ? "card curve mixed" : "card curve";
      head.append(name === "main" ? this.main?.title ?? title : title, hint);
      plotPlace.className = "plot";
      nothing.className = "nothing";
      card.append(head, plotPlace, nothing);
      this.place.append(card);
      const plot = new uPlot(this.options(name, format, plotPlace, hint), this.data(name), plotPlace);
      return { name, plot, plotPlace, nothing, hint, format };
    });
    this.show();
  }

  series() {
    const points = { show: plot => plot.data[0].length === 1, size: 6 };
    if (this.each) return this.names.map((name, place) => ({ label: name, stroke: color(`--c${place % 12}`), width: 1.6, points, spanGaps: true }));
    const quiet = { points, spanGaps: true, stroke: color("--c0") };
    return [
      { ...quiet, label: "least", width: 0.5 }, { ...quiet, label: "median", width: 2 }, { ...quiet, label: "largest", width: 0.5 },
    ];
  }

  options(name, format, place, hint) {
    const axis = { stroke: color("--faint"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    return {
      width: Math.max(200, place.clientWidth), height: place.clientHeight || 190,
      series: [{}, ...this.series()],
      bands: this.each ? [] : [{ series: [3, 1], fill: faded(color("--c0")) }],
      legend: { show: false },
      padding: [8, 20, 0, 0],
      cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
      scales: { x: { range: plot => minute(plot.data[0]) }, y: name === "distance" ? { distr: 3, log: 10 } : { range: (plot, low, high) => range(name === "main" && this.main?.name, low, high, plot.data.slice(1)) } },
      axes: [
        { ...axis, size: 28, space: (_, __, low, high) => high - low <= 300 ? 76 : 48, values: (_, ticks) => this.ticks(ticks) },
        { ...axis, size: 54, space: 28, values: (plot, ticks, _, __, step) => this.marks(name, plot, ticks, step), ...(name === "distance" ? { splits: (_, __, low, high) => powers(low, high) } : {}) },
      ],
      hooks: { setCursor: [plot => { hint.textContent = this.hintAt(plot, format); }] },
    };
  }

  ticks(ticks) {
    const fine = ticks.length > 1 && ticks[1] - ticks[0] < 60;
    return ticks.map(at => (fine ? seconds : clock).format(new Date(at * 1000)));
  }

  // Numbers of one axis: as many decimals, one unit and one notation for all.
  marks(name, plot, ticks, step) {
    const known = ticks.filter(tick => tick !== null), largest = Math.max(...known.map(Math.abs));
    if (!plot.data.slice(1).some(line => line.some(value => value !== null))) return ticks.map(() => "");
    if (name === "distance") return ticks.map(tick => tick === null ? "" : Math.min(...known) < 1e-4 ? power(tick) : String(+tick.toPrecision(2)));
    let scale = 1, unit = "";
    if (name === "bytes_per_s") {
      const thousands = Math.min(4, Math.max(0, Math.floor(Math.log10(largest || 1) / 3)));
      scale = 1000 ** thousands;
      unit = " " + ["B", "kB", "MB", "GB", "TB"][thousands];
    } else if (largest >= 1e6) return ticks.map(power);
    const decimals = [0, 1, 2, 3, 4, 5].find(count => Math.abs(step / scale * 10 ** count % 1) < 1e-6) ?? 6;
    return ticks.map(tick => (tick / scale).toFixed(decimals) + unit);
  }

  hintAt(plot, format) {
    const place = plot.cursor.idx;
    if (place === null || place === undefined) return this.each ? "" : "median and range";
    const told = plot.data.slice(1).map((line, series) => [plot.series[series + 1].label, line[place]]).filter(one => one[1] !== null);
    const values = this.each && told.length > 3 ? [["from", Math.min(...told.map(one => one[1]))], ["to", Math.max(...told.map(one => one[1]))]] : told;
    return values.map(([label, value]) => `${label} ${format(value)}`).join("  ");
  }

  show() {
    for (const { name, plot, nothing, hint, format } of this.charts) {
      const data = this.data(name), empty = !data.slice(1).some(line => line.some(value => value !== null));
      plot.setData(data);
      nothing.textContent = empty ? "nothing yet" : "";
      if (plot.cursor.idx === null || plot.cursor.idx === undefined) hint.textContent = this.hintAt(plot, format);
    }
  }

  resize() {
    for (const { plot, plotPlace } of this.charts) {
      const width = Math.max(200, plotPlace.clientWidth), height = plotPlace.clientHeight || 190;
      if (width !== plot.width || height !== plot.height) plot.setSize({ width, height });
    }
  }
}

const power = value => value.toExponential().replace("+", "").replace("-", "−");
const minute = times => times.length ? [Math.min(times[0], times.at(-1) - 60), times.at(-1)] : [null, null];

// Of ten; where they are too few, also twice and five times those.
function powers(low, high) {
  const found = factors => {
    const all = [];
    for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++) all.push(...factors.map(factor => factor * 10 ** power));
    return all.filter(value => value >= low * 0.999 && value <= high * 1.001);
  };
  return found([1]).length > 2 ? found([1]) : found([1, 2, 5]);
}

// The scale is that of what most of the time was like: a steep beginning may leave it below.
function range(name, low, high, lines) {
  if (low === null || high === null) return [0, 1];
  if (name === "accuracy") {
    const all = lines.flat().filter(value => value !== null && value !== undefined).sort((a, b) => a - b);
    const middle = all[Math.floor(all.length / 2)], floor = Math.max(low, middle - 3 * (high - middle) - 0.02);
    const room = Math.max(0.005, 0.08 * (high - floor));
    return [Math.max(0, floor - room), Math.min(1 + room / 2, high + room)];
  }
  if (low < 0) return [low - 0.08 * (high - low), high + 0.08 * Math.max(high - low, 0.1)];
  return [0, high > 0 ? high * 1.08 : 1];
}
