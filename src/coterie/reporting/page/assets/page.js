/* The page: views of runs, one run, a comparison and real peers. All numbers come from Python; this draws them.
   Data come from the server (/api/...), or, in a report, from the block #data. State is in the address. */
"use strict";
const inReport = document.getElementById("data");
const stored = inReport ? JSON.parse(inReport.textContent) : null;
const main = document.getElementById("main");

/* ---- small tools ---- */
const text = (metric, value) => value === null || value === undefined ? "-"
  : metric.percent ? (100 * value).toFixed(1) + " %" : String(Number(value.toPrecision(4)));
function signed(metric, value) {
  if (value === null || value === undefined) return "-";
  const shown = metric.percent ? (100 * value).toFixed(1) : String(Number(value.toPrecision(4)));
  return Number(shown) === 0 ? shown.replace("-", "") : (value > 0 ? "+" : "") + shown;
}
const sense = (said) => /[1-9]/.test(said) ? (said.startsWith("+") ? "good" : said.startsWith("-") ? "bad" : "") : "";
const gainCell = (said) => el("span", { class: sense(said) }, said);
function bytes(value) {
  let unit = 0;
  while (value >= 999.5 && unit < 4) { value /= 1000; unit++; }
  return (unit ? Number(value.toPrecision(3)) : Math.round(value)) + " " + ["B", "kB", "MB", "GB", "TB"][unit];
}
function where() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: path || (stored ? stored.start.view : "runs"), query: new URLSearchParams(query || "") };
}
function address(view, query) { return "#/" + view + "?" + new URLSearchParams(query).toString(); }
function keep(changes) {  // in the address, without drawing everything again
  const { view, query } = where();
  for (const [key, value] of Object.entries(changes)) value === null ? query.delete(key) : query.set(key, value);
  history.replaceState(null, "", "#/" + view + "?" + query.toString());
}
const pack = (ids) => [...ids].map((id) => id.replace(/%/g, "%25").replace(/,/g, "%2C")).join(",");  // a name may have a comma
const unpack = (text) => (text || "").split(",").filter(Boolean).map((id) => id.replace(/%2C/gi, ",").replace(/%25/g, "%"));
const kept = new Map();
async function ask(path) {
  if (stored) {
    if (path in stored.data) return stored.data[path];
    throw new Error("This report does not hold that; the dashboard shows it.");
  }
  const answer = await fetch(path);
  const found = await answer.json().catch(() => ({ error: "The answer cannot be read." }));
  if (!answer.ok) throw new Error(found.error || answer.statusText);
  return found;
}
async function askOnce(path) {
  if (!kept.has(path)) { if (kept.size > 400) kept.clear(); kept.set(path, ask(path)); }
  try { return await kept.get(path); } catch (error) { kept.delete(path); throw error; }
}
function table(head, rows, caption, numbers) {  // its first column stays where it is when the others are scrolled
  const right = (n) => numbers && numbers.includes(n) ? "number" : null;
  return el("div", {}, el("p", { class: "note" }, caption), el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", { class: "kept" },
      el("thead", {}, el("tr", {}, head.map((name, n) => el("th", { scope: "col", class: right(n) || "" }, name)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, n) => el("td", { class: right(n) || "" }, cell ?? "-"))))))));
}
function twin(caption, make) {  // the table of a picture, made when it is opened
  const box = el("details", {}, el("summary", {}, "The numbers as a table: " + caption));
  box.addEventListener("toggle", () => { if (box.open && box.children.length === 1) box.append(make()); });
  return box;
}
const whole = (said) => said.replace(/(\d) (%|[kMGT]?B\b|points?\b|s\b|min\b|h\b)/g, "$1\u00a0$2");  // a number and its unit stay together
const words = (lines) => el("div", { class: "words" }, lines.map((line) => el("p", {}, whole(line))));
const tiles = (all) => el("dl", { class: "tiles" }, all.filter(Boolean).map(([what, value, more, kind]) => el("div", {}, el("dt", {}, what), el("dd", { class: kind || "" }, value), more ? el("dd", { class: "more" }, more) : null)));
const notes = (lines) => lines.map((line) => el("p", { class: "note" }, whole(line)));

/* ---- runs ---- */
const COLUMNS = [["name", "run"], ["algorithm", "algorithm"], ["score", "main metric", 1], ["gain", "gain over Local", 1],
  ["bytes", "sent per peer", 1], ["state", "state"], ["differs", "differs in"], ["started", "started"]];
