// The live page: asks its own node for everything, changes nothing. Text from other nodes is shown as text, never as markup.
import { Curves, bytes } from "/curves.js";
import { Graph, OVER, stateOf, wordFor } from "/graph.js";

const COLUMNS = [
  ["name", "member", row => row.index],
  ["state", "state", row => trouble(row)],
  ["rounds", "round", row => row.rounds ?? -1],
  ["main", "accuracy", row => row.main ?? -Infinity, "score"],
  ["epsilon", "epsilon", row => row.epsilon ?? -1, "private less"],
  ["distance", "distance", row => row.distance ?? -1, "less mixed"],
  ["staleness", "staleness", row => row.staleness ?? -1, "less mixed"],
  ["bytes_sent", "sent", row => row.bytes_sent ?? -1, "less"],
  ["at", "heard", row => row.at ?? -1, "less"],
];
const KEY = [["training", "training"], ["waiting", "waiting or joining"], ["closing", "closing"], ["finished", "finished"], ["lost", "not heard by any neighbor"], ["quiet", "silent for long"]];
const $ = id => document.getElementById(id);

let said = null;          // the latest whole view, with members by index
let receivedAt = 0;       // when, by this page's clock, in seconds
let chosen = null;
let sorting = { column: "state", down: true };
let tableRows = new Map();
let ended = null;         // how and when this node ended, once it has said so and is gone
let drawn = "";           // the members, edges and measures of which the table and the curves are
let misses = 0;           // how often in a row there was no answer

const graph = new Graph($("graph"), choose);
const curves = new Curves($("curves"));
const here = () => performance.now() / 1000;
const nodeNow = () => said.now + here() - receivedAt;

function make(name, text, kind) {
  const one = document.createElement(name);
  if (text !== undefined && text !== null) one.textContent = text;
  if (kind) one.className = kind;
  return one;
}

