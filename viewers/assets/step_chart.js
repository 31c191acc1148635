"use strict";
// The step chart. One bar per step while they fit, else one bar per group of consecutive steps: its height is the
// mean and a thin line above it reaches to the slowest step, so that a single slow step never disappears.
// A bar beyond the scale is torn: its parts keep their proportions, and its true length stands beside it.
(function () {
  const facts = JSON.parse(document.getElementById("step-data").textContent);
  const place = document.getElementById("step-chart");
  if (!place || facts.series.length === 0) return;

  const SVG = "http://www.w3.org/2000/svg";
  const LEAST_BAR = 4, WIDEST_BAR = 64, ROWS_A_PAGE = 50;
  const phaseIndex = Object.fromEntries(facts.phases.map((phase, i) => [phase, i]));
  const steady = phaseIndex.steady, unmeasured = phaseIndex.unmeasured;
  const state = { series: 0, from: 0, to: 0, only: null, full: false, at: null, page: 0 };
  let groups = [], geometry = null;

  function html(name, attributes, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (key === "onclick" || key === "onchange" || key === "ontoggle") node[key] = value;
      else if (value === true) node.setAttribute(key, "");
      else if (value !== false && value != null) node.setAttribute(key, value);
    }
    node.append(...children.filter((child) => child !== null && child !== ""));
    return node;
  }
  function svg(name, attributes, text) {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  }

  // --- numbers -----------------------------------------------------------------------------------------------
  function duration(ns) {
    if (ns === 0) return "0";
    for (const [scale, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]]) {
      const value = Number((ns / scale).toPrecision(3));
      if (value >= 1) {
        const decimals = value >= 100 ? 0 : value >= 10 ? 1 : 2;
        return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }) + " " + unit;
      }
    }
    return "<1 ns";
  }
  const whole = (value) => Number(value).toLocaleString("en-US");
  function niceTicks(top, wanted) {
    const raw = top / wanted, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.8);
    const ticks = [];
    for (let i = 0; i * step <= top * 1.0001; i++) ticks.push(i * step);
    return ticks;
  }
  function tickText(ns, top) {
    const [scale, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]].find(([s]) => top >= s) || [1, "ns"];
    return ns === 0 ? "0" : Number((ns / scale).toPrecision(6)).toLocaleString("en-US") + " " + unit;
  }
  function quantile(sorted, q) { return sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))]; }

  // --- what a series says --------------------------------------------------------------------------------------
  const current = () => facts.series[state.series];
  const classNames = () => Object.keys(current().classes);
  function stepName(series, i) {
    const again = series.occurrence[i] > 0 ? ` (run ${series.occurrence[i] + 1})` : "";
    const number = series.number[i] === null ? "" : " " + series.number[i];
    return (series.names[series.name[i]] || "step") + number + again;
  }
  function lengthOf(series, i) { return state.only ? (series.classes[state.only] || [])[i] || 0 : series.window[i]; }

  function makeGroups(width) {
    const series = current(), count = state.to - state.from;
    const size = Math.max(1, Math.ceil(count / Math.max(1, Math.floor(width / LEAST_BAR))));
    const made = [];
    for (let from = state.from; from < state.to; from += size) {
      const to = Math.min(state.to, from + size);
      const group = { from, to, classes: {}, mean: 0, slowest: from, phases: new Set() };
      let measured = 0;
      for (let i = from; i < to; i++) {
        group.mean += lengthOf(series, i);
        if (lengthOf(series, i) > lengthOf(series, group.slowest)) group.slowest = i;
        group.phases.add(series.phase[i]);
        if (series.phase[i] !== unmeasured) measured += 1;
      }
      measured = Math.max(1, measured);
      group.mean /= measured;
      group.longest = lengthOf(series, group.slowest);
      for (const [name, column] of Object.entries(series.classes)) {
        let sum = 0;
        for (let i = from; i < to; i++) sum += column[i];
        group.classes[name] = sum / measured;
      }
      made.push(group);
    }
    return made;
  }
  // The scale serves the ordinary steps: a warm-up of two seconds must not flatten steps of ten milliseconds.
  function scaleTop() {
    const series = current(), lengths = [], ordinary = [];
    for (let i = state.from; i < state.to; i++) {
      lengths.push(lengthOf(series, i));
      if (series.phase[i] === steady) ordinary.push(lengthOf(series, i));
    }
    const longest = Math.max(1, lengths.reduce((a, b) => Math.max(a, b), 0));
    if (state.full) return longest * 1.06;
    const sorted = (ordinary.length ? ordinary : lengths).sort((a, b) => a - b);
    const usual = Math.max(quantile(sorted, 0.5) * 1.6, quantile(sorted, 0.9) * 1.25);
    return usual > 0 && longest > usual * 1.3 ? usual * 1.12 : longest * 1.06;
  }
  function summaryOf(from, to, counts) {
    const series = current(), sums = {};
    let count = 0, window = 0;
    for (const name of classNames()) sums[name] = 0;
    for (let i = from; i < to; i++) {
      if (!counts(series.phase[i])) continue;
      count += 1;
      window += series.window[i];
      for (const name in sums) sums[name] += series.classes[name][i];
    }
    for (const name in sums) sums[name] /= Math.max(1, count);
    return { count, window: window / Math.max(1, count), classes: sums };
  }

  // --- the frame -------------------------------------------------------------------------------------------------
  const select = html("select", { "aria-label": "Lane", onchange: () => { pickSeries(Number(select.value)); } },
    ...facts.series.map((series, i) => html("option", { value: i }, series.label)));
  const button = (text, label, act) => html("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
  const zoomIn = button("+", "Zoom in", () => zoom(0.5));
  const zoomOut = button("−", "Zoom out", () => zoom(2));
  const earlier = button("‹", "Earlier steps", () => pan(-1));
  const later = button("›", "Later steps", () => pan(1));
  const all = button("All", "Show all steps", () => setRange(0, current().window.length));
  const full = html("button", { type: "button", "aria-pressed": "false", onclick: () => { state.full = !state.full; draw(); } }, "Full height");
  const range = html("span", { class: "range" });
  const tools = html("div", { class: "tools" }, facts.series.length > 1 ? select : "", range, html("span", { class: "grow" }), full, earlier, later, zoomOut, zoomIn, all);
  const picture = svg("svg", { class: "steps", role: "slider", tabindex: "0", "aria-label": "Steps; arrow keys move, plus and minus zoom", "aria-valuemin": "0" });
  const marks = html("div", { class: "marks" });
  const plot = html("div", { class: "plot" }, picture, marks);
  const heading = html("h3", {}), sub = html("p", { class: "sub" }), legend = html("ul", {});
  const readout = html("div", { class: "readout" }, heading, sub, legend);
  const tableBox = html("div", {});
  const asTable = html("details", { class: "as-table", ontoggle: () => drawTable() }, html("summary", {}, "As a table"), tableBox);
  place.append(tools, plot, readout, asTable);

  function pickSeries(index) {
    const before = current(), same = facts.series[index].window.length === before.window.length;
    state.series = index;
    select.value = index;
    if (state.only && !(state.only in current().classes)) state.only = null;
    if (same) { state.at = null; draw(); } else setRange(0, current().window.length);
  }
  function setRange(from, to) {
    const count = current().window.length, length = Math.max(1, Math.min(count, Math.round(to - from)));
    state.from = Math.max(0, Math.min(count - length, Math.round(from)));
    state.to = state.from + length;
    state.at = null;
    state.page = 0;
    draw();
  }
  function zoom(ratio) {
    const centre = state.at === null ? (state.from + state.to) / 2 : (groups[state.at].from + groups[state.at].to) / 2;
    const length = Math.max(1, (state.to - state.from) * ratio);
    setRange(centre - length / 2, centre + length / 2);
  }
  function pan(direction) {
    const length = state.to - state.from, by = direction * Math.max(1, Math.round(length * 0.5));
    setRange(state.from + by, state.to + by);
  }

  // --- drawing -----------------------------------------------------------------------------------------------------
  function draw() {
    const series = current(), count = series.window.length;
    const width = Math.max(220, Math.floor(plot.clientWidth)), height = width < 520 ? 240 : 300;
    const left = 54, right = 8, above = 24, below = 42;
    const inner = width - left - right, tall = height - above - below, floor = above + tall;
    groups = makeGroups(inner);
    const top = scaleTop(), pitch = Math.min(WIDEST_BAR, inner / groups.length);
    const gap = pitch > 14 ? 3 : pitch > 6 ? 1.5 : pitch > 4 ? 0.8 : 0.4;
    geometry = { left, above, floor, pitch, gap, top, tall };
    const y = (value) => floor - (value / top) * tall;
    picture.replaceChildren();
    for (const [key, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}`, "data-bars": groups.length, "data-steps": state.to - state.from }))
      picture.setAttribute(key, value);
    drawBands(left, above, floor, pitch);
    for (const tick of niceTicks(top, 4)) {
      picture.append(svg("line", { x1: left, x2: width - right, y1: y(tick), y2: y(tick), class: tick === 0 ? "axis" : "grid" }));
      picture.append(svg("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, tickText(tick, top)));
    }
    drawBars(y, above);
    drawMedian(y, width, right);
    drawNumbers(floor, left, pitch);
    drawMarks();
    if (state.at !== null) drawCursor();
    const shown = state.to - state.from, grouped = groups[0].to - groups[0].from;
    range.textContent = (shown < count ? `${whole(shown)} of ${whole(count)} steps` : `${whole(count)} step${count === 1 ? "" : "s"}`) +
      (grouped > 1 ? `, ${whole(grouped)} to a bar (mean; thin line: the slowest)` : "");
    full.setAttribute("aria-pressed", String(state.full));
    full.textContent = state.full ? "Usual height" : "Full height";
    const torn = groups.some((group) => group.longest > top);
    full.hidden = !torn && !state.full;
    for (const node of [zoomIn, zoomOut, earlier, later, all]) node.hidden = shown === count && pitch > 10;
    zoomIn.disabled = shown <= 1;
    zoomOut.disabled = all.disabled = shown === count;
    earlier.disabled = state.from === 0;
    later.disabled = state.to === count;
    drawReadout();
    drawTable();
  }
  function runsOfPhase() {
    const runs = [];
    groups.forEach((group, i) => {
      const others = [...group.phases].filter((phase) => phase !== steady);
      if (others.length === 0) return;
      const phase = Math.min(...others), last = runs[runs.length - 1];
      if (last && last.to === i && last.phase === phase) last.to = i + 1;
      else runs.push({ phase, from: i, to: i + 1 });
    });
    return runs;
  }
  function drawBands(left, above, floor, pitch) {
    for (const run of runsOfPhase())
      picture.append(svg("rect", { class: "band", x: left + run.from * pitch, width: (run.to - run.from) * pitch, y: above - 16, height: floor - above + 16 }));
  }
  function drawBars(y, above) {
    const { left, pitch, gap, top, floor } = geometry;
    let free = -1e9;
    groups.forEach((group, i) => {
      const bar = svg("g", { class: "bar" }), x = left + i * pitch + gap / 2, w = Math.max(0.6, pitch - gap);
      const squeeze = group.mean > top ? top / group.mean : 1;
      let base = 0;
      for (const name of classNames()) {
        if (state.only && name !== state.only) continue;
        const value = group.classes[name] * squeeze;
        if (value <= 0) continue;
        bar.append(svg("rect", { x: x.toFixed(2), width: w.toFixed(2), y: y(base + value).toFixed(2), height: Math.max(0.3, y(base) - y(base + value)).toFixed(2), class: "f-" + name }));
        base += value;
      }
      if (group.to - group.from > 1 && group.longest > group.mean * 1.02 && squeeze === 1) {
        const reach = Math.max(y(group.longest), above - 4);
        bar.append(svg("line", { class: "slowest", x1: x + w / 2, x2: x + w / 2, y1: reach, y2: y(group.mean) }));
      }
      if (group.longest > top) {
        const middle = x + w / 2, at = above + 9;
        if (squeeze < 1) bar.append(svg("path", { class: "torn", d: `M${x - 1} ${at + 3}l${(w + 2) / 2} -5l${(w + 2) / 2} 5` }));
        const text = duration(group.longest), half = text.length * 3.4;
        const centre = Math.max(left + half, Math.min(middle, left + groups.length * pitch - half));
        if (centre - half > free + 6 && Math.abs(centre - middle) < 40) {
          bar.append(svg("text", { x: centre, y: above - 9, "text-anchor": "middle" }, text));
          free = centre + half;
        } else bar.append(svg("path", { class: "mark", d: `M${middle - 3} ${above - 3}l3 -5l3 5z` }));
      }
      picture.append(bar);
    });
  }
  function drawMedian(y, width, right) {
    if (facts.medianMs === null || state.only || current().window.length < 3) return;
    const at = y(facts.medianMs * 1e6);
    if (at < geometry.above) return;
    picture.append(svg("line", { class: "median", x1: geometry.left, x2: width - right, y1: at, y2: at }));
    picture.append(svg("text", { class: "median-label", x: width - right - 2, y: at - 5, "text-anchor": "end" }, "median " + duration(facts.medianMs * 1e6)));
  }
  function drawNumbers(floor, left, pitch) {
    const series = current(), apart = Math.max(1, Math.ceil(64 / pitch));
    const size = groups[0].to - groups[0].from, raw = apart * size, power = 10 ** Math.floor(Math.log10(raw));
    const every = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
    let free = -1;
    groups.forEach((group, i) => {
      let round = -1;
      for (let k = group.from; k < group.to && round < 0; k++)
        if (series.number[k] === null || series.number[k] % every === 0 || groups.length < 2 * apart) round = k;
      if (round < 0 || i < free) return;
      free = i + apart;
      picture.append(svg("text", { x: left + (i + 0.5) * pitch, y: floor + 31, "text-anchor": "middle" }, String(series.number[round] === null ? round : series.number[round])));
    });
  }
  function markShape(phase, x, y) {
    const name = facts.phases[phase];
    if (name === "outlier") return svg("path", { class: "mark", d: `M${x} ${y - 4}l4 4l-4 4l-4 -4z` });
    if (name === "partial") return svg("rect", { class: "mark partial", x: x - 3.5, y: y - 3.5, width: 7, height: 7 });
    if (name === "warmup") return svg("rect", { class: "mark", x: x - 5, y: y - 1.5, width: 10, height: 3 });
    return svg("path", { class: "mark", d: `M${x - 3.5} ${y - 3.5}l7 7m0 -7l-7 7` });
  }
  function drawMarks() {
    const { left, pitch, floor } = geometry, present = new Set();
    for (const run of runsOfPhase()) {
      present.add(run.phase);
      picture.append(markShape(run.phase, left + ((run.from + run.to) / 2) * pitch, floor + 9));
    }
    marks.replaceChildren(...[...present].sort().map((phase) => {
      const icon = svg("svg", { viewBox: "0 0 14 10", "aria-hidden": "true" });
      icon.append(markShape(phase, 7, 5));
      return html("span", {}, icon, `${facts.phases[phase]}: ${facts.phaseMeanings[facts.phases[phase]]}`);
    }));
  }
  function drawCursor() {
    const { left, above, floor, pitch } = geometry;
    picture.querySelectorAll(".cursor").forEach((node) => node.remove());
    if (state.at === null) return;
    picture.append(svg("rect", { class: "cursor", x: left + state.at * pitch - 0.5, width: pitch + 1, y: above - 2, height: floor - above + 3, rx: 2 }));
  }
  function drawReadout() {
    const series = current();
    let shown, title, below;
    if (state.at === null) {
      shown = summaryOf(state.from, state.to, (phase) => phase === steady);
      const measured = shown.count > 0;
      if (!measured) shown = summaryOf(state.from, state.to, (phase) => phase !== unmeasured);
      const words = measured ? "steady step" : "measured step";
      title = shown.count === 1 ? `The ${words}` : `Mean of ${whole(shown.count)} ${words}s`;
      below = duration(shown.window);
    } else {
      const group = groups[state.at];
      shown = summaryOf(group.from, group.to, (phase) => phase !== unmeasured);
      if (group.to - group.from === 1) {
        const reason = series.reasons[String(group.from)];
        title = stepName(series, group.from);
        below = `${duration(shown.window)}, ${facts.phases[series.phase[group.from]]}${reason ? ": " + reason : ""}`;
      } else {
        title = `${stepName(series, group.from)} to ${stepName(series, group.to - 1)}`;
        below = `mean ${duration(shown.window)}; slowest ${stepName(series, group.slowest)}: ${duration(group.longest)}`;
      }
    }
    heading.textContent = title;
    sub.textContent = below;
    const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.name : undefined;
    legend.replaceChildren(...classNames().slice().reverse().map((name) => {
      const value = shown.classes[name], pressed = state.only === name;
      const node = html("button", { type: "button", "aria-pressed": String(pressed), "data-name": name, title: pressed ? "Show all classes" : "Show this class alone",
        onclick: () => { state.only = pressed ? null : name; draw(); } },
        html("i", { class: `swatch c-${name}`, "aria-hidden": "true" }), facts.labels[name] || name, html("span", { class: "value" }, duration(value)));
      return html("li", { class: value > 0 ? null : "zero" }, node);
    }));
    if (focused) { const again = legend.querySelector(`[data-name="${focused}"]`); if (again) again.focus(); }
    picture.setAttribute("aria-valuemax", String(groups.length - 1));
    picture.setAttribute("aria-valuenow", String(state.at === null ? 0 : state.at));
    const spoken = classNames().filter((name) => shown.classes[name] > 0).map((name) => `${facts.labels[name] || name} ${duration(shown.classes[name])}`);
    picture.setAttribute("aria-valuetext", `${title}, ${below}; ${spoken.join(", ")}`);
  }
  function drawTable() {
    if (!asTable.open) { tableBox.replaceChildren(); return; }
    const series = current(), names = classNames(), from = state.from + state.page * ROWS_A_PAGE, to = Math.min(state.to, from + ROWS_A_PAGE);
    const head = html("tr", {}, html("th", { scope: "col" }, "Step"), html("th", { scope: "col" }, "Phase"), html("th", { scope: "col", class: "number" }, "Step time"),
      ...names.map((name) => html("th", { scope: "col", class: "number" }, facts.labels[name] || name)));
    const body = [];
    for (let i = from; i < to; i++)
      body.push(html("tr", {}, html("th", { scope: "row" }, stepName(series, i)), html("td", {}, facts.phases[series.phase[i]]), html("td", { class: "number" }, duration(series.window[i])),
        ...names.map((name) => html("td", { class: "number" }, duration(series.classes[name][i])))));
    const previous = button("Previous", "Previous page of the table", () => { state.page -= 1; drawTable(); });
    const next = button("Next", "Next page of the table", () => { state.page += 1; drawTable(); });
    previous.disabled = state.page === 0;
    next.disabled = to >= state.to;
    const pager = state.to - state.from > ROWS_A_PAGE ? html("div", { class: "pager" }, previous, next, `steps ${whole(from - state.from + 1)} to ${whole(to - state.from)} of ${whole(state.to - state.from)}`) : "";
    tableBox.replaceChildren(...[pager, html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Steps as a table" },
      html("table", {}, html("caption", {}, "Steps: exclusive time per class"), html("thead", {}, head), html("tbody", {}, ...body)))].filter((node) => node !== ""));
  }

  // --- pointing and keys -----------------------------------------------------------------------------------------------
  function groupAt(event) {
    const box = picture.getBoundingClientRect(), x = (event.clientX - box.left) * (picture.viewBox.baseVal.width / box.width);
    const i = Math.floor((x - geometry.left) / geometry.pitch);
    return i < 0 || i >= groups.length ? null : i;
  }
  function look(at) {
    if (at === state.at) return;
    state.at = at;
    drawCursor();
    drawReadout();
  }
  let dragFrom = null;
  picture.addEventListener("pointerdown", (event) => { dragFrom = event.pointerType === "mouse" ? groupAt(event) : null; look(groupAt(event)); });
  picture.addEventListener("pointermove", (event) => {
    const at = groupAt(event);
    if (dragFrom !== null && at !== null && at !== dragFrom) {
      picture.querySelectorAll(".drag").forEach((node) => node.remove());
      const { left, above, floor, pitch } = geometry, a = Math.min(at, dragFrom), b = Math.max(at, dragFrom) + 1;
      picture.append(svg("rect", { class: "drag", x: left + a * pitch, width: (b - a) * pitch, y: above, height: floor - above }));
    }
    look(at);
  });
  picture.addEventListener("pointerup", (event) => {
    const at = groupAt(event), start = dragFrom;
    dragFrom = null;
    picture.querySelectorAll(".drag").forEach((node) => node.remove());
    if (start !== null && at !== null && at !== start) setRange(groups[Math.min(at, start)].from, groups[Math.max(at, start)].to);
  });
  picture.addEventListener("pointerleave", () => { if (dragFrom === null && document.activeElement !== picture) look(null); });
  picture.addEventListener("dblclick", () => setRange(0, current().window.length));
  picture.addEventListener("blur", () => look(null));
  picture.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = state.at === null ? -1 : state.at, last = groups.length - 1;
    const moves = { ArrowRight: at + 1, ArrowLeft: at < 0 ? last : at - 1, Home: 0, End: last, PageDown: at + 10, PageUp: at - 10 };
    if (event.key in moves) {
      if (moves[event.key] > last && state.to < current().window.length) pan(1);
      else if (moves[event.key] < 0 && state.from > 0) pan(-1);
      else look(Math.max(0, Math.min(last, moves[event.key])));
    } else if (event.key === "+" || event.key === "=") zoom(0.5);
    else if (event.key === "-") zoom(2);
    else if (event.key === "0" || event.key === "Escape") setRange(0, current().window.length);
    else if (event.key === "Enter" && state.at !== null && groups[state.at].to - groups[state.at].from > 1) setRange(groups[state.at].from, groups[state.at].to);
    else return;
    event.preventDefault();
  });
  let widthDrawn = 0;
  new ResizeObserver(() => { if (plot.clientWidth !== widthDrawn) { widthDrawn = plot.clientWidth; draw(); } }).observe(plot);
  widthDrawn = plot.clientWidth;
  setRange(0, current().window.length);
})();
