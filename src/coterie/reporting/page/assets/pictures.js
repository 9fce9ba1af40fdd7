/* The pictures: curves by uPlot, everything else on plain canvases. Positions and numbers come from Python. */
"use strict";
const LIGHT = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#7F7F7F"];
const NIGHT = ["#3D9BE0", "#F0803C", "#2DBE94", "#E093C0", "#F2B632", "#86CDF5", "#BFA05C", "#A8A8A8"];
const dark = () => matchMedia("(prefers-color-scheme: dark)").matches;
const colour = (n) => (dark() ? NIGHT : LIGHT)[n % LIGHT.length];
const alone = () => dark() ? "#b4b8bd" : "#595959";  // the colour of Local
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const MUTED = ["#332288", "#88CCEE", "#44AA99", "#117733", "#999933", "#DDCC77", "#CC6677", "#882255", "#AA4499", "#BBBBBB"];
const MUTED_NIGHT = ["#7468DC", "#88CCEE", "#44AA99", "#2FA35C", "#A6A63C", "#DDCC77", "#D97C88", "#C04B86", "#C468BC", "#BBBBBB"];
const shade = (n, of) => of <= MUTED.length ? (dark() ? MUTED_NIGHT : MUTED)[n] : `hsl(${Math.round(300 * n / of)} 55% 55%)`;
const FONT = "12px system-ui, sans-serif";

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
function swatch(of, line) { return el("i", { class: line === undefined ? "" : line ? "line dashed" : "line", style: "--of:" + of }); }
function whenShown(node, draw, tries = 600) {  // its width is known only then
  if (node.isConnected) draw();
  else if (tries) requestAnimationFrame(() => whenShown(node, draw, tries - 1));
}
function onCanvas(label, draw) {  // a picture that is drawn again when its width changes
  const canvas = el("canvas", { role: "img", "aria-label": label + "; the table below has the numbers" });
  whenShown(canvas, () => { draw(canvas); new ResizeObserver(() => draw(canvas)).observe(canvas.parentElement); });
  return canvas;
}
function sized(canvas, width, height) {
  const ratio = Math.min(2, devicePixelRatio || 1);
  canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  canvas.style.width = width + "px"; canvas.style.height = height + "px";
  const pen = canvas.getContext("2d"); pen.scale(ratio, ratio); pen.font = FONT; return pen;
}
const tip = el("div", { id: "tip", "aria-hidden": "true", hidden: true });
document.body.append(tip);
function hover(canvas, said, also) {  // what is under the pointer, in words beside it; also: called with its place
  canvas.addEventListener("mousemove", (event) => {
    const text = said(event.offsetX, event.offsetY);
    tip.hidden = !text; tip.textContent = text || "";
    tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
    if (also) also(event.offsetX, event.offsetY);
  });
  canvas.addEventListener("mouseleave", () => { tip.hidden = true; if (also) also(-99, -99); });
}