async function viewRuns(query) {
  const found = await ask("/api/runs");
  const inUrl = (key) => new Set(unpack(query.get(key)));
  const picked = inUrl("picked"), open = inUrl("open");
  const list = el("div"), count = el("p", { class: "note", role: "status" });
  let most = 200;
  const compare = el("button", { type: "button", on: { click: () => { location.hash = address("compare", { ids: pack(picked) }); } } });
  const search = el("input", { type: "search", "aria-label": "Search runs", placeholder: "search", value: query.get("q") || "",
    on: { input: () => { keep({ q: search.value || null }); draw(); } } });
  const say = () => { compare.textContent = picked.size ? `Compare ${picked.size} picked` : "Pick some to compare"; compare.disabled = picked.size < 1; };
  function draw() {
    const q = where().query, asked = (q.get("q") || "").toLowerCase().split(/\s+/).filter(Boolean);
    const by = q.get("sort") || "started", down = q.get("down") !== "0";
    const value = (run) => by === "state" ? run.state.kind : run[by];
    const sorted = (rows) => rows.slice().sort((a, b) => { const x = value(a), y = value(b);
      if (x === y) return a.id < b.id ? -1 : 1; if (x === null || x === undefined) return 1; if (y === null || y === undefined) return -1;
      return (x < y ? -1 : 1) * (down ? -1 : 1); });
    const rows = found.runs.filter((run) => asked.every((word) => run.text.includes(word)));
    const inside = new Map();  // by plan, what belongs to it
    for (const run of rows) if (run.plan) inside.set(run.plan, [...(inside.get(run.plan) || []), run]);
    const there = new Set(rows.map((run) => run.id)), tops = sorted(rows.filter((run) => !run.plan || !there.has(run.plan)));
    const shown = tops.flatMap((run) => [[run, 0], ...(open.has(run.id) ? sorted(inside.get(run.id) || []).map((one) => [one, 1]) : [])]);
    const all = found.runs.filter((run) => run.kind === "run").length, sparks = shown.flatMap(([run]) => run.curve || []).filter((v) => v !== null);
    const low = Math.min(...sparks.slice(0, 50000)), high = Math.max(...sparks.slice(0, 50000)), metrics = new Set(rows.map((run) => run.metric).filter(Boolean));
    count.textContent = (asked.length ? `${rows.filter((run) => run.kind === "run").length} of ${all} runs fit` : `${all} run${all === 1 ? "" : "s"}`) + (found.reading ? `; still reading, ${found.reading} folders left` : "");
    const titled = ([key, label]) => key === "score" && metrics.size === 1 ? [...metrics][0] : label;
    const head = COLUMNS.map(([key, label, number]) => [key, titled([key, label]), number]).map(([key, label, number]) => el("th", { scope: "col", class: (number ? "number " : "") + key, "aria-sort": key === by ? (down ? "descending" : "ascending") : "none" },
      el("button", { type: "button", on: { click: () => { keep({ sort: key, down: key === by && down ? "0" : "1" }); draw(); } } }, label + (key === by ? (down ? " ▾" : " ▴") : ""))));
    list.replaceChildren(el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Runs" }, el("table", { class: "runs" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col", class: "pick" }, "pick"), head)), el("tbody", {}, shown.slice(0, most).map(([run, deep]) => line(run, deep, low, high))))));
    if (!shown.length && asked.length) list.append(el("p", {}, "No run fits the search. It looks at names, algorithms and the keys in which runs differ."));
    if (shown.length > most) list.append(el("button", { type: "button", on: { click: () => { most += 1000; draw(); } } }, `Show more (${shown.length - most})`));
  }
  function line(run, deep, low, high) {
    const name = deep && run.name.startsWith(run.plan + "/") ? run.name.slice(run.plan.length + 1).replace(/^cells\//, "") : run.name;
    const link = run.link ? el("a", { href: address(run.link, run.link === "compare" ? { ids: pack([run.id]) } : { id: run.id }) }, breakable(name)) : breakable(name);
    const fold = run.runs ? el("button", { type: "button", class: "fold", "aria-expanded": String(open.has(run.id)), on: { click: () => {
      open.has(run.id) ? open.delete(run.id) : open.add(run.id); keep({ open: pack(open) || null }); draw();
      [...list.querySelectorAll("tr")].find((one) => one.dataset.id === run.id).querySelector(".fold").focus(); } } }, `${open.has(run.id) ? "▾" : "▸"} ${run.runs} runs`) : null;
    return el("tr", { class: deep ? "deep" : "", "data-id": run.id, "data-score": run.score, "data-gain": run.gain },
      el("td", { class: "pick" }, run.comparable ? el("input", { type: "checkbox", "aria-label": "Pick " + run.name, checked: picked.has(run.id), on: { change: (event) => {
        event.target.checked ? picked.add(run.id) : picked.delete(run.id); keep({ picked: pack(picked) || null }); say(); } } }) : null),
      el("td", { class: "name" }, link, fold ? [" ", fold] : null),
      el("td", { class: "algorithm" }, breakable(run.algorithm || run.kind + (run.algorithms ? ": " + run.algorithms : ""))),
      el("td", { class: "number score" }, run.curve && run.curve.length > 1 ? spark(run.curve, low, high) : null, el("span", {}, run.score_text), run.best ? el("small", {}, "best: " + run.best) : null),
      el("td", { class: "number gain " + sense(run.gain_text), title: "gain over Local" }, run.gain_text), el("td", { class: "number bytes", title: "sent per peer" }, run.bytes_text),
      el("td", { class: "state" }, el("span", { class: "badge state-" + run.state.kind }, run.state.text)), el("td", { class: "differs" }, breakable(run.differs || "")), el("td", { class: "started" }, (run.started || "").replace("T", " ").slice(0, 16)));
  }
  say(); draw();
  main.replaceChildren(el("h1", {}, "Runs in " + found.root), el("div", { class: "bar" }, search, compare), count, ...notes(found.notes), list);
}
function breakable(long) {  // after what joins words, never within words and numbers
  return String(long).split(/(?<=[/.\-_(])(?!\d)/).flatMap((part, n) => n ? [el("wbr", {}), part] : [part]);
}

/* ---- comparison ---- */
async function viewCompare(query) {
  const part = query.get("part");
  const found = await ask("/api/compare?ids=" + encodeURIComponent(query.get("ids") || "") + (part ? "&part=" + encodeURIComponent(part) : ""));
  drawComparison(found, query);
}
function drawComparison(found, query) {
  const metric = found.metric, groups = found.groups;
  const dash = (n) => n >= LIGHT.length ? [6, 4] : undefined;
  const links = (one) => one.seeds.length < 2 ? (one.ids[0] ? el("a", { href: address("run", { id: one.ids[0] }) }, one.label) : one.label)
    : el("span", {}, one.label, el("small", {}, "seeds ", one.ids.map((id, n) => [n ? ", " : "", id ? el("a", { href: address("run", { id }), "aria-label": `${one.label}, seed ${one.seeds[n]}` }, String(one.seeds[n])) : String(one.seeds[n])]).flat()));
  const several = groups.some((one) => one.row.low !== null);
  const best = groups.length ? text(metric, groups[0].row.mean) : "", bold = (said) => said === best && groups.length > 1 && found.alike ? el("b", {}, said) : said;
  const rows = groups.map((one, n) => [el("span", {}, swatch(colour(n), !!dash(n)), links(one)),
    bold(text(metric, one.row.mean)), ...(several ? [one.row.low === null ? "-" : "± " + text(metric, one.row.high - one.row.mean)] : []),
    text(metric, one.row.worst), gainCell(signed(metric, one.row.gain)), one.row.bytes_text, one.row.inside === null ? "-" : Math.round(100 * one.row.inside) + " %", one.row.rounds, one.seeds.length]);
  const parts = [el("h1", {}, found.title || "Comparison"), words(found.words), notes(found.notes)];
  if (found.tables) for (const one of found.tables) parts.push(el("h2", {}, one.title), table(one.head, one.rows, one.caption || one.title, one.numbers));
  if (found.parts) parts.push(el("div", { class: "bar" }, el("label", { for: "part" }, "Below, runs of the column"), el("select", { id: "part", on: { change: (event) => { keep({ part: event.target.value }); show(); } } },
    Object.entries(found.parts.names).map(([name, shown]) => el("option", { value: name, selected: name === found.parts.now }, shown)))));
  if (groups.length) parts.push(el("h2", {}, "Learning curves"), el("p", { class: "note" }, "Means over peers on their own test data, at the point of a round where each method is measured." + (groups.some((one) => one.seeds.length > 1) ? " Bands: from the lowest seed to the highest." : "")),
    curves(metric, groups.map((one, n) => ({ label: one.label, rounds: one.curve.rounds, values: one.curve.mean, colour: colour(n), dash: dash(n),
      low: one.seeds.length > 1 ? one.curve.low : null, high: one.curve.high })), ["lowest seed", "highest seed"]),
    el("h2", {}, "Methods side by side"), table(["method", metric.unit, ...(several ? ["95 % interval"] : []), "worst tenth", "gain over Local", "sent per peer", "from own cluster", "rounds", "seeds"], rows, `Means over peers${several ? " and seeds, with Student's interval over the seeds" : ""}; ${metric.better}${found.alike ? ", the best in bold" : ""}. Worst tenth: of the peers.`, [1, 2, 3, 4, 5, 6, 7, 8]));
  if (found.targets) parts.push(targets(found, query));
  if (found.runs && found.runs.length) parts.push(el("h2", {}, "Single runs"), el("ul", {}, found.runs.map((one) => el("li", {}, el("a", { href: address("run", { id: one.id }) }, one.title)))));
  main.replaceChildren(...parts.flat());
  main.dataset.groups = groups.map((one) => one.label).join("|"); main.dataset.means = groups.map((one) => one.row.mean).join("|");
}
function targets(found, query) {
  const t = found.targets, last = t.values.length - 1, at = Math.min(last, Number(query.get("target") ?? Math.round(0.8 * last)));
  const out = el("output", { id: "target-value", for: "target" }), place = el("div");
  const slider = el("input", { type: "range", id: "target", min: "0", max: String(last), step: "1", value: String(at), on: { input: () => { keep({ target: slider.value }); draw(); } } });
  function draw() {
    const n = Number(slider.value);
    out.textContent = t.texts[n];
    slider.setAttribute("aria-valuetext", t.texts[n]);
    const several = found.groups.some((one) => one.seeds.length > 1);
    place.replaceChildren(table(["method", "rounds", "sent per peer", ...(several ? ["seeds that reached it"] : [])], found.groups.map((one, g) => [el("span", {}, swatch(colour(g), g >= LIGHT.length), one.label),
      t.rounds[g][n] === null ? "never" : Number(t.rounds[g][n].toFixed(1)), t.bytes_texts[g][n] || "-", ...(several ? [`${t.reached[g][n]} of ${one.seeds.length}`] : [])]), `Until the mean of the peers reaches ${t.texts[n]}`, [1, 2, 3]));
    place.dataset.target = t.values[n];
    place.dataset.rounds = found.groups.map((_, g) => t.rounds[g][n] ?? "never").join(",");
  }
  draw(); place.id = "to-target";
  return [el("h2", {}, "Rounds and bytes to a target"), el("div", { class: "bar" }, el("label", { for: "target" }, "target"), slider, out), place];
}

/* ---- one run ---- */
async function viewRun(query) {
  const id = query.get("id") || (stored && stored.start.id) || "";
  const run = await ask("/api/run?id=" + encodeURIComponent(id));
  if (query.has("peer")) return viewPeer(run, Number(query.get("peer")), id);
  const metric = run.metric, c = run.curve;
  const name = (n) => run.names ? run.names[n] : String(run.shown ? run.shown[n] : n);
  const series = [{ label: "mean " + c.point + " *", rounds: c.rounds, values: c.mean, colour: colour(0), low: c.worst, high: c.best },
    { label: "mean " + c.other_point, rounds: c.rounds, values: c.other, colour: colour(1), dash: [6, 4] }];
  if (c.local) series.push({ label: "Local", rounds: c.local.rounds, values: c.local.mean, colour: alone(), dash: [2, 3] });
  const parts = [el("h1", {}, run.title), el("p", { class: "facts" }, el("span", { class: "badge state-" + run.state.kind, role: "status", id: "state" }, run.state.text), " " + run.facts),
    runTiles(run), words(run.words), notes(run.notes), el("h2", {}, "Learning curves"), el("p", { class: "note" }, `Mean of ${run.peers} peers on their own test data at both points of a round (* the one that the method's paper uses). Band: worst to best tenth of the peers.`),
    c.rounds.length ? curves(metric, series, ["worst tenth", "best tenth"]) : el("p", {}, "Nothing was measured so far."), ...peersPart(run, name, id)];
  if (Object.keys(run.links.kinds).length) parts.push(...await linksPart(run, name, id, query));
  else parts.push(el("h2", {}, "Who learned from whom"), el("p", {}, "No model went from one peer to another."));
  parts.push(...trafficPart(run, name), ...labelsPart(run, name), ...await explainPart(run, id),
    el("h2", {}, "Configuration"), el("details", {}, el("summary", {}, "All keys"), table(["key", "value"], Object.entries(run.config), "config.toml")));
  main.replaceChildren(...parts.flat());
  main.dataset.mean = c.mean.length ? c.mean[c.mean.length - 1] : "";
  main.dataset.rounds = run.rounds.done;
}
function runTiles(run) {
  const c = run.curve, g = run.gains, metric = run.metric, t = run.traffic, last = (list) => list.length ? list[list.length - 1] : null;
  if (!c.rounds.length) return null;
  const gain = g.local === null ? null : signed(metric, g.mean), unit = metric.percent ? " points" : "";
  return tiles([[metric.title + ", mean", text(metric, last(c.mean)), "worst tenth " + text(metric, last(c.worst))],
    gain === null ? null : ["gain over Local", gain + (gain === "-" ? "" : unit), `${g.helped} gained, ${g.hurt} lost`, sense(gain)],
    run.inside === null ? null : ["from its own cluster", Math.round(100 * run.inside) + " %", "of what a peer learned"],
    ["sent per peer", bytes(t.per_peer), t.busiest && t.sent.some((one) => one < t.busiest.bytes) ? whole(`most: ${t.busiest.name}, ${t.busiest.text}`) : null],
    ["rounds", run.rounds.done < run.rounds.planned ? `${run.rounds.done} of ${run.rounds.planned}` : String(run.rounds.done), run.seconds]]);
}
function peersPart(run, name, id) {
  const g = run.gains, metric = run.metric, has = g.local !== null && g.gain, order = g.order.filter((n) => g.mine[n] !== null);
  const values = order.map((n) => has ? g.gain[n] : g.mine[n]);
  const open = (n) => address("run", { id, peer: n });
  const picture = bars(values, order.map((n, k) => has ? (values[k] >= 0 ? style("--good") : style("--bad")) : colour(0)),
    has ? "peers: gain over Local, largest first" : "peers: score, best first", (v) => has ? signed(metric, v) : text(metric, v), order.map(name), (k) => { location.hash = open(order[k]); });
  picture.dataset.helped = g.helped ?? ""; picture.dataset.hurt = g.hurt ?? ""; picture.id = "peers";
  return [el("h2", {}, has ? "Peers, by gain over Local" : "Peers, by score"), has ? el("p", {}, whole(g.words)) : null,
    el("figure", {}, picture, twin("peers", () => table(has ? ["peer", metric.unit, "alone", "gain"] : ["peer", metric.unit],
      order.map((n) => [el("a", { href: open(n) }, "peer " + name(n)), text(metric, g.mine[n]), ...(has ? [text(metric, g.alone[n]), signed(metric, g.gain[n])] : [])]), "Every peer", [1, 2, 3])))].filter(Boolean);
}
async function linksPart(run, name, id, query) {
  const links = { ...run.links, names: run.links.positions.map((_, place) => name(place)) }, kinds = Object.keys(links.kinds), n = links.positions.length;
  let kind = kinds.includes(query.get("kind")) ? query.get("kind") : kinds.includes(links.default) ? links.default : kinds[0];
  const graph = el("canvas", { role: "img", "aria-label": "Graph of who learned from whom; the table below has the strongest links" });
  const map = el("canvas", { role: "img", "aria-label": "Heat map of who learned from whom: receivers by senders; the table below has the strongest links" });
  const said = el("p", { role: "status", id: "links-said" }), twinPlace = el("div"), scale = el("span", {});
  const choose = el("select", { id: "kind", on: { change: () => { kind = choose.value; keep({ kind, round: null }); range(); draw(); } } }, kinds.map((one) => el("option", { value: one, selected: one === kind }, { "so far": "models received so far", "in this round": "models received in this round", weights: "weights that the method learned" }[one])));
  const slider = el("input", { type: "range", id: "round", step: "1", on: { input: () => { keep({ round: links.kinds[kind][Number(slider.value)] }); draw(); } } });
  const out = el("output", { for: "round" });
  function range() {
    const rounds = links.kinds[kind], asked = rounds.indexOf(Number(where().query.get("round")));
    slider.disabled = slider.hidden = rounds.length < 2; slider.min = "0"; slider.max = String(rounds.length - 1); slider.value = String(asked >= 0 ? asked : rounds.length - 1);
  }
  const path = (k, round) => `/api/links?id=${encodeURIComponent(id)}&kind=${encodeURIComponent(k)}&round=${round}`;
  let latest = 0, shownNow = null;
  async function draw() {
    const mine = ++latest, rounds = links.kinds[kind], at = Number(slider.value), round = rounds[at];
    out.textContent = "round " + round; slider.setAttribute("aria-valuetext", "round " + round);
    let found;
    try { found = await askOnce(path(kind, round)); } catch (error) { said.textContent = error.message; return; }
    if (mine !== latest) return;
    shownNow = found;
    drawGraph(graph, links, found); drawMap(map, links, found);
    const what = kind === "weights" ? "what a peer learned" : "the models that a peer received";
    const inside = found.inside === null ? "" : ` ${Math.round(1000 * found.inside) / 10} % of ${what} came from its own ${links.group_kind}.`;
    const only = kind === "weights" && rounds.length < 2 ? " Weights of earlier rounds were not written down." : "";
    const weak = weakOnes(found);
    const cut = (found.total > found.shares.length ? ` The ${found.shares.length} strongest are drawn.` : "") + (weak ? ` The graph leaves out ${weak} weak ones, below 2 % of the strongest.` : "");
    said.textContent = whole(`${found.total} links, ${found.learners} of ${n} peers learned from others.${inside}${cut}${only}`); scale.textContent = whole(`From none to ${(100 * strongest(found) / found.unit).toFixed(1)} % of ${what}.`);
    Object.assign(said.dataset, { inside: found.inside ?? "", total: found.total, learners: found.learners, round, kind });
    twinPlace.replaceChildren(twin("the strongest links in round " + round, () => {
      const order = found.shares.map((_, k) => k).sort((a, b) => found.shares[b] - found.shares[a]).slice(0, 200);
      return table(["learner", "learned from", "share"], order.map((k) => [name(found.receivers[k]), name(found.senders[k]), (100 * found.shares[k] / found.unit).toFixed(1) + " %"]), `The ${order.length} strongest of ${found.total} links`, [2]);
    }));
    if (!stored) for (const near of [at + 1, at - 1]) if (rounds[near] !== undefined) askOnce(path(kind, rounds[near])).catch(() => {});
  }
  whenShown(graph, () => { range(); draw(); new ResizeObserver(() => draw()).observe(graph.parentElement); });
  const nearest = (x, y) => {
    const size = graph.clientWidth; let best = -1, near = 15 * 15;
    links.positions.forEach((at, k) => { const d = (at[0] * size - x) ** 2 + (at[1] * size - y) ** 2; if (d < near) { near = d; best = k; } });
    return best;
  };
  let pointed = -1;
  const share = (value) => (100 * value).toFixed(1) + " %";
  hover(graph, (x, y) => {
    const peer = nearest(x, y); if (peer < 0 || !shownNow) return "";
    const from = links.positions.map((_, k) => [sharesOf(shownNow, n).get(peer * n + k) || 0, k]).filter(([v]) => v).sort((a, b) => b[0] - a[0]);
    return `peer ${name(peer)} learned from ` + (from.length ? from.slice(0, 4).map(([v, k]) => `${name(k)} (${share(v)})`).join(", ") + (from.length > 4 ? ` and ${from.length - 4} more` : "") : "nobody");
  }, (x, y) => { const peer = nearest(x, y); graph.style.cursor = peer < 0 ? "" : "pointer"; if (peer !== pointed && shownNow) drawGraph(graph, links, shownNow, pointed = peer); });
  hover(map, (x, y) => {
    const { from, size } = mapFrame(map, links), row = Math.floor((y - from) / size * n), column = Math.floor((x - from) / size * n);
    if (!shownNow || row < 0 || column < 0 || row >= n || column >= n) return "";
    const value = sharesOf(shownNow, n).get(links.order[row] * n + links.order[column]);
    return `peer ${name(links.order[row])} learned ${value ? share(value) : "nothing"} from ${row === column ? "itself" : "peer " + name(links.order[column])}`;
  });
  graph.onclick = (event) => { const peer = nearest(event.offsetX, event.offsetY); if (peer >= 0) { tip.hidden = true; location.hash = address("run", { id, peer }); } };
  const groups = [...new Set(links.groups)].sort((a, b) => a - b), grouped = links.group_kind !== "group";
  return [el("h2", {}, "Who learned from whom"), el("div", { class: "bar" }, el("label", { for: "kind" }, "show"), choose, el("label", { for: "round", class: "unseen" }, "round"), slider, out), said,
    el("div", { class: "keys" }, !grouped ? null : groups.slice(0, 12).map((k) => el("span", {}, el("i", { style: "--of:" + colour(k) }), `${links.group_kind} ${k}`)), groups.length > 12 ? el("span", {}, `and ${groups.length - 12} more; colours repeat`) : null),
    el("div", { class: "pictures" }, el("figure", {}, graph, el("figcaption", {}, "A line leads from a sender to a learner" + (grouped ? ", in the colour of the sender's " + links.group_kind : "") + ". Point at a peer to see its links, click it to open its page.")),
      el("figure", {}, map, el("figcaption", {}, "Each row is a peer that learns, each column one it learns from" + (grouped ? "; sorted by " + links.group_kind + ", in the colours of the edges. " : ". "), el("i", { class: "ramp" }), " ", scale))), twinPlace];
}
function trafficPart(run, name) {
  const t = run.traffic, order = t.sent.map((_, n) => n).sort((a, b) => t.sent[b] - t.sent[a]);
  const parts = [el("h2", {}, "Traffic"), el("p", { id: "traffic", "data-busiest": t.busiest ? t.busiest.bytes : "" }, whole(t.words))];
  if (t.busiest) parts.push(el("figure", {}, bars(order.map((n) => t.sent[n]), order.map(() => colour(2)), "peers: bytes sent, most first", (v) => v ? bytes(v) : "0", order.map(name)),
    twin("bytes by peer", () => table(["peer", "sent", "received"], order.slice(0, 1000).map((n) => [name(n), bytes(t.sent[n]), bytes(t.received[n])]), "Payloads since the first round", [1, 2])),
    twin("bytes by link", () => table(["sender", "receiver", "bytes", "messages"], t.links.map(([a, b, size, count]) => [a, b, bytes(size), count]), `The ${t.links.length} busiest of ${t.total_links} links`, [2, 3]))));
  return parts;
}
function labelsPart(run, name) {
  const labels = run.labels;
  if (!labels) return [];
  const canvas = labelBars(labels, run.links.order, name);
  return [el("h2", {}, "Labels"), el("p", { class: "note" }, "Training samples of each class" + (Object.keys(run.links.kinds).length ? "; peers in the order of the map." : ".")), el("figure", {}, canvas,
    el("div", { class: "keys" }, labels.classes.slice(0, 12).map((one, c) => el("span", {}, el("i", { style: "--of:" + shade(c, labels.classes.length) }), one))),
    twin("labels", () => table(["peer", ...labels.classes], labels.counts.map((row, n) => [name(n), ...row]), "Training samples by class", labels.classes.map((_, n) => n + 1))))];
}
async function explainPart(run, id) {
  let lines; try { lines = (await ask("/api/explain?id=" + encodeURIComponent(id))).lines; } catch (error) { return []; }
  return lines.length ? [el("h2", {}, "What is known of " + run.algorithm), el("details", { open: false }, el("summary", {}, "Equations, settings, differences from the paper"), el("pre", { tabindex: "0", role: "region", "aria-label": "What is known of " + run.algorithm }, lines.join("\n")))] : [];
}
async function viewPeer(run, place, id) {
  const peer = await ask(`/api/peer?id=${encodeURIComponent(id)}&place=${place}`), c = peer.curve, p = peer.partners;
  const series = [{ label: run.curve.point + " *", rounds: c.rounds, values: c.own, colour: colour(0) }, { label: run.curve.other_point, rounds: c.rounds, values: c.other, colour: colour(1), dash: [6, 4] }];
  if (c.local) series.push({ label: "alone (Local)", rounds: c.local.rounds, values: c.local.scores, colour: alone(), dash: [2, 3] });
  const counts = run.labels ? run.labels.counts[place] : null;
  const count = run.links.positions.length, other = (at, label) => at < 0 || at >= count ? null : el("a", { href: address("run", { id, peer: at }) }, label);
  main.replaceChildren(el("p", { class: "bar" }, el("a", { href: address("run", { id }) }, "← " + run.title), other(place - 1, "previous peer"), other(place + 1, "next peer")), el("h1", {}, `Peer ${peer.name} of ${run.title}`), words([peer.words]),
    el("h2", {}, "Its curve"), curves(run.metric, series, []), el("h2", {}, "Its partners over time"),
    p.names.length ? el("figure", {}, partnerRows(p), el("figcaption", {}, `Models that arrived, round by round, from the ${p.names.length} of ${p.total} peers it heard of most${run.links.group_kind === "group" ? "" : ", in the colour of their " + run.links.group_kind}.`), twin("partners", () => table(["from", "models"], p.names.map((one, r) => [one, p.counts[r].reduce((a, b) => a + b, 0)]), "Models that arrived", [1]))) : el("p", {}, "It received no model of another peer."),
    el("h2", {}, "Its data"), counts ? el("figure", {}, bars(counts, counts.map((_, c) => shade(c, counts.length)), "classes: training samples", String, run.labels.classes.map((one) => "class " + one)), twin("labels", () => table(["class", "training samples"], run.labels.classes.map((one, n) => [one, counts[n]]), "Its labels", [1]))) : el("p", {}, peer.samples === null ? "Its labels were not written down." : `${peer.samples} training samples.`));
}

/* ---- real peers ---- */
async function viewPeers() {
  const found = await ask("/api/peers"), metric = (one) => one.metric || { percent: true }, measured = [...new Set(found.peers.map((one) => one.metric && one.metric.title).filter(Boolean))].join(" or ") || "score";
  const line = (one) => [one.name, el("span", { class: "badge state-" + (one.kind || "interrupted") }, one.state), one.rounds ? `${one.round} of ${one.rounds}` : one.round ?? "-", ...["after_local", "after_mixing"].map((point) => one.scores && one.scores[point] !== undefined ? text(metric(one), one.scores[point]) : "-"),
    one.bytes_in === undefined ? "-" : bytes(one.bytes_in), one.bytes_out === undefined ? "-" : bytes(one.bytes_out), one.alive ?? "-", one.refused ?? "-"];
  main.replaceChildren(el("h1", {}, "Real peers"), found.peers.length ? tiles([["peers that run", `${found.peers.filter((one) => one.kind).length} of ${found.peers.length}`], ["finished", String(found.peers.filter((one) => one.kind === "finished").length)],
    ["rounds done, least", String(Math.min(...found.peers.map((one) => one.round ?? 0)))]]) : null, found.peers.length ? table(["peer", "state", "round", measured + " after local", measured + " after mixing", "received", "sent", "neighbours alive", "refused"], found.peers.map(line), "How they stand now", [2, 3, 4, 5, 6, 7, 8]) : el("p", {}, "No peers were named. To see them here: ", el("code", {}, "coterie dashboard --peer DIR"), " for one or more, or ", el("code", {}, "coterie swarm --dashboard"), " for five on this machine."),
    ...found.peers.filter((one) => one.neighbours && one.neighbours.length).flatMap((one) => [el("h2", {}, "As " + one.name + " sees the others"), table(["peer", "alive", "round", "weight", "received", "sent", "missing", "trouble"], one.neighbours.map((other) => [other.name, el("span", { class: "badge state-" + (other.alive ? "finished" : "interrupted") }, other.alive ? "alive" : "absent"), other.round < 0 ? "-" : other.round, other.weight === null ? "-" : Number(other.weight.toPrecision(3)), bytes(other.bytes_in), bytes(other.bytes_out), other.missing, other.trouble || ""]), "Neighbours of " + one.name, [2, 3, 4, 5, 6])]));
  main.dataset.peers = found.peers.length;
}

/* ---- showing ---- */
const VIEWS = { runs: viewRuns, run: viewRun, compare: viewCompare, peers: viewPeers };
let showing = 0;
async function show() {
  const mine = ++showing, { view, query } = where();
  try { await (VIEWS[view] || viewRuns)(query); }
  catch (error) { if (mine === showing) main.replaceChildren(el("h1", {}, "This cannot be shown"), el("p", { role: "alert" }, error.message), stored ? null : el("p", {}, el("a", { href: "#/runs" }, "to the runs"))); }
  if (mine === showing) { document.title = (main.querySelector("h1") || {}).textContent + " - Coterie"; main.dataset.ready = String(mine); }
}
addEventListener("hashchange", () => { show(); scrollTo(0, 0); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
const REACHED = "a, button, input, select, summary, [tabindex]";
function focused() {  // where the keyboard is, to be found again when the view is drawn anew
  const now = document.activeElement;
  if (!main.contains(now) || now === main) return () => {};
  const row = now.closest("tr[data-id]"), home = row || main, at = [...home.querySelectorAll(REACHED)].indexOf(now);
  return () => { const again = row ? [...main.querySelectorAll("tr[data-id]")].find((one) => one.dataset.id === row.dataset.id) : main;
    const found = again && again.querySelectorAll(REACHED)[at]; if (found) found.focus({ preventScroll: true }); };
}
function follow() {  // what changes while one looks
  const source = new EventSource("/api/events"), live = document.getElementById("live");
  source.onopen = () => { live.textContent = "live"; };
  source.onerror = () => { live.textContent = "the server has gone; these are its last words"; };
  source.onmessage = (event) => {
    const changed = JSON.parse(event.data), { view, query } = where(), ids = changed.ids;
    kept.clear();
    const concerns = view === "runs" || view === "compare" || (view === "run" && ids.includes(query.get("id"))) || (view === "peers" && changed.peers);
    const busy = document.activeElement && ["INPUT", "SELECT"].includes(document.activeElement.tagName) && document.activeElement.type !== "checkbox";
    const opened = main.querySelector("details[open]");
    if (concerns && !busy && !opened) { const back = focused(); show().then(back); }
  };
}
show();
if (!stored) follow();
