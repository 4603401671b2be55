// The graph as SVG: a circle for few members or a ring, else springs. Positions are made once for each graph.
const NS = "http://www.w3.org/2000/svg";
const FEW = 16;
const LABELS = 40;

export function stateOf(row) {
  if (row.phase === null || row.phase === undefined) return "unknown";
  if (row.lost) return "lost";
  if (row.quiet) return "quiet";
  if (row.phase === "finished" || row.phase === "lingering") return "finished";
  if (row.phase === "training") return "training";
  if (row.phase === "closing" || row.phase === "testing") return "closing";
  return row.phase === "stopped" ? "quiet" : "waiting";
}

const add = (parent, name, attributes) => {
  const one = document.createElementNS(NS, name);
  for (const key in attributes) one.setAttribute(key, attributes[key]);
  parent.append(one);
  return one;
};

function isRing(count, edges) {
  return edges.every(([a, b]) => b - a === 1 || b - a === count - 1);
}

function onCircle(count) {
  return Array.from({ length: count }, (_, i) => {
    const angle = 2 * Math.PI * i / count - Math.PI / 2;
    return [Math.cos(angle), Math.sin(angle)];
  });
}

// Fruchterman and Reingold, 1991. The start is the circle, so the same graph always looks the same.
function bySprings(count, edges) {
  const at = onCircle(count), ideal = 1.6 / Math.sqrt(count), steps = count > 400 ? 80 : 260;
  for (let step = 0; step < steps; step++) {
    const move = at.map(() => [0, 0]), heat = 0.12 * (1 - step / steps) + 0.001;
    for (let i = 0; i < count; i++) {
      for (let j = 0; j < i; j++) {
        const x = at[i][0] - at[j][0], y = at[i][1] - at[j][1], square = x * x + y * y + 1e-6;
        const push = ideal * ideal / square;
        move[i][0] += x * push; move[i][1] += y * push;
        move[j][0] -= x * push; move[j][1] -= y * push;
      }
    }
    for (const [a, b] of edges) {
      const x = at[a][0] - at[b][0], y = at[a][1] - at[b][1], pull = Math.sqrt(x * x + y * y) / ideal;
      move[a][0] -= x * pull; move[a][1] -= y * pull;
      move[b][0] += x * pull; move[b][1] += y * pull;
    }
    for (let i = 0; i < count; i++) {
      const length = Math.hypot(move[i][0], move[i][1]) || 1, part = Math.min(length, heat) / length;
      at[i][0] += move[i][0] * part - at[i][0] * 0.004; at[i][1] += move[i][1] * part - at[i][1] * 0.004;
    }
  }
  return at;
}

function fitted(at, width, height, margin) {
  const xs = at.map(one => one[0]), ys = at.map(one => one[1]);
  const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const scale = (value, low, high, size) => high > low ? margin + (value - low) / (high - low) * (size - 2 * margin) : size / 2;
  return at.map(([x, y]) => [scale(x, left, right, width), scale(y, top, bottom, height)]);
}

// Four letters at most.
const short = value => Math.abs(value) < 10 ? value.toFixed(2).replace(/^0/, "") : Math.abs(value) < 1000 ? value.toFixed(0) : `${value < 0 ? "−" : ""}10^${Math.floor(Math.log10(Math.abs(value)))}`;

export class Graph {
  constructor(place, choose) {
    this.place = place;
    this.choose = choose;
    this.shape = "";
  }