/* ---- curves ---- */
function curves(metric, series, what) {
  /* series: {label, rounds, values, colour, dash, low, high}; all on one axis of rounds */
  const rounds = [...new Set(series.flatMap((one) => one.rounds))].sort((a, b) => a - b);
  const spread = (one, values) => { const by = new Map(one.rounds.map((r, n) => [r, values[n]])); return rounds.map((r) => by.get(r) ?? null); };
  const data = [rounds], options = [{}], bands = [];
  for (const one of series) {
    one.at = data.length;
    data.push(spread(one, one.values));
    options.push({ stroke: one.colour, width: 2, dash: one.dash, spanGaps: true, points: { show: rounds.length < 3, size: 7, fill: one.colour } });
    if (one.low) {
      data.push(spread(one, one.high), spread(one, one.low));
      const edge = { stroke: one.colour, width: 0.5, spanGaps: true, points: { show: false } };
      options.push(edge, edge);
      bands.push({ series: [one.at + 1, one.at + 2], fill: one.colour + "30" });
    }
  }
  const box = el("div", { role: "img", "aria-label": "Learning curves of " + series.map((one) => one.label).join(", ") + "; the table below has the numbers" });
  const values = series.map(() => el("b", {})), at = el("span", { class: "at" });
  const keys = el("div", { class: "keys" }, series.map((one, n) => el("span", {}, swatch(one.colour, !!one.dash), one.label + " ", values[n])), at);
  function say(place) {  // what the curves are where the pointer is, or else at the end
    const atEnd = place === null || place === undefined, ends = new Set(series.map((one) => one.rounds[one.rounds.length - 1]));
    series.forEach((one, n) => { values[n].textContent = text(metric, atEnd ? one.values[one.values.length - 1] : data[one.at][place]); });
    at.textContent = !atEnd ? "in round " + rounds[place] : ends.size > 1 ? "each in its last round" : rounds.length ? "in round " + [...ends][0] : "";
  }
  say(null);
  const axis = { stroke: style("--ink"), grid: { stroke: style("--line"), width: 0.5 }, ticks: { stroke: style("--line"), size: 5 }, labelSize: 18, font: FONT, labelFont: FONT };
  const one = rounds.length === 1 ? { range: () => [rounds[0] - 1, rounds[0] + 1] } : {};
  whenShown(box, () => {
    const width = Math.max(260, box.clientWidth || 600), name = width > 500 ? { label: metric.unit } : {};
    const plot = new uPlot({ width, height: width < 500 ? 240 : 320, scales: { x: { time: false, ...one } }, series: options, bands,
      legend: { show: false }, hooks: { setCursor: [(u) => say(u.cursor.idx)] }, padding: [10, 14, 0, 0],
      axes: [{ ...axis, size: 30, label: "round", incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] },
        { ...axis, ...name, size: 64, values: (u, ticks) => ticks.map((tick) => metric.percent ? Number((100 * tick).toPrecision(6)) + " %" : String(tick)) }] }, data, box);
    new ResizeObserver(() => { if (Math.abs(box.clientWidth - plot.width) > 4 && box.clientWidth > 200) plot.setSize({ width: box.clientWidth, height: plot.height }); }).observe(box);
  });
  const columns = series.flatMap((one) => one.low ? [one.label, what[0], what[1]] : [one.label]);
  return el("figure", {}, keys, box, twin("learning curves", () => table(["round", ...columns],
    rounds.map((round) => [round, ...series.flatMap((one) => {
      const place = one.rounds.indexOf(round), of = (list) => place < 0 ? "-" : text(metric, list[place]);
      return one.low ? [of(one.values), of(one.low), of(one.high)] : [of(one.values)];
    })]), "Learning curves (" + metric.unit + ")", columns.map((_, n) => n + 1))));
}
function spark(values, low, high) {  // a curve as small as a word
  const made = document.createElementNS("http://www.w3.org/2000/svg", "svg"), line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  const step = 72 / Math.max(1, values.length - 1), y = (v) => (20 - 18 * (v - low) / (high - low || 1)).toFixed(1);
  line.setAttribute("points", values.map((v, n) => v === null ? "" : `${(1 + n * step).toFixed(1)},${y(v)}`).join(" "));
  made.setAttribute("viewBox", "0 0 74 22"); made.setAttribute("class", "spark"); made.setAttribute("aria-hidden", "true");
  made.append(line);
  return made;
}

