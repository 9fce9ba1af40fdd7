/* The page: views of runs, one run, a comparison and real peers. All numbers come from Python; this draws them.
   Data come from the server (/api/...), or, in a report, from the block #data. State is in the address. */
"use strict";
const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#7F7F7F"];
const colour = (n) => COLOURS[n % COLOURS.length];
const inReport = document.getElementById("data");
const stored = inReport ? JSON.parse(inReport.textContent) : null;
const main = document.getElementById("main");
const dark = () => matchMedia("(prefers-color-scheme: dark)").matches;
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/* ---- small tools ---- */
function el(tag, more, ...inside) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(more || {})) {
    if (key === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else if (key === "class") made.className = value;
    else if (key in made && key !== "list" && typeof value !== "string") made[key] = value;
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  }
  for (const one of inside.flat()) if (one !== null && one !== undefined) made.append(one);
  return made;
}
const text = (metric, value) => value === null || value === undefined ? "-"
  : metric.percent ? (100 * value).toFixed(1) + " %" : String(Number(value.toPrecision(4)));
const signed = (metric, value) => value === null || value === undefined ? "-"
  : (value > 0 ? "+" : "") + (metric.percent ? (100 * value).toFixed(1) : String(Number(value.toPrecision(4))));
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
function table(head, rows, caption, numbers) {
  const right = (n) => numbers && numbers.includes(n) ? "number" : null;
  return el("div", {}, el("p", { class: "note" }, caption), el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {},
      el("thead", {}, el("tr", {}, head.map((name, n) => el("th", { scope: "col", class: right(n) || "" }, name)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, n) => el("td", { class: right(n) || "" }, cell ?? "-"))))))));
}
function twin(caption, make) {  // the table of a picture, made when it is opened
  const box = el("details", {}, el("summary", {}, "The numbers as a table: " + caption));
  box.addEventListener("toggle", () => { if (box.open && box.children.length === 1) box.append(make()); });
  return box;
}
function whenShown(node, draw, tries = 600) {  // its width is known only then
  if (node.isConnected) draw();
  else if (tries) requestAnimationFrame(() => whenShown(node, draw, tries - 1));
}
const words = (lines) => el("div", { class: "words" }, lines.map((line) => el("p", {}, line)));
const notes = (lines) => lines.map((line) => el("p", { class: "note" }, line));