  // `label` names the main score, which stands in the discs.
  draw(rows, edges, own, chosen, label) {
    const shape = JSON.stringify([rows.map(row => row.index), edges]);
    if (shape !== this.shape) {
      this.shape = shape;
      this.build(rows, edges);
    }
    const byIndex = new Map(rows.map(row => [row.index, row]));
    for (const { element, disc, inside, index } of this.nodes) {
      const row = byIndex.get(index), state = stateOf(row);
      const wrong = row.lost || (row.standing.length > 0 && !row.quiet);
      element.setAttribute("class", `node ${state}${wrong ? " wrong" : ""}${index === own ? " own" : ""}${index === chosen ? " chosen" : ""}`);
      const told = row.main === null || row.main === undefined ? "" : short(row.main);
      if (inside) inside.textContent = told;
      element.querySelector("title").textContent = `${row.name}: ${wordFor(row)}${told ? `, ${label} ${+row.main.toPrecision(3)}` : ""}${wrong ? `, ${row.standing.join(", ")}` : ""}`;
      disc.setAttribute("aria-label", row.name);
    }
    for (const { element, a, b } of this.lines) {
      const near = chosen !== null && (a === chosen || b === chosen);
      element.setAttribute("class", `edge ${edgeState(byIndex.get(a), byIndex.get(b))}${near ? " near" : ""}`);
    }
  }

  build(rows, edges) {
    const count = rows.length, places = new Map(rows.map((row, place) => [row.index, place]));
    const inside = edges.filter(([a, b]) => places.has(a) && places.has(b));
    const joined = inside.map(([a, b]) => [places.get(a), places.get(b)]);
    const width = Math.min(560, Math.max(320, this.place.clientWidth || 560)), height = Math.round(width * (count <= FEW ? 0.74 : 0.92));
    const radius = count <= 8 ? 19 : count <= FEW ? 16 : count <= LABELS ? 10 : Math.max(3, 6.5 - count / 100);
    const raw = count <= FEW || isRing(count, joined) ? onCircle(count) : bySprings(count, joined);
    const at = fitted(raw, width, height, radius + (count <= LABELS ? 24 : 6));
    this.place.replaceChildren();
    const svg = add(this.place, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "graph of members", class: count > LABELS ? "many" : "" });
    this.lines = inside.map(([a, b]) => {
      const [x1, y1] = at[places.get(a)], [x2, y2] = at[places.get(b)];
      return { element: add(svg, "line", { x1, y1, x2, y2, class: "edge" }), a, b };
    });
    this.nodes = rows.map((row, place) => {
      const [x, y] = at[place], element = add(svg, "g", { class: "node", tabindex: 0, role: "button" });
      add(element, "title", {});
      add(element, "circle", { class: "ring", cx: x, cy: y, r: radius + 4, fill: "none" });
      const disc = add(element, "circle", { class: "disc", cx: x, cy: y, r: radius });
      let figure = null;
      if (radius >= 16) figure = add(element, "text", { x, y: y + 4, class: "inside" });
      if (count <= LABELS) {
        // Labels stand outside: below in the lower half, above in the upper.
        const below = y > height / 2 - 1;
        add(element, "text", { x, y: below ? y + radius + 17 : y - radius - 8 }).textContent = row.name;
      }
      element.addEventListener("click", () => this.choose(row.index));
      element.addEventListener("keydown", event => (event.key === "Enter" || event.key === " ") && this.choose(row.index));
      return { element, disc, inside: figure, index: row.index };
    });
  }
}

export const OVER = ["finished", "stopped", "lingering"];
export const wordFor = row => row.phase === null || row.phase === undefined ? "not heard of yet" : row.lost ? "not heard" : row.quiet ? `quiet (${row.phase})` : row.phase;

// Either end knows whether there is a session and whether anything comes over it; the word of one that is heard counts.
function edgeState(a, b) {
  const words = [];
  for (const [one, other] of [[a, b], [b, a]]) {
    if (!one.live || one.quiet || one.lost || OVER.includes(one.phase)) continue;
    words.push(!one.live.includes(other.index) ? "cut" : (one.unheard ?? []).includes(other.index) ? "unheard" : "open");
  }
  if (!words.length || [a, b].some(one => OVER.includes(one.phase) && !one.lost)) return "unknown";
  return words.includes("cut") ? "cut" : words.includes("unheard") ? "unheard" : "open";
}