/* ---- bars, one for each peer ---- */
function bars(values, colours, label, said, names, click) {
  /* said: a value as text; names: below the bars, where there is room */
  let step = 1; const left = 62;
  const under = (x) => { const k = Math.floor((x - left) / step); return k >= 0 && k < values.length ? k : -1; };
  const canvas = onCanvas(label, (canvas) => {
    const width = Math.max(240, canvas.parentElement.clientWidth), height = 210, foot = 34, pen = sized(canvas, width, height);
    const known = values.filter((v) => v !== null), top = Math.max(0, ...known), low = Math.min(0, ...known), span = top - low || 1;
    const y = (v) => 10 + (height - foot - 14) * (top - v) / span, gap = () => step > 4 ? 0.2 * step : 0;
    step = Math.min(90, (width - left) / Math.max(1, values.length));
    pen.textAlign = "right"; pen.fillStyle = style("--soft"); pen.strokeStyle = style("--line");
    for (const v of new Set([top, 0, low])) { if (v && Math.abs(y(v) - y(0)) < 14) continue; pen.fillText(said(v), left - 6, y(v) + 4); pen.beginPath(); pen.moveTo(left, y(v)); pen.lineTo(width, y(v)); pen.stroke(); }
    values.forEach((v, n) => { pen.fillStyle = colours[n]; const a = y(Math.max(v, 0)), b = y(Math.min(v, 0)); pen.fillRect(left + n * step + gap() / 2, a, Math.max(0.5, step - gap()), Math.max(1, b - a)); });
    pen.fillStyle = style("--soft"); pen.textAlign = "center";
    const widest = Math.max(...names.map((name) => pen.measureText(name).width), 0);
    if (widest < step) names.forEach((name, n) => pen.fillText(name, left + (n + 0.5) * step, height - foot + 14));
    pen.textAlign = "left"; pen.fillText(label, left, height - 4);
  });
  hover(canvas, (x) => under(x) < 0 ? "" : `${/^\d+$/.test(names[under(x)]) ? "peer " : ""}${names[under(x)]}: ${said(values[under(x)])}`);
  if (click) { canvas.style.cursor = "pointer"; canvas.onclick = (event) => { const k = under(event.offsetX); if (k >= 0) click(k); }; }
  return canvas;
}
function labelBars(labels, order, name) {
  let step = 1; const left = 62, total = (peer) => labels.counts[peer].reduce((a, b) => a + b, 0);
  const canvas = onCanvas("Training samples of each class at each peer", (canvas) => {
    const width = Math.max(240, canvas.parentElement.clientWidth), height = 240, foot = 34, pen = sized(canvas, width, height);
    const top = Math.max(1, ...order.map(total)), tall = height - foot - 10;
    step = (width - left) / order.length;
    pen.textAlign = "right"; pen.fillStyle = style("--soft"); pen.fillText(String(top), left - 6, 14); pen.fillText("0", left - 6, 14 + tall);
    order.forEach((peer, k) => { let y = 10 + tall; labels.counts[peer].forEach((count, c) => { const h = tall * count / top; y -= h; pen.fillStyle = shade(c, labels.classes.length); pen.fillRect(left + k * step + step * 0.06, y, Math.max(0.5, step * 0.88), h); }); });
    pen.textAlign = "center"; pen.fillStyle = style("--soft");
    if (Math.max(...order.map((peer) => pen.measureText(name(peer)).width)) < step) order.forEach((peer, k) => pen.fillText(name(peer), left + (k + 0.5) * step, height - foot + 14));
    pen.textAlign = "left"; pen.fillText("peers: training samples, by class", left, height - 4);
  });
  hover(canvas, (x) => {
    const peer = order[Math.floor((x - left) / step)];
    if (x < left || peer === undefined) return "";
    const most = labels.counts[peer].map((count, c) => [count, c]).filter(([count]) => count).sort((a, b) => b[0] - a[0]);
    return `peer ${name(peer)}: ${total(peer)} samples; ` + most.slice(0, 4).map(([count, c]) => `${count} of class ${labels.classes[c]}`).join(", ") + (most.length > 4 ? ", ..." : "");
  });
  return canvas;
}
function partnerRows(partners) {
  const left = 90, row = 20, place = { step: 1 };
  const canvas = onCanvas("Its partners over time", (canvas) => {
    const width = Math.max(260, canvas.parentElement.clientWidth), pen = sized(canvas, width, row * partners.names.length + 18);
    place.step = (width - left) / Math.max(1, partners.rounds.length);
    partners.names.forEach((one, r) => {
      pen.fillStyle = style("--ink"); pen.fillText((/^\d+$/.test(one) ? "peer " : "") + one.slice(0, 13), 2, r * row + 14);
      partners.counts[r].forEach((count, k) => { if (count) { pen.fillStyle = colour(partners.groups[r]); pen.globalAlpha = Math.min(1, 0.6 + 0.2 * count); pen.fillRect(left + k * place.step, r * row + 2, Math.max(1, place.step - 1), row - 4); pen.globalAlpha = 1; } });
    });
    const last = partners.rounds.length; pen.fillStyle = style("--soft");
    pen.fillText("round 1", left, row * partners.names.length + 14);
    if (last > 1) { pen.textAlign = "right"; pen.fillText("round " + last, width, row * partners.names.length + 14); }
  });
  hover(canvas, (x, y) => {
    const r = Math.floor(y / row), k = Math.floor((x - left) / place.step);
    return x < left || !partners.names[r] || partners.rounds[k] === undefined ? "" : `round ${partners.rounds[k]}: ${partners.counts[r][k] || "no"} model${partners.counts[r][k] > 1 ? "s" : ""} from peer ${partners.names[r]}`;
  });
  return canvas;
}