/* ---- curves ---- */
function curves(metric, series, what) {
  /* series: {label, rounds, values, colour, dash, low, high}; all on one axis of rounds */
  const rounds = [...new Set(series.flatMap((one) => one.rounds))].sort((a, b) => a - b);
  const spread = (one, values) => { const by = new Map(one.rounds.map((r, n) => [r, values[n]])); return rounds.map((r) => by.get(r) ?? null); };
  const data = [rounds], options = [{}], bands = [];
  for (const one of series) {
    one.at = data.length;
    data.push(spread(one, one.values));
    options.push({ stroke: one.colour, width: 2, dash: one.dash, spanGaps: true, points: { show: rounds.length < 3 } });
    if (one.low) {
      data.push(spread(one, one.high), spread(one, one.low));
      const edge = { stroke: one.colour, width: 0.5, spanGaps: true, points: { show: false } };
      options.push(edge, edge);
      bands.push({ series: [one.at + 1, one.at + 2], fill: one.colour + "30" });
    }
  }
  const box = el("div", { role: "img", "aria-label": "Learning curves of " + series.map((one) => one.label).join(", ") + "; the table below has the numbers" });
  const values = series.map(() => el("b", {})), at = el("b", {}, "");
  const keys = el("div", { class: "keys" }, series.map((one, n) => el("span", {}, swatch(one.colour, one.dash), one.label + " ", values[n])), at);
  function say(place) {  // what the curves are where the pointer is, or else at the end
    const last = place === null || place === undefined ? rounds.length - 1 : place;
    series.forEach((one, n) => { values[n].textContent = data[one.at][last] === null ? "-" : text(metric, data[one.at][last]); });
    at.textContent = rounds.length ? "in round " + rounds[last] : "";
  }
  say(null);
  const axis = { stroke: style("--ink"), grid: { stroke: style("--line"), width: 0.5 }, ticks: { stroke: style("--line"), size: 5 }, labelSize: 18, font: "12px system-ui", labelFont: "12px system-ui" };
  whenShown(box, () => {
    const width = Math.max(260, box.clientWidth || 600);
    const plot = new uPlot({ width, height: width < 500 ? 240 : 320, scales: { x: { time: false } }, series: options, bands,
      legend: { show: false }, hooks: { setCursor: [(u) => say(u.cursor.idx)] }, padding: [10, 14, 0, 0],
      axes: [{ ...axis, size: 30, label: "round", incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] },
        { ...axis, size: 56, values: (u, ticks) => ticks.map((tick) => metric.percent ? Number((100 * tick).toPrecision(6)) + " %" : String(tick)) }] }, data, box);
    new ResizeObserver(() => { if (Math.abs(box.clientWidth - plot.width) > 4 && box.clientWidth > 200) plot.setSize({ width: box.clientWidth, height: plot.height }); }).observe(box);
  });
  const columns = series.flatMap((one) => one.low ? [one.label, what[0], what[1]] : [one.label]);
  return el("figure", {}, keys, box, twin("learning curves", () => table(["round", ...columns],
    rounds.map((round) => [round, ...series.flatMap((one) => {
      const place = one.rounds.indexOf(round), of = (list) => place < 0 ? "-" : text(metric, list[place]);
      return one.low ? [of(one.values), of(one.low), of(one.high)] : [of(one.values)];
    })]), "Learning curves (" + metric.unit + ")", columns.map((_, n) => n + 1))));
}
function swatch(of, dash) { return el("i", { class: dash ? "dashed" : "", style: "--of:" + of }); }

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
    const all = found.runs.filter((run) => run.kind === "run").length;
    count.textContent = `${rows.filter((run) => run.kind === "run").length} of ${all} runs` + (found.reading ? `; still reading, ${found.reading} folders left` : "");
    const head = COLUMNS.map(([key, label, number]) => el("th", { scope: "col", class: number ? "number" : "", "aria-sort": key === by ? (down ? "descending" : "ascending") : "none" },
      el("button", { type: "button", on: { click: () => { keep({ sort: key, down: key === by && down ? "0" : "1" }); draw(); } } }, label + (key === by ? (down ? " ▾" : " ▴") : ""))));
    list.replaceChildren(el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Runs" }, el("table", { class: "runs" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "pick"), head)), el("tbody", {}, shown.slice(0, most).map(([run, deep]) => line(run, deep))))));
    if (shown.length > most) list.append(el("button", { type: "button", on: { click: () => { most += 1000; draw(); } } }, `Show more (${shown.length - most})`));
  }
  function line(run, deep) {
    const name = deep && run.name.startsWith(run.plan + "/") ? run.name.slice(run.plan.length + 1).replace(/^cells\//, "") : run.name;
    const link = run.link ? el("a", { href: address(run.link, run.link === "compare" ? { ids: pack([run.id]) } : { id: run.id }) }, breakable(name)) : breakable(name);
    const fold = run.runs ? el("button", { type: "button", class: "fold", "aria-expanded": String(open.has(run.id)), on: { click: () => {
      open.has(run.id) ? open.delete(run.id) : open.add(run.id); keep({ open: pack(open) || null }); draw();
      [...list.querySelectorAll("tr")].find((one) => one.dataset.id === run.id).querySelector(".fold").focus(); } } }, `${open.has(run.id) ? "▾" : "▸"} ${run.runs} runs`) : null;
    return el("tr", { class: deep ? "deep" : "", "data-id": run.id, "data-score": run.score, "data-gain": run.gain },
      el("td", {}, run.comparable ? el("input", { type: "checkbox", "aria-label": "Pick " + run.name, checked: picked.has(run.id), on: { change: (event) => {
        event.target.checked ? picked.add(run.id) : picked.delete(run.id); keep({ picked: pack(picked) || null }); say(); } } }) : null),
      el("td", { class: "name" }, link, fold ? [" ", fold] : null),
      el("td", { class: "algorithm" }, breakable(run.algorithm || run.kind + (run.algorithms ? ": " + run.algorithms : ""))),
      el("td", { class: "number" }, run.score_text), el("td", { class: "number " + (run.gain > 0 ? "good" : run.gain < 0 ? "bad" : "") }, run.gain_text), el("td", { class: "number" }, run.bytes_text),
      el("td", { class: "wrap state-" + run.state.kind }, run.state.text), el("td", { class: "wrap" }, breakable(run.differs || "")), el("td", { class: "when" }, (run.started || "").replace("T", " ").slice(0, 16)));
  }
  say(); draw();
  main.replaceChildren(el("h1", {}, "Runs in " + found.root), el("div", { class: "bar" }, search, compare), count, ...notes(found.notes), list);
}
function breakable(long) {  // after what joins words, never within them
  return String(long).split(/(?<=[/.\-_(])/).flatMap((part, n) => n ? [el("wbr", {}), part] : [part]);
}

/* ---- comparison ---- */
async function viewCompare(query) {
  const part = query.get("part");
  const found = await ask("/api/compare?ids=" + encodeURIComponent(query.get("ids") || "") + (part ? "&part=" + encodeURIComponent(part) : ""));
  drawComparison(found, query);
}
function drawComparison(found, query) {
  const metric = found.metric, groups = found.groups;
  const dash = (n) => n >= COLOURS.length ? [6, 4] : undefined;
  const links = (one) => one.seeds.length < 2 ? (one.ids[0] ? el("a", { href: address("run", { id: one.ids[0] }) }, one.label) : one.label)
    : el("span", {}, one.label + ": seeds ", one.ids.map((id, n) => [n ? ", " : "", id ? el("a", { href: address("run", { id }), "aria-label": `${one.label}, seed ${one.seeds[n]}` }, String(one.seeds[n])) : String(one.seeds[n])]).flat());
  const several = groups.some((one) => one.row.low !== null);
  const rows = groups.map((one, n) => [el("span", {}, swatch(colour(n), dash(n)), links(one)),
    text(metric, one.row.mean), ...(several ? [one.row.low === null ? "-" : `${text(metric, one.row.low)} to ${text(metric, one.row.high)}`] : []),
    text(metric, one.row.worst), signed(metric, one.row.gain), one.row.bytes_text, one.row.inside === null ? "-" : Math.round(100 * one.row.inside) + " %", one.row.rounds, one.seeds.length]);
  const parts = [el("h1", {}, found.title || "Comparison"), words(found.words), notes(found.notes)];
  if (found.tables) for (const one of found.tables) parts.push(el("h2", {}, one.title), table(one.head, one.rows, one.caption || one.title, one.numbers));
  if (found.parts) parts.push(el("div", { class: "bar" }, el("label", { for: "part" }, "Below, runs of the column"), el("select", { id: "part", on: { change: (event) => { keep({ part: event.target.value }); show(); } } },
    Object.entries(found.parts.names).map(([name, shown]) => el("option", { value: name, selected: name === found.parts.now }, shown)))));
  if (groups.length) parts.push(el("h2", {}, "Learning curves"), el("p", { class: "note" }, "Means over peers on their own test data, at the point of a round where each method is measured." + (groups.some((one) => one.seeds.length > 1) ? " Bands: from the lowest seed to the highest." : "")),
    curves(metric, groups.map((one, n) => ({ label: one.label, rounds: one.curve.rounds, values: one.curve.mean, colour: colour(n), dash: dash(n),
      low: one.seeds.length > 1 ? one.curve.low : null, high: one.curve.high })), ["lowest seed", "highest seed"]),
    el("h2", {}, "Table"), table(["method", metric.unit, ...(several ? ["95 % interval over seeds"] : []), "worst tenth", "gain over Local", "sent per peer", "from own cluster", "rounds", "seeds"], rows, "Means over peers and seeds; " + metric.better, [1, 2, 3, 4, 5, 6, 7, 8]));
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
    place.replaceChildren(table(["method", "rounds", "sent per peer", "seeds that reached it"], found.groups.map((one, g) => [one.label,
      t.rounds[g][n] === null ? "never" : Number(t.rounds[g][n].toFixed(1)), t.bytes_texts[g][n] || "-", `${t.reached[g][n]} of ${one.seeds.length}`]), "Until the mean reaches " + t.texts[n], [1, 2, 3]));
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
  if (c.local) series.push({ label: "Local", rounds: c.local.rounds, values: c.local.mean, colour: dark() ? "#b4b8bd" : "#595959", dash: [2, 3] });
  const parts = [el("h1", {}, run.title), el("p", { class: "state-" + run.state.kind, role: "status", id: "state" }, run.state.text),
    words(run.words), notes(run.notes), el("h2", {}, "Learning curves"), el("p", { class: "note" }, `Mean of ${run.peers} peers on their own test data at both points of a round (* the one that the method's paper uses). Band: worst to best tenth of the peers.`),
    c.rounds.length ? curves(metric, series, ["worst tenth", "best tenth"]) : el("p", {}, "Nothing was measured so far."), ...peersPart(run, name, id)];
  if (Object.keys(run.links.kinds).length) parts.push(...await linksPart(run, name, id, query));
  else parts.push(el("h2", {}, "Who learned from whom"), el("p", {}, "No model went from one peer to another."));
  parts.push(...trafficPart(run, name), ...labelsPart(run, name), ...await explainPart(run, id),
    el("h2", {}, "Configuration"), el("details", {}, el("summary", {}, "All keys"), table(["key", "value"], Object.entries(run.config), "config.toml")));
  main.replaceChildren(...parts.flat());
  main.dataset.mean = c.mean.length ? c.mean[c.mean.length - 1] : "";
  main.dataset.rounds = run.rounds.done;
}
function peersPart(run, name, id) {
  const g = run.gains, metric = run.metric, has = g.local !== null && g.gain, order = g.order.filter((n) => g.mine[n] !== null);
  const values = order.map((n) => has ? g.gain[n] : g.mine[n]);
  const open = (n) => address("run", { id, peer: n });
  const picture = bars(values, order.map((n, k) => has ? (values[k] >= 0 ? style("--good") : style("--bad")) : colour(0)),
    has ? "peers: gain over Local, largest first" : "peers: score, best first", (v) => has ? signed(metric, v) : text(metric, v), order.map(name), (k) => { location.hash = open(order[k]); });
  picture.dataset.helped = g.helped ?? ""; picture.dataset.hurt = g.hurt ?? ""; picture.id = "peers";
  return [el("h2", {}, has ? "Peers, by gain over Local" : "Peers, by score"), has ? el("p", {}, g.words) : null,
    el("figure", {}, picture, twin("peers", () => table(has ? ["peer", metric.unit, "alone", "gain"] : ["peer", metric.unit],
      order.map((n) => [el("a", { href: open(n) }, "peer " + name(n)), text(metric, g.mine[n]), ...(has ? [text(metric, g.alone[n]), signed(metric, g.gain[n])] : [])]), "Every peer", [1, 2, 3])))].filter(Boolean);
}
function sized(canvas, width, height) {
  const ratio = Math.min(2, devicePixelRatio || 1);
  canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  canvas.style.width = width + "px"; canvas.style.height = height + "px";
  const pen = canvas.getContext("2d"); pen.scale(ratio, ratio); return pen;
}
function bars(values, colours, label, said, names, click) {
  /* said: a value as text; names: below the bars, where there is room */
  const canvas = el("canvas", { role: "img", "aria-label": label + "; the table below has the numbers" });
  const draw = () => {
    const width = Math.max(240, canvas.parentElement.clientWidth), height = 210, left = 62, foot = 34, pen = sized(canvas, width, height);
    const known = values.filter((v) => v !== null), top = Math.max(0, ...known), low = Math.min(0, ...known), span = top - low || 1;
    const y = (v) => 10 + (height - foot - 14) * (top - v) / span, step = (width - left) / Math.max(1, values.length), gap = step > 4 ? 0.2 * step : 0;
    pen.font = "12px system-ui"; pen.textAlign = "right"; pen.fillStyle = style("--soft"); pen.strokeStyle = style("--line");
    for (const v of new Set([top, 0, low])) { if (v && Math.abs(y(v) - y(0)) < 14) continue; pen.fillText(said(v), left - 6, y(v) + 4); pen.beginPath(); pen.moveTo(left, y(v)); pen.lineTo(width, y(v)); pen.stroke(); }
    values.forEach((v, n) => { pen.fillStyle = colours[n]; const a = y(Math.max(v, 0)), b = y(Math.min(v, 0)); pen.fillRect(left + n * step + gap / 2, a, Math.max(0.5, step - gap), Math.max(1, b - a)); });
    pen.fillStyle = style("--soft"); pen.textAlign = "center";
    const widest = Math.max(...names.map((name) => pen.measureText(name).width), 0);
    if (widest < step) names.forEach((name, n) => pen.fillText(name, left + (n + 0.5) * step, height - foot + 14));
    pen.textAlign = "left"; pen.fillText(label, left, height - 4);
    if (click) { canvas.style.cursor = "pointer"; canvas.onclick = (event) => { const k = Math.floor((event.offsetX - left) / step); if (k >= 0 && k < values.length) click(k); }; }
  };
  whenShown(canvas, () => { draw(); new ResizeObserver(draw).observe(canvas.parentElement); });
  return canvas;
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
    slider.disabled = rounds.length < 2; slider.min = "0"; slider.max = String(rounds.length - 1); slider.value = String(asked >= 0 ? asked : rounds.length - 1);
  }
  const path = (k, round) => `/api/links?id=${encodeURIComponent(id)}&kind=${encodeURIComponent(k)}&round=${round}`;
  let latest = 0;
  async function draw() {
    const mine = ++latest, rounds = links.kinds[kind], at = Number(slider.value), round = rounds[at];
    out.textContent = "round " + round; slider.setAttribute("aria-valuetext", "round " + round);
    let found;
    try { found = await askOnce(path(kind, round)); } catch (error) { said.textContent = error.message; return; }
    if (mine !== latest) return;
    drawGraph(graph, links, found); drawMap(map, links, found);
    const what = kind === "weights" ? "what a peer learned" : "the models that a peer received";
    const inside = found.inside === null ? "" : ` ${Math.round(1000 * found.inside) / 10} % of ${what} came from its own ${links.group_kind}.`;
    const only = kind === "weights" && rounds.length < 2 ? " Weights of earlier rounds were not written down." : "";
    const cut = found.total > found.shares.length ? ` The ${found.shares.length} strongest are drawn.` : "";
    said.textContent = `${found.total} links, ${found.learners} of ${n} peers learned from others.${inside}${cut}${only}`; scale.textContent = `From none to ${(100 * Math.max(0, ...found.shares.slice(0, 100000)) / found.unit).toFixed(1)} % of ${what}.`;
    Object.assign(said.dataset, { inside: found.inside ?? "", total: found.total, learners: found.learners, round, kind });
    twinPlace.replaceChildren(twin("the strongest links in round " + round, () => {
      const order = found.shares.map((_, k) => k).sort((a, b) => found.shares[b] - found.shares[a]).slice(0, 200);
      return table(["learner", "learned from", "share"], order.map((k) => [name(found.receivers[k]), name(found.senders[k]), (100 * found.shares[k] / found.unit).toFixed(1) + " %"]), `The ${order.length} strongest of ${found.total} links`, [2]);
    }));
    if (!stored) for (const near of [at + 1, at - 1]) if (rounds[near] !== undefined) askOnce(path(kind, rounds[near])).catch(() => {});
  }
  whenShown(graph, () => { range(); draw(); new ResizeObserver(() => draw()).observe(graph.parentElement); });
  graph.onclick = (event) => {
    const size = graph.clientWidth; let best = -1, near = 15 * 15;
    links.positions.forEach(([x, y], k) => { const d = (x * size - event.offsetX) ** 2 + (y * size - event.offsetY) ** 2; if (d < near) { near = d; best = k; } });
    if (best >= 0) location.hash = address("run", { id, peer: best });
  };
  const groups = [...new Set(links.groups)].sort((a, b) => a - b);
  return [el("h2", {}, "Who learned from whom"), el("div", { class: "bar" }, el("label", { for: "kind" }, "show"), choose, el("label", { for: "round" }, "round"), slider, out), said,
    el("div", { class: "keys" }, groups.slice(0, 12).map((k) => el("span", {}, el("i", { style: "--of:" + colour(k) }), `${links.group_kind} ${k}`)), groups.length > 12 ? el("span", {}, `and ${groups.length - 12} more; colours repeat`) : null),
    el("div", { class: "pictures" }, el("figure", {}, graph, el("figcaption", {}, "A line leads from a sender to a learner, in the colour of the sender's " + links.group_kind + ". Click a peer to open its page.")),
      el("figure", {}, map, el("figcaption", {}, "Rows learn from columns, sorted by " + links.group_kind + "; strips at the edges have its colours. ", el("i", { class: "ramp" }), " ", scale))), twinPlace];
}
function drawGraph(canvas, links, found) {
  const size = Math.min(560, Math.max(240, canvas.parentElement.clientWidth)), pen = sized(canvas, size, size), places = links.positions;
  const few = found.shares.length < 500 ? 2 : 1, alpha = [0.06 * few, 0.12 * few, 0.3, 0.8], cut = [0.15, 0.35, 0.65], top = strongest(found);  // of the strongest
  const level = (k) => { const share = found.shares[k] / top; return share < cut[0] ? 0 : share < cut[1] ? 1 : share < cut[2] ? 2 : 3; };
  if (found.shares.length > 1500) { const layer = manyLines(size, places, links, found, (k) => alpha[level(k)]); pen.drawImage(layer, 0, 0, size, size); }
  else {
    const paths = new Map();
    for (let k = 0; k < found.shares.length; k++) {
      const key = (links.groups[found.senders[k]] % COLOURS.length) * 4 + level(k);
      let path = paths.get(key); if (!path) paths.set(key, path = new Path2D());
      const a = places[found.senders[k]], b = places[found.receivers[k]];
      path.moveTo(a[0] * size, a[1] * size); path.lineTo(b[0] * size, b[1] * size);
    }
    for (const [key, path] of [...paths].sort((a, b) => a[0] % 4 - b[0] % 4)) { pen.strokeStyle = colour(key >> 2); pen.globalAlpha = alpha[key % 4]; pen.lineWidth = 0.7 + (key % 4) * 0.5; pen.stroke(path); }
  }
  pen.globalAlpha = 1;
  const radius = places.length > 200 ? 2.5 : places.length > 60 ? 4 : 9;
  places.forEach(([x, y], n) => { pen.fillStyle = colour(links.groups[n]); pen.beginPath(); pen.arc(x * size, y * size, radius, 0, 7); pen.fill(); });
  if (radius < 9) return;
  pen.font = "bold 11px system-ui"; pen.textAlign = "center"; pen.fillStyle = style("--ink"); pen.strokeStyle = style("--paper"); pen.lineWidth = 3;
  places.forEach(([x, y], n) => { const label = links.names[n].slice(0, 12), down = y * size + (y > 0.95 ? -12 : 21); pen.strokeText(label, x * size, down); pen.fillText(label, x * size, down); });
}
function manyLines(size, places, links, found, alpha) {  // pixel by pixel: a canvas takes a tenth of a second for so many
  const side = Math.round(size), ground = rgb(style("--paper")), layer = manyLines.layer || (manyLines.layer = document.createElement("canvas"));
  layer.width = layer.height = side;
  const image = new ImageData(side, side), data = image.data, tones = COLOURS.map(rgb), thin = Math.min(1, 3000 / found.shares.length);
  new Uint32Array(data.buffer).fill(0xff000000 | (ground[2] << 16) | (ground[1] << 8) | ground[0]);
  for (let k = 0; k < found.shares.length; k++) {
    const a = places[found.senders[k]], b = places[found.receivers[k]], [r, g, l] = tones[links.groups[found.senders[k]] % tones.length];
    let x = a[0] * side, y = a[1] * side; const steps = Math.max(1, Math.ceil(Math.max(Math.abs(b[0] * side - x), Math.abs(b[1] * side - y))));
    const dx = (b[0] * side - x) / steps, dy = (b[1] * side - y) / steps, weight = Math.max(10, Math.round(256 * thin * alpha(k)));
    for (let n = 0; n < steps; n++, x += dx, y += dy) {
      const at = ((y | 0) * side + (x | 0)) << 2;
      data[at] += ((r - data[at]) * weight) >> 8; data[at + 1] += ((g - data[at + 1]) * weight) >> 8; data[at + 2] += ((l - data[at + 2]) * weight) >> 8;
    }
  }
  layer.getContext("2d").putImageData(image, 0, 0);
  return layer;
}
const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
function strongest(found) { let top = 1; for (const share of found.shares) if (share > top) top = share; return top; }
function drawMap(canvas, links, found) {
  const n = links.positions.length, whole = Math.min(560, Math.max(240, canvas.parentElement.clientWidth)), pen = sized(canvas, whole, whole);
  const strip = 8, size = whole - strip, place = new Int32Array(n); links.order.forEach((peer, k) => { place[peer] = k; });
  const image = new ImageData(n, n), pixels = new Uint32Array(image.data.buffer), night = dark(), top = strongest(found);
  pixels.fill(night ? 0xff28_2421 : 0xfff7_f5f4);
  for (let k = 0; k < found.shares.length; k++) {
    const v = found.shares[k] / top, f = 1 - v;
    const r = night ? 33 + 190 * v : 244 * f, g = night ? 36 + 204 * v : 70 + 175 * f, b = night ? 40 + 215 * v : 120 + 127 * f;
    pixels[place[found.receivers[k]] * n + place[found.senders[k]]] = 0xff000000 | (b << 16) | (g << 8) | r;
  }
  const small = drawMap.small || (drawMap.small = document.createElement("canvas")); small.width = small.height = n;
  small.getContext("2d").putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = n > size; pen.drawImage(small, strip, strip, size, size);
  pen.strokeStyle = style("--soft"); pen.lineWidth = 0.7; pen.beginPath();
  for (let first = 0, k = 1; k <= n; k++) if (k === n || links.groups[links.order[k]] !== links.groups[links.order[first]]) {
    const from = strip + first * size / n, to = strip + k * size / n;
    pen.fillStyle = colour(links.groups[links.order[first]]); pen.fillRect(from, 0, to - from - 1, strip - 2); pen.fillRect(0, from, strip - 2, to - from - 1);
    if (k < n) { pen.moveTo(strip, to); pen.lineTo(whole, to); pen.moveTo(to, strip); pen.lineTo(to, whole); }
    first = k;
  }
  pen.stroke(); pen.strokeRect(strip, strip, size, size);
}
function trafficPart(run, name) {
  const t = run.traffic, order = t.sent.map((_, n) => n).sort((a, b) => t.sent[b] - t.sent[a]);
  const parts = [el("h2", {}, "Traffic"), el("p", { id: "traffic", "data-busiest": t.busiest ? t.busiest.bytes : "" }, t.words)];
  if (t.busiest) parts.push(el("figure", {}, bars(order.map((n) => t.sent[n]), order.map(() => colour(2)), "peers: bytes sent, most first", (v) => v ? bytes(v) : "0", order.map(name)),
    twin("bytes by peer", () => table(["peer", "sent", "received"], order.slice(0, 1000).map((n) => [name(n), bytes(t.sent[n]), bytes(t.received[n])]), "Payloads since the first round", [1, 2])),
    twin("bytes by link", () => table(["sender", "receiver", "bytes", "messages"], t.links.map(([a, b, size, count]) => [a, b, bytes(size), count]), `The ${t.links.length} busiest of ${t.total_links} links`, [2, 3]))));
  return parts;
}
function labelsPart(run, name) {
  const labels = run.labels;
  if (!labels) return [];
  const canvas = el("canvas", { role: "img", "aria-label": "Training samples of each class at each peer; the table below has the numbers" });
  const draw = () => {
    const width = Math.max(240, canvas.parentElement.clientWidth), height = 240, left = 62, foot = 34, pen = sized(canvas, width, height), order = run.links.order;
    const top = Math.max(1, ...labels.counts.map((row) => row.reduce((a, b) => a + b, 0))), step = (width - left) / order.length, tall = height - foot - 10;
    pen.font = "12px system-ui"; pen.textAlign = "right"; pen.fillStyle = style("--soft"); pen.fillText(String(top), left - 6, 14); pen.fillText("0", left - 6, 14 + tall);
    order.forEach((peer, k) => { let y = 10 + tall; labels.counts[peer].forEach((count, c) => { const h = tall * count / top; y -= h; pen.fillStyle = shade(c, labels.classes.length); pen.fillRect(left + k * step + step * 0.06, y, Math.max(0.5, step * 0.88), h); }); });
    pen.textAlign = "center"; pen.fillStyle = style("--soft");
    if (Math.max(...order.map((peer) => pen.measureText(name(peer)).width)) < step) order.forEach((peer, k) => pen.fillText(name(peer), left + (k + 0.5) * step, height - foot + 14));
    pen.textAlign = "left"; pen.fillText("peers: training samples, by class", left, height - 4);
  };
  whenShown(canvas, () => { draw(); new ResizeObserver(draw).observe(canvas.parentElement); });
  return [el("h2", {}, "Labels"), el("p", { class: "note" }, `Training samples of each class; peers in the order of the map.`), el("figure", {}, canvas,
    el("div", { class: "keys" }, labels.classes.slice(0, 12).map((one, c) => el("span", {}, el("i", { style: "--of:" + shade(c, labels.classes.length) }), one))),
    twin("labels", () => table(["peer", ...labels.classes], labels.counts.map((row, n) => [name(n), ...row]), "Training samples by class", labels.classes.map((_, n) => n + 1))))];
}
const MUTED = ["#332288", "#88CCEE", "#44AA99", "#117733", "#999933", "#DDCC77", "#CC6677", "#882255", "#AA4499", "#BBBBBB"];
const shade = (n, of) => of <= MUTED.length ? MUTED[n] : `hsl(${Math.round(300 * n / of)} 55% 55%)`;
async function explainPart(run, id) {
  let lines; try { lines = (await ask("/api/explain?id=" + encodeURIComponent(id))).lines; } catch (error) { return []; }
  return lines.length ? [el("h2", {}, "What is known of " + run.algorithm), el("details", { open: false }, el("summary", {}, "Equations, settings, differences from the paper"), el("pre", { tabindex: "0", role: "region", "aria-label": "What is known of " + run.algorithm }, lines.join("\n")))] : [];
}
async function viewPeer(run, place, id) {
  const peer = await ask(`/api/peer?id=${encodeURIComponent(id)}&place=${place}`), c = peer.curve, p = peer.partners;
  const series = [{ label: run.curve.point + " *", rounds: c.rounds, values: c.own, colour: colour(0) }, { label: run.curve.other_point, rounds: c.rounds, values: c.other, colour: colour(1), dash: [6, 4] }];
  if (c.local) series.push({ label: "alone (Local)", rounds: c.local.rounds, values: c.local.scores, colour: dark() ? "#b4b8bd" : "#595959", dash: [2, 3] });
  const canvas = el("canvas", { role: "img", "aria-label": "Its partners over time; the table below has the numbers" });
  whenShown(canvas, () => {
    if (!p.names.length) return;
    const left = 90, row = 20, width = Math.max(260, canvas.parentElement.clientWidth), pen = sized(canvas, width, row * p.names.length + 18), step = (width - left) / Math.max(1, p.rounds.length);
    pen.font = "12px system-ui";
    p.names.forEach((one, r) => { pen.fillStyle = style("--ink"); pen.fillText(one.slice(0, 13), 2, r * row + 14); p.counts[r].forEach((count, k) => { if (count) { pen.fillStyle = colour(0); pen.globalAlpha = Math.min(1, 0.5 + 0.25 * count); pen.fillRect(left + k * step, r * row + 2, Math.max(1, step - 1), row - 4); pen.globalAlpha = 1; } }); });
    pen.fillStyle = style("--soft"); pen.fillText("round 1", left, row * p.names.length + 14); pen.fillText(String(p.rounds.length), width - 28, row * p.names.length + 14);
  });
  const counts = run.labels ? run.labels.counts[place] : null;
  main.replaceChildren(el("p", {}, el("a", { href: address("run", { id }) }, "back to " + run.title)), el("h1", {}, `Peer ${peer.name} of ${run.title}`), words([peer.words]),
    el("h2", {}, "Its curve"), curves(run.metric, series, []), el("h2", {}, "Its partners over time"),
    p.names.length ? el("figure", {}, canvas, el("figcaption", {}, `Models that arrived, from the ${p.names.length} of ${p.total} peers it heard of most.`), twin("partners", () => table(["from", "models"], p.names.map((one, r) => [one, p.counts[r].reduce((a, b) => a + b, 0)]), "Models that arrived", [1]))) : el("p", {}, "It received no model of another peer."),
    el("h2", {}, "Its data"), counts ? table(["class", "training samples"], run.labels.classes.map((one, n) => [one, counts[n]]), "Its labels", [1]) : el("p", {}, peer.samples === null ? "Its labels were not written down." : `${peer.samples} training samples.`));
}