function age(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 100) return `${s} s`;
  if (s < 6000) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} days`;
}

const figure = (value, digits = 3) => value === null || value === undefined ? "–" : value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(1) : value.toFixed(digits);
const trouble = row => (row.lost ? 8 : 0) + (row.quiet ? 4 : 0) + (row.standing.length ? 2 : 0) + (row.phase === null ? 1 : 0);

function choose(index) {
  chosen = chosen === index ? null : index;
  draw();
}

// The task's main measure; for a task that names none, accuracy if any member has it, else the loss.
const main = () => said.measures?.[0] ?? (rows().some(row => row.accuracy !== null && row.accuracy !== undefined) ? { name: "accuracy", label: "accuracy" } : { name: "loss", label: "loss" });
const titled = text => text.charAt(0).toUpperCase() + text.slice(1);
const nameOf = index => said.byIndex.get(index)?.name ?? `member ${index}`;
const rows = () => [...said.byIndex.values()];
// With a privacy budget, scores may be withheld: then no member has any.
// If rounds are sums, no model is mixed with a neighbor's, and no member has a staleness.
const isSummed = () => rows().some(row => row.phase !== null) && rows().every(row => row.staleness === null || row.staleness === undefined);
const isWithheld = () => said.privacy && rows().every(row => row.main === null || row.main === undefined);
const short = value => value === null || value === undefined ? "–" : String(+value.toFixed(2));
const spentBy = row => row.index === said.own && said.privacy.epsilon === null ? said.privacy.state : `${short(row.epsilon)} of ${short(said.privacy.budget)}`;

// -- what is shown ---------------------------------------------------------------------------------------------------

function draw() {
  if (!said) return;
  tab();
  tiles();
  alarms();
  graph.draw(rows(), said.edges, said.own, chosen, main().label);
  table();
  member();
  events();
  ages();
}

function tile(title, big, small, more, wrong) {
  const one = make("div", null, wrong ? "tile wrong" : "tile"), value = make("div", big, "big");
  if (small) value.append(" ", make("small", small));
  one.append(make("h2", title), value, make("div", more, "more"));
  return one;
}

const sum = list => list.reduce((total, value) => total + value, 0);
const spread = (key, among) => among.map(row => row[key]).filter(value => value !== null && value !== undefined);
const span = (values, tell = String) => Math.min(...values) === Math.max(...values) ? tell(values[0]) : `${tell(Math.min(...values))} to ${tell(Math.max(...values))}`;

function roundTile(there) {
  const rounds = spread("rounds", there), goal = said.rounds_to_do, beyond = goal && rounds.length > 0 && Math.min(...rounds) >= goal;
  const big = !rounds.length ? "–" : beyond ? String(goal) : span(rounds);
  const one = tile("Round", big, goal ? `of ${goal}` : "", beyond && Math.max(...rounds) > goal ? `all done; training continued to ${span(rounds)}` : "");
  if (!goal || beyond) return one;
  const bar = make("div", null, "bar"), part = make("i");
  part.style.width = `${Math.min(100, 100 * (rounds.length ? sum(rounds) / rounds.length : 0) / goal)}%`;
  bar.append(part);
  one.lastChild.replaceWith(bar);
  return one;
}

function tiles() {
  const all = rows(), known = all.filter(row => row.phase !== null), there = known.filter(row => !row.quiet && !row.lost);
  const states = new Map();
  for (const row of all) states.set(stateOf(row), (states.get(stateOf(row)) ?? 0) + 1);
  const words = { lost: "not heard", quiet: "quiet", training: "training", waiting: "waiting", closing: "closing", finished: "finished", unknown: "not heard of yet" };
  const told = Object.entries(words).filter(([state]) => states.has(state)).map(([state, word]) => `${states.get(state)} ${word}`).join(", ");
  const score = spread("main", there), sent = spread("bytes_sent", known), rate = spread("bytes_per_s", there);
  const wrongs = all.filter(row => row.standing.length), count = sum(wrongs.map(row => row.standing.length));
  const epsilon = spread("epsilon", known), withheld = isWithheld();
  const unknown = said.privacy && said.privacy.epsilon === null;
  const privacy = !said.privacy ? [] : [tile("Privacy", epsilon.length ? short(Math.max(...epsilon)) : "–", `of ${short(said.privacy.budget)}`,
    unknown ? `budget of ${said.node}: ${said.privacy.state}` : `epsilon spent of each ${said.privacy.unit}, delta ${said.privacy.delta}${withheld ? "; scores withheld: they would reveal rows" : ""}`, unknown)];
  $("main").classList.toggle("is-private", Boolean(said.privacy));
  $("main").classList.toggle("is-withheld", Boolean(withheld));
  $("main").classList.toggle("is-summed", isSummed());
  $("tiles").replaceChildren(
    tile("Members", String(all.length), "", told, states.has("lost")),
    roundTile(there),
    ...withheld ? [] : [tile(titled(main().label), score.length ? figure(sum(score) / score.length) : "–", "mean", score.length ? span(score, figure) : "not tested yet")],
    ...privacy,
    tile("Sent", sent.length ? bytes(sum(sent)) : "–", "by all", rate.length ? `${bytes(sum(rate))} a second` : ""),
    tile("Alarms", String(count), "", count ? wrongs.slice(0, 4).map(row => row.name).join(", ") + (wrongs.length > 4 ? ` and ${wrongs.length - 4} more` : "") : "none active", count > 0),
  );
}

// The tab's title and icon show that something is wrong.
function tab() {
  const lost = rows().filter(row => row.lost), wrong = lost.length > 0 || said.alarms.length > 0;
  const what = ended ? `${ended.phase} · ` : lost.length ? `${lost.length} not heard · ` : wrong ? "alarm · " : "";
  document.title = `${what}${said.federation} · p2pfl`;
  const icon = wrong && !ended ? "/icon-wrong.svg" : "/icon.svg";
  if ($("icon").getAttribute("href") !== icon) $("icon").setAttribute("href", icon);
}

function alarms() {
  const cards = said.alarms.map(alarm => {
    const one = make("article", null, "alarm"), head = make("h3", alarm.about ? `${alarm.kind}: ${alarm.about}` : alarm.kind), list = make("dl");
    const since = make("span", `for ${age(nodeNow() - alarm.since)}${alarm.count > 1 ? `, ${alarm.count} times` : ""}`);
    head.append(since);
    for (const [term, text] of [["means", alarm.means], ["this node", alarm.does], ["to do", alarm.advice]]) list.append(make("dt", term), make("dd", text));
    one.append(head, make("p", alarm.text), list);
    return one;
  });
  $("alarms").replaceChildren(...cards);
}

function table() {
  const [head, body] = [$("members").tHead, $("members").tBodies[0]];
  if (!head.rows.length) {
    const line = head.insertRow();
    for (const [key, title, , kind] of COLUMNS) {
      const cell = make("th", null, kind), button = make("button", title);
      button.addEventListener("click", () => { sorting = { column: key, down: sorting.column === key ? !sorting.down : key !== "name" }; draw(); });
      cell.append(button);
      line.append(cell);
    }
  }
  const score = head.rows[0].cells[COLUMNS.findIndex(([key]) => key === "main")].firstChild;
  if (score.textContent !== main().label) score.textContent = main().label;
  const by = COLUMNS.find(([key]) => key === sorting.column)[2], sign = sorting.down ? -1 : 1;
  const ordered = rows().sort((a, b) => sign * (by(a) - by(b)) || a.index - b.index);
  for (const [index, line] of tableRows) if (!said.byIndex.has(index)) { line.element.remove(); tableRows.delete(index); }
  ordered.forEach((row, place) => {
    let line = tableRows.get(row.index);
    if (!line || line.row !== row) line = fill(line, row);
    line.element.classList.toggle("chosen", row.index === chosen);
    if (body.children[place] !== line.element) body.insertBefore(line.element, body.children[place] ?? null);
  });
}

function fill(line, row) {
  const element = line?.element ?? make("tr");
  if (!line) element.addEventListener("click", () => choose(row.index));
  element.classList.toggle("old", row.quiet || row.phase === null);
  element.classList.toggle("gone", Boolean(row.lost));
  const name = make("td"), state = make("td", null, "state");
  if (curves.each) {
    const swatch = make("span", null, "swatch");
    swatch.style.background = `var(--c${row.index % 12})`;
    name.append(swatch);
  }
  name.append(row.name);
  state.append(make("span", null, `dot ${stateOf(row)}`), wordFor(row));
  for (const kind of row.standing) state.append(make("span", kind, "badge"));
  const heard = make("td", "", "less");
  const figures = [
    make("td", row.rounds ?? "–"), scoreCell(row), make("td", short(row.epsilon), "private less"),
    make("td", figure(row.distance), "less mixed"), make("td", figure(row.staleness, 2), "less mixed"),
    make("td", row.bytes_sent === null || row.bytes_sent === undefined ? "–" : bytes(row.bytes_sent), "less"), heard,
  ];
  figures.forEach((cell, place) => { cell.dataset.label = place === 1 ? main().label : COLUMNS[place + 2][1]; });
  element.replaceChildren(name, state, ...figures);
  const made = { element, row, heard };
  tableRows.set(row.index, made);
  return made;
}

function ages() {
  if (!said) return;
  const now = nodeNow();
  for (const { row, heard } of tableRows.values()) {
    const told = row.at === null || row.at === undefined ? "–" : age(now - row.at) + (row.source ? ` by ${row.source}` : "");
    if (heard.textContent !== told) heard.textContent = told;
  }
}

// A score of an older model says after which round it was tested.
function scoreCell(row) {
  const cell = make("td", figure(row.main), "score"), after = row.tested_round;
  if (typeof after === "number" && typeof row.main === "number") cell.append(make("span", ` after ${after}`, "older"));
  return cell;
}

const others = row => (said.measures ?? []).slice(1).map(one => [one.name === "loss" ? "test loss" : one.label, figure(row.scores?.[one.name])]);

const sure = row => Object.entries(row.intervals ?? {}).map(([name, ends]) => [`95% interval, ${(said.measures ?? []).find(one => one.name === name)?.label ?? name}`, `${figure(ends[0], 3)} to ${figure(ends[1], 3)}`]);

function member() {
  const place = $("member"), row = said.byIndex.get(chosen ?? said.own);
  place.replaceChildren();
  if (!row || (chosen === null && said.byIndex.size > 16)) return;
  const list = make("dl"), neighbors = said.edges.filter(edge => edge.includes(row.index)).map(([a, b]) => a === row.index ? b : a);
  const facts = [
    ["state", wordFor(row)], ["alarms", row.standing.join(", ") || (row.alarms ? `${row.alarms} so far, none active` : "none")],
    ["neighbors", neighbors.map(index => nameOf(index) + (row.live && !row.live.includes(index) ? " (no session)" : (row.unheard ?? []).includes(index) ? " (not heard)" : "")).join(", ")],
    ...(isWithheld() ? [] : [...sure(row), ...others(row)]), ...(said.privacy ? [["privacy", `epsilon ${spentBy(row)}`]] : [["training loss", figure(row.loss)]]), [isSummed() ? "sums" : "exchanges", row.exchanges ?? "–"], ["received", row.bytes_received === null || row.bytes_received === undefined ? "–" : bytes(row.bytes_received)],
    ["software", row.software ? `p2pfl ${row.software}` : "–"], ["charter", row.charter || "none"],
    ["heard", row.at === null || row.at === undefined ? "never" : `${age(nodeNow() - row.at)} ago${row.source ? `, by ${row.source}` : ""}`],
  ];
  for (const [term, text] of facts) list.append(make("dt", term), make("dd", text));
  place.append(make("b", row.index === said.own ? `${row.name}, this node` : row.name), list);
}

function events() {
  const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hour12: false });
  const lines = said.events.slice().reverse().map(event => {
    const at = new Date(Date.now() - 1000 * (nodeNow() - event.at)), one = make("li", null, event.wrong ? "wrong" : "");
    const when = make("time", (Date.now() - at > 64800000 ? day : clock).format(at));
    when.dateTime = at.toISOString();
    one.append(when, make("span", event.about ? `${event.kind}: ${event.about}` : event.kind, "kind"), make("span", event.text, "text"));
    return one;
  });
  $("events").replaceChildren(...lines);
  $("seen-by").textContent = `as seen by ${said.node}`;
}

// -- what comes ------------------------------------------------------------------------------------------------------

function take(whole) {
  const known = said?.byIndex ?? new Map();
  receivedAt = here();
  ended = null;
  said = { ...whole, byIndex: new Map(whole.members.map(row => [row.index, kept(known.get(row.index), filled(row))])) };
  said.own = whole.members.find(row => row.name === whole.node)?.index ?? null;
  $("federation").textContent = whole.federation;
  $("topology").textContent = `${whole.topology}, seen by ${whole.node}`;
  $("main").hidden = false;
  $("message").hidden = true;
  const shape = JSON.stringify([whole.members.map(row => row.name), whole.edges, whole.measures]);
  if (shape !== drawn) {
    drawn = shape;
    tableRows.forEach(line => line.element.remove());
    tableRows = new Map();
    loadHistory();
  } else if (whole.point && curves.add(whole.point) === false) loadHistory();
  connection("live", "live");
  draw();
}

// A row that has not changed stays the same object, so that its line in the table stays, too.
const kept = (before, row) => before && JSON.stringify(before) === JSON.stringify(row) ? before : row;

const filled = row => ({ phase: null, rounds: null, accuracy: null, main: null, quiet: false, lost: false, standing: [], unheard: [], ...row });

function loadHistory() {
  fetch("/history").then(answer => answer.json()).then(history => {
    curves.start(history, index => said.byIndex.get(index)?.name ?? "", Date.now() / 1000 - nodeNow(), { name: main().name, title: titled(main().label) });
    tableRows.forEach(line => { line.row = null; });
    draw();
  }).catch(() => {});
}

function connection(state, text) {
  $("connection").className = `connection ${state}`;
  $("connection").textContent = text;
  $("main").classList.toggle("old", state === "lost");
}

function explain(...parts) {
  $("message").replaceChildren(...parts);
  $("message").hidden = false;
  $("main").hidden = true;
}

// The node has ended: its last data stay on the page, which goes on asking in case it is started again.
function finish(phase) {
  const at = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hour12: false }).format(new Date());
  const score = said.byIndex.get(said.own)?.main, open = rows().filter(row => !OVER.includes(row.phase)).map(row => row.name);
  ended = { phase, at };
  const how = score === null || score === undefined ? "" : `, ${main().label} ${figure(score)}`;
  connection(phase === "finished" ? "over" : "over stopped", `${phase} at ${at}${how}${open.length ? `; not heard from at the end: ${open.slice(0, 4).join(", ")}${open.length > 4 ? ` and ${open.length - 4} more` : ""}` : ""}`);
  draw();
}

async function begin() {
  const token = location.hash.slice(1);
  if (token) {
    await fetch("/enter", { method: "POST", body: token }).catch(() => {});
    history.replaceState(null, "", "/");
  }
  ask();
}

// Asks for the whole view once a second, of many members more seldom: their rows come seldom, too.
async function ask() {
  const answer = await fetch("/federation").catch(() => null);
  if (answer?.status === 401) {
    connection("lost", "not shown");
    explain(make("p", "To see this page, open its link. You find it in the node's log:"), make("code", "page for others: http://…/#…"));
    return;
  }
  const whole = answer?.ok ? await answer.json().catch(() => null) : null;
  misses = whole ? 0 : misses + 1;
  if (whole) take(whole);
  else if (misses > 1 && !ended) miss();
  setTimeout(ask, ended ? 5000 : said?.byIndex.size > 50 ? 3000 : 1000);
}

function miss() {
  const phase = said?.byIndex.get(said.own)?.phase;
  drawn = "";  // what comes then may be of another process
  if (OVER.includes(phase)) finish(phase === "stopped" ? phase : "finished");
  else connection("lost", said ? `no answer from ${said.node}` : "no answer");
}

addEventListener("hashchange", () => location.hash.length > 1 && location.reload());
setInterval(() => { if (ended) return; ages(); if (said && here() - receivedAt > 8) connection("lost", `nothing from ${said.node} for ${age(here() - receivedAt)}`); }, 1000);
$("key").replaceChildren(...KEY.map(([state, text]) => { const one = make("span"); one.append(make("span", null, `dot ${state}`), text); return one; }));
begin();