/* ---- who learned from whom ---- */
function strongest(found) {
  if (!found.top) { found.top = 1; for (const share of found.shares) if (share > found.top) found.top = share; }
  return found.top;
}
const isWeak = (found, share) => 50 * share < strongest(found);
const weakOnes = (found) => found.weak ?? (found.weak = found.shares.filter((share) => isWeak(found, share)).length);
function sharesOf(found, count) {  // by learner and sender, for what the pointer asks
  if (!found.by) { found.by = new Map(); found.shares.forEach((share, k) => found.by.set(found.receivers[k] * count + found.senders[k], share / found.unit)); }
  return found.by;
}
function drawGraph(canvas, links, found, only = -1) {  // only: the peer whose links are shown
  const size = Math.min(560, Math.max(240, canvas.parentElement.clientWidth)), pen = sized(canvas, size, size), places = links.positions;
  const few = found.shares.length < 500 ? 2 : 1, alpha = [0.06 * few, 0.12 * few, 0.3, 0.8], cut = [0.15, 0.35, 0.65], top = strongest(found);  // of the strongest
  const level = (k) => { const share = found.shares[k] / top; return share < cut[0] ? 0 : share < cut[1] ? 1 : share < cut[2] ? 2 : 3; };
  if (only < 0 && found.shares.length - weakOnes(found) > 1500) pen.drawImage(manyLines(size, places, links, found, (k) => alpha[level(k)]), 0, 0, size, size);
  else {
    const paths = new Map();
    for (let k = 0; k < found.shares.length; k++) {
      if (only < 0 ? isWeak(found, found.shares[k]) : found.senders[k] !== only && found.receivers[k] !== only) continue;
      const key = (links.groups[found.senders[k]] % LIGHT.length) * 4 + level(k);
      let path = paths.get(key); if (!path) paths.set(key, path = new Path2D());
      const a = places[found.senders[k]], b = places[found.receivers[k]];
      path.moveTo(a[0] * size, a[1] * size); path.lineTo(b[0] * size, b[1] * size);
    }
    for (const [key, path] of [...paths].sort((a, b) => a[0] % 4 - b[0] % 4)) { pen.strokeStyle = colour(key >> 2); pen.globalAlpha = alpha[key % 4] + (only < 0 ? 0 : 0.15); pen.lineWidth = 0.7 + (key % 4) * 0.5; pen.stroke(path); }
  }
  pen.globalAlpha = 1;
  const radius = places.length > 200 ? 2.5 : places.length > 60 ? 4 : 9, dots = new Map();
  places.forEach(([x, y], n) => {
    const of = colour(links.groups[n]); let path = dots.get(of); if (!path) dots.set(of, path = new Path2D());
    path.moveTo(x * size + radius, y * size); path.arc(x * size, y * size, n === only ? radius + 3 : radius, 0, 7);
  });
  for (const [of, path] of dots) { pen.fillStyle = of; pen.fill(path); }
  if (radius < 9) return;
  pen.font = "bold 11px system-ui, sans-serif"; pen.textAlign = "center"; pen.fillStyle = style("--ink"); pen.strokeStyle = style("--paper"); pen.lineWidth = 3;
  places.forEach(([x, y], n) => { const label = links.names[n].slice(0, 12), down = y * size + ((1 - y) * size < 25 ? -12 : 21); pen.strokeText(label, x * size, down); pen.fillText(label, x * size, down); });
}
function manyLines(size, places, links, found, alpha) {  // pixel by pixel: a canvas takes a tenth of a second for so many
  const side = Math.round(size), layer = manyLines.layer || (manyLines.layer = document.createElement("canvas"));
  if (layer.width !== side) layer.width = layer.height = side;
  const image = new ImageData(side, side), pixels = new Uint32Array(image.data.buffer), thin = Math.min(1, 3000 / (found.shares.length - weakOnes(found)));
  const tones = LIGHT.map((_, n) => packed(colour(n)));
  pixels.fill(0xff000000 | packed(style("--paper")));
  for (let k = 0; k < found.shares.length; k++) {
    if (isWeak(found, found.shares[k])) continue;
    const a = places[found.senders[k]], b = places[found.receivers[k]], tone = tones[links.groups[found.senders[k]] % tones.length];
    const dx = (b[0] - a[0]) * side, dy = (b[1] - a[1]) * side, steps = Math.max(1, Math.ceil(Math.max(Math.abs(dx), Math.abs(dy))));
    const weight = Math.max(10, Math.round(256 * thin * alpha(k))), rest = 256 - weight;
    const redBlue = Math.imul(tone & 0xff00ff, weight), green = Math.imul(tone & 0x00ff00, weight);
    const stepX = Math.round(65536 * dx / steps), stepY = Math.round(65536 * dy / steps);  // in 65536ths of a pixel
    let x = Math.round(65536 * a[0] * side), y = Math.round(65536 * a[1] * side);
    for (let n = 0; n < steps; n++, x += stepX, y += stepY) {  // red and blue are blended in one product
      const at = (y >> 16) * side + (x >> 16), old = pixels[at];
      pixels[at] = 0xff000000 | (((Math.imul(old & 0xff00ff, rest) + redBlue) >>> 8) & 0xff00ff) | (((Math.imul(old & 0x00ff00, rest) + green) >>> 8) & 0x00ff00);
    }
  }
  layer.getContext("2d").putImageData(image, 0, 0);
  return layer;
}
const packed = (hex) => [1, 3, 5].reduce((all, at, n) => all | (parseInt(hex.slice(at, at + 2), 16) << (8 * n)), 0);
function mapFrame(canvas, links) {  // where the cells of the map begin, and how large it is
  const n = links.positions.length, whole = Math.min(560, Math.max(240, canvas.parentElement.clientWidth));
  const named = n <= 32 && links.names.every((name) => name.length < 4) ? 18 : 0, from = 8 + named;
  return { n, whole, named, from, size: whole - from };
}
function drawMap(canvas, links, found) {
  const { n, whole, named, from, size } = mapFrame(canvas, links), pen = sized(canvas, whole, whole);
  const side = Math.min(n, Math.floor(size)), place = new Int32Array(n);  // more peers than pixels: the strongest of a pixel's links
  links.order.forEach((peer, k) => { place[peer] = Math.floor(k * side / n); });
  const image = new ImageData(side, side), pixels = new Uint32Array(image.data.buffer), night = dark(), top = strongest(found), most = new Uint16Array(side * side);
  pixels.fill(night ? 0xff28_2421 : 0xfff7_f5f4);
  for (let k = 0; k < found.shares.length; k++) {
    const at = place[found.receivers[k]] * side + place[found.senders[k]];
    if (most[at] > found.shares[k]) continue;
    most[at] = found.shares[k];
    const v = found.shares[k] / top, f = 1 - v;
    const r = night ? 33 + 190 * v : 244 * f, g = night ? 36 + 204 * v : 70 + 175 * f, b = night ? 40 + 215 * v : 120 + 127 * f;
    pixels[at] = 0xff000000 | (b << 16) | (g << 8) | r;
  }
  const small = drawMap.small || (drawMap.small = document.createElement("canvas"));
  if (small.width !== side) small.width = small.height = side;
  small.getContext("2d").putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = false; pen.drawImage(small, from, from, size, size);
  pen.strokeStyle = style("--soft"); pen.lineWidth = 0.7; pen.beginPath();
  for (let first = 0, k = 1; k <= n; k++) if (k === n || links.groups[links.order[k]] !== links.groups[links.order[first]]) {
    const begin = from + first * size / n, end = from + k * size / n;
    pen.fillStyle = colour(links.groups[links.order[first]]);
    pen.fillRect(begin, named, end - begin - 1, 6); pen.fillRect(named, begin, 6, end - begin - 1);
    if (k < n) { pen.moveTo(from, end); pen.lineTo(whole, end); pen.moveTo(end, from); pen.lineTo(end, whole); }
    first = k;
  }
  pen.stroke(); pen.strokeRect(from, from, size, size);
  if (!named || size / n < 12) return;
  pen.fillStyle = style("--soft"); pen.font = "11px system-ui, sans-serif"; pen.textAlign = "center";
  const step = Math.ceil((3 + Math.max(...links.names.map((name) => pen.measureText(name).width))) * n / size);  // as many columns as there is room for have their names
  links.order.forEach((peer, k) => { const middle = from + (k + 0.5) * size / n; if (k % step === 0) pen.fillText(links.names[peer], middle, 12); pen.fillText(links.names[peer], 8, middle + 4); });
}