/* ---- real peers ---- */
async function viewPeers() {
  const found = await ask("/api/peers"), metric = (one) => one.metric || { percent: true };
  const line = (one) => [one.name, one.state, one.rounds ? `${one.round} of ${one.rounds}` : "-", ...["after_local", "after_mixing"].map((point) => one.scores && one.scores[point] !== undefined ? text(metric(one), one.scores[point]) : "-"),
    one.bytes_in === undefined ? "-" : bytes(one.bytes_in), one.bytes_out === undefined ? "-" : bytes(one.bytes_out), one.alive ?? "-", one.refused ?? "-"];
  main.replaceChildren(el("h1", {}, "Real peers"), found.peers.length ? table(["peer", "state", "round", "after local", "after mixing", "received", "sent", "neighbours alive", "refused"], found.peers.map(line), "How they stand now", [2, 3, 4, 5, 6, 7, 8]) : el("p", {}, "No peers were named: coterie dashboard --peer DIR"),
    ...found.peers.filter((one) => one.neighbours && one.neighbours.length).flatMap((one) => [el("h2", {}, "As " + one.name + " sees the others"), table(["peer", "alive", "round", "weight", "received", "sent", "missing", "trouble"], one.neighbours.map((other) => [other.name, other.alive ? "alive" : "absent", other.round < 0 ? "-" : other.round, other.weight === null ? "-" : Number(other.weight.toPrecision(3)), bytes(other.bytes_in), bytes(other.bytes_out), other.missing, other.trouble || ""]), "Neighbours of " + one.name, [2, 3, 4, 5, 6])]));
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
