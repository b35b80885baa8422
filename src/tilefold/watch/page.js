
"use strict";
(() => {
  // Every number comes from the data as the text that is shown; this script chooses, arranges and draws.
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const names = [...data.fields, ...data.results];
  const state = { row: data.rows[0], size: data.size, step: 0, wrong: false, timer: 0 };
  const special = { True: 1, False: 0 };

  // ---------------------------------------------------------------------------------------------- what is asked
  const stream = () => state.row.streams[state.size];
  const chunks = () => stream().own.length;
  const start = (step) => Math.min(step * state.size, data.length);
  const reach = () => chunks() * state.size;
  const absent = () => reach() - data.length;
  const isWrong = (step) => state.wrong && stream().wrong !== null && step === chunks();
  // The wrong fill has one step of its own, the last.
  const told = (part, step) =>
    isWrong(step) ? stream().wrong[part].at(-1) : stream()[part][part.startsWith("own") ? step - 1 : step];
  const ofBad = () => [...stream().wrong.after.at(-1), ...stream().wrong.results.at(-1)];
  const values = (step) => [...told("after", step), ...told("results", step)];
  const owned = (step) => (step ? [...told("own", step), ...told("own_results", step)] : names.map(() => ""));
  const truth = () => [...state.row.truth.state, ...state.row.truth.results];
  const factors = (field, step) => {
    const found = (isWrong(step) ? stream().wrong : stream()).factors[field];
    return found ? found.map((side) => side[isWrong(step) ? 0 : step - 1]) : null;
  };

  const show = (text) => text.replace(/^-/, "\u2212").replace(/e\+0*/, "e").replace(/e-0*/, "e\u2212").replace("inf", "\u221e").replace("nan", "NaN");
  const number = (text) => {
    const value = text in special ? special[text] : text === "" ? NaN : Number(text);
    return Number.isFinite(value) ? value : null;
  };
  const few = (value) => {
    const size = Math.abs(value);
    const text = size !== 0 && (size >= 1e5 || size < 1e-3) ? value.toExponential(1).replace(".0e", "e") : String(+value.toPrecision(5));
    return show(text);
  };
  const isWhole = (k) => /^(-?\d+|none)$/.test(truth()[k]) && [0, chunks()].every((s) => /^(-?\d+|none)$/.test(values(s)[k]));
  const isTruth = (k) => truth()[k] in special;

  // ------------------------------------------------------------------------------------------------- the story
  const full = "The last chunk is full, so nothing is filled: choose a chunk size that does not divide the row.";

  function sentences() {
    const k = state.step, lines = [];
    if (state.wrong && k < chunks()) lines.push(absent() ? `Switched on: the last chunk's ${absent()} absent element${absent() === 1 ? "" : "s"} will be read as 0.` : full);
    if (k === 0) {
      lines.push(data.has_identity
        ? `Nothing is read yet. The state is the identity: ${data.fields.map((f, i) => `${f} = ${show(values(0)[i])}`).join(", ")}.`
        : "Nothing is read yet. This monoid has no identity, so there is no state either.");
      lines.push(`Row: ${state.row.about}.`);
      return lines;
    }
    const first = start(k - 1), last = start(k) - 1;
    lines.push(`Chunk ${k} of ${chunks()}: ${first === last ? `element ${first}` : `elements ${first} to ${last}`}.${k === 1 ? " The first chunk's own state is the state from here on." : ""}`);
    if (k > 1) lines.push(...changes(k));
    if (k === chunks()) lines.push(...ending());
    return lines;
  }

  function changes(k) {
    const before = told("after", k - 1), own = told("own", k), after = told("after", k), lines = [], covered = new Set();
    for (const { field, follows } of data.scaled) {
      const [kept, taken] = factors(field, k), name = data.fields[field];
      const moved = follows.filter((f) => before[f] !== after[f]).map((f) =>
        `${data.fields[f]} ${data.extremes[f] === "maximum" ? "rises" : "falls"} from ${show(before[f])} to ${show(after[f])}`);
      const still = follows.filter((f) => before[f] === after[f]).map((f) => `${data.fields[f]} stays at ${show(after[f])}`);
      const old = kept === "1" ? `the old ${name} ${show(before[field])} counts in full` : `the old ${name} ${show(before[field])} is multiplied by ${show(kept)}`;
      const mine = taken === "1" ? `the chunk's ${show(own[field])} is added` : `the chunk's ${show(own[field])}, multiplied by ${show(taken)}, is added`;
      const why = [...moved, ...still].join(" and ");
      lines.push(`${why ? `${why}, so ` : ""}${old} and ${mine}: ${name} = ${show(after[field])}.`);
      [field, ...follows].forEach((f) => covered.add(f));
    }
    const others = data.fields.map((_, f) => f).filter((f) => !covered.has(f) && before[f] !== after[f]);
    if (others.length) lines.push(`${others.map((f) => `${data.fields[f]} goes from ${show(before[f])} to ${show(after[f])}`).join(", ")}.`);
    else if (!lines.length) lines.push("The state stays as it is.");
    return lines.map((line) => line[0].toUpperCase() === line[0] || data.fields.some((f) => line.startsWith(`${f} `)) ? line : line[0].toUpperCase() + line.slice(1));
  }

  function ending() {
    const lines = [], missing = absent(), right = [...stream().after.at(-1), ...stream().results.at(-1)];
    const differs = (k) => ofBad()[k] !== right[k];
    const list = (all, only = () => true) => data.answer.filter(only).map((k) => (data.answer.length > 1 ? `${names[k]} = ${show(all[k])}` : show(all[k]))).join(", ");
    if (missing && state.wrong) {
      const many = missing === 1 ? "1 element that does not exist is" : `${missing} elements that do not exist are`;
      lines.push(stream().wrong.changed
        ? [`${many} read as 0 and combined like any other. The answer is wrong: ${list(ofBad(), differs)} instead of ${list(right, differs)}.`, "is-wrong"]
        : [`${many} read as 0. ${others()}`, ""]);
    } else if (missing) {
      lines.push(`${missing === 1 ? "1 absent element of this tile is" : `${missing} absent elements of this tile are`} filled with the identity, which changes nothing.`);
    } else if (state.wrong) {
      lines.push(full);
    }
    if (!(missing && state.wrong)) lines.push(`All ${data.length} elements are read. The answer: ${list(right)}. ${data.exact ? `In float64: ${list(truth())}.` : ""}`);
    return lines;
  }

  const others = () => {
    const changed = data.rows.filter((row) => row.streams[state.size].wrong?.changed).map((row) => row.label);
    return changed.length
      ? `In this row no digit of the answer shows it, in others it is wrong: ${changed.join(", ")}.`
      : "The answer of none of these rows shows it.";
  };

  function tell() {
    byId("story").replaceChildren(...sentences().map((line) => {
      const p = document.createElement("p");
      [p.textContent, p.className] = Array.isArray(line) ? line : [line, ""];
      return p;
    }));
    const size = start(state.step) - start(state.step - 1), from = start(state.step - 1);
    byId("elements").replaceChildren(...(state.step === 0 ? [] : state.row.elements.flatMap((row, input) => {
      const shown = row.slice(from, from + Math.min(size, 32)).map(show);
      const fill = absent() && state.step === chunks() ? Array(Math.min(absent(), 8)).fill(state.wrong ? "0" : "\u2205").concat(absent() > 8 ? ["\u2026"] : []) : [];
      const line = document.createElement("span");
      line.textContent = `${data.inputs[input]}: ${[...shown, ...(size > 32 ? ["\u2026"] : []), ...fill].join("  ")}`;
      return input ? [document.createElement("br"), line] : [line];
    })));
    byId("absent-key").hidden = !absent();
    byId("absent").textContent = `${absent()} absent, filled with ${state.wrong ? "0" : "the identity (\u2205)"}`;
    byId("absent-key").classList.toggle("is-wrong", state.wrong);
    byId("wrong-key").hidden = !state.wrong || !absent();
    byId("rescaled-key").hidden = !data.scaled.length;
  }

  // ------------------------------------------------------------------------------------------------- the table
  function cell(tag, text, className, note) {
    const made = document.createElement(tag);
    made.textContent = text;
    if (className) made.className = className;
    if (note) {
      const small = document.createElement("span");
      small.className = "factor";
      small.textContent = note;
      made.append(small);
    }
    return made;
  }

  function tabulate() {
    const k = state.step, old = k ? values(k - 1) : names.map(() => ""), own = owned(k), now = values(k), whole = truth();
    byId("cells").replaceChildren(...names.map((name, i) => {
      const row = document.createElement("tr"), head = cell("th", name);
      const scale = k > 1 && i < data.fields.length ? factors(i, k) : null;
      head.scope = "row";
      if (i === data.fields.length) row.className = "results";
      const wrong = isWrong(k) && now[i] !== stream()[i < data.fields.length ? "after" : "results"][k][i < data.fields.length ? i : i - data.fields.length];
      row.append(head, cell("td", show(old[i]), "", scale && `\u00d7 ${show(scale[0])}`), cell("td", show(own[i]), "", scale && `\u00d7 ${show(scale[1])}`),
        cell("td", show(now[i]), wrong ? "new is-wrong" : "new"), cell("td", show(whole[i])));
      return row;
    }));
  }

  // ------------------------------------------------------------------------------------------------- the plots
  let plots = [], colours = {};
  // An identity that is a whole number's own infinity would leave one flat line of all others.
  const LIMITS = new Set(["9223372036854775807", "-9223372036854775808", "2147483647", "-2147483648", "18446744073709551615"]);
  const GUTTER = 58, FONT = "12px system-ui, sans-serif";

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    colours = Object.fromEntries(["ink", "soft", "rule", "running", "true", "now", "now-band", "seen", "ahead", "wrong"]
      .map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  }

  function limits(found, pad) {
    const finite = found.filter((v) => v !== null);
    if (!finite.length) return [-1, 1];
    const low = Math.min(...finite), high = Math.max(...finite), room = (high - low) * pad || Math.abs(low) * 0.1 || 1;
    return [low - room, high + room];
  }

  const axes = (x, y) => [
    { show: x, stroke: colours.soft, font: FONT, size: 28, gap: 3, space: 60, grid: { show: false }, ticks: { stroke: colours.rule, width: 1, size: 4 }, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] },
    { stroke: colours.soft, font: FONT, size: GUTTER, gap: 4, space: 28, grid: { stroke: colours.rule, width: 1 }, ticks: { show: false }, values: (_, splits) => splits.map(few), ...y },
  ];

  function band(u) {
    const { ctx, bbox } = u, ratio = devicePixelRatio;
    const at = (x) => Math.round(u.valToPos(x, "x", true));
    ctx.save();
    if (state.step) {
      ctx.fillStyle = colours["now-band"];
      ctx.fillRect(at((state.step - 1) * state.size), bbox.top, at(state.step * state.size) - at((state.step - 1) * state.size), bbox.height);
    }
    if (absent()) {
      ctx.strokeStyle = state.wrong ? colours.wrong : colours.now;
      ctx.lineWidth = 1.5 * ratio;
      ctx.setLineDash([4 * ratio, 3 * ratio]);
      const left = at(data.length) + ratio, right = at(reach()) - ratio;
      ctx.strokeRect(left, bbox.top + ratio, Math.max(right - left, ratio), bbox.height - 2 * ratio);
    }
    ctx.restore();
  }

  function unplottable(u, texts) {
    const { ctx, bbox } = u, ratio = devicePixelRatio;
    ctx.save();
    ctx.fillStyle = colours.wrong;
    ctx.textAlign = "center";
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    texts.forEach((text, i) => {
      if (number(text) !== null) return;
      const x = u.valToPos(i + 0.5, "x", true);
      const y = text === "inf" ? bbox.top + 11 * ratio : text === "-inf" ? bbox.top + bbox.height - 4 * ratio : bbox.top + bbox.height / 2;
      ctx.fillText(show(text), x, y);
    });
    ctx.restore();
  }

  function marks(u, field) {
    if (!data.scaled.some((one) => one.field === field)) return;
    const { ctx, bbox } = u, ratio = devicePixelRatio;
    ctx.save();
    ctx.fillStyle = colours.now;
    for (let k = 2; k <= state.step; k++) {
      if (factors(field, k)[0] === "1") continue;
      const x = u.valToPos(k * state.size, "x", true), y = bbox.top + bbox.height, side = 5 * ratio;
      ctx.beginPath();
      ctx.moveTo(x - side, y);
      ctx.lineTo(x + side, y);
      ctx.lineTo(x, y - 1.6 * side);
      ctx.fill();
    }
    ctx.restore();
  }

  const common = (place, height, hooks, series, x, y, range) => ({
    width: place.clientWidth, height, padding: [8, 12, 0, 0], legend: { show: false }, cursor: { show: false }, hooks, series, axes: axes(x, y),
    scales: { x: { time: false, range: () => [0, reach()] }, y: { range } },
  });

  function strip(input) {
    const place = holder(byId("strips"), data.inputs.length > 1 ? [["name", data.inputs[input]]] : []);
    const bars = uPlot.paths.bars({ size: [0.8, 60, 1] });
    const series = [{}, ...["seen", "now", "ahead"].map((name) => ({ paths: bars, fill: colours[name], stroke: colours[name], width: 0, points: { show: false } }))];
    const texts = () => state.row.elements[input];
    const part = (from, to) => texts().map((t, i) => (i >= from && i < to ? number(t) : null));
    const rows = () => {
      const from = start(Math.max(state.step - 1, 0)), to = start(state.step);
      return [texts().map((_, i) => i + 0.5), part(0, from), part(from, to), part(to, data.length)];
    };
    const range = () => limits([...texts().map(number), 0], 0.06);
    const hooks = { drawClear: [band], draw: [(u) => unplottable(u, texts())] };
    plots.push({ place, rows, plot: new uPlot(common(place, 130, hooks, series, true, {}, range), rows(), place) });
  }

  function chart(k) {
    const caption = holder(byId("charts"), [["name", names[k]], ["value", ""], ["whole", ""]]);
    const all = () => [...Array(chunks() + 1).keys()];
    const right = (step) => {
      const text = [...stream().after[step], ...stream().results[step]][k];
      return step === 0 && LIMITS.has(text) ? null : number(text);
    };
    const rows = () => {
      const steps = all(), bad = state.wrong && stream().wrong !== null;
      const wrong = bad ? steps.map((s) => (s < chunks() - 1 || s > state.step ? null : number(values(s)[k]))) : steps.map(() => null);
      const shown = steps.map((s) => (s > state.step || (bad && s === chunks()) ? null : right(s)));
      const hidden = bad && state.step === chunks();
      const whole = number(truth()[k]);
      return [steps.map((s) => s * state.size), steps.map(() => whole), shown, hidden ? wrong : steps.map(() => null)];
    };
    const range = () => isTruth(k) ? [-0.1, 1.1] : limits([...all().map(right), number(truth()[k]), ...(state.wrong && stream().wrong ? [number(ofBad()[k])] : [])], 0.1);
    const dots = (u, s) => chunks() <= 64 ? { show: true, size: 6 } : { show: false };
    const line = (colour, width) => ({ stroke: colours[colour], width, points: { ...dots(), fill: colours[colour], stroke: colours[colour] } });
    const series = [{}, { stroke: colours.true, width: 1.5, dash: [6, 5], points: { show: false } }, line("running", 2), line("wrong", 2.5)];
    const y = isTruth(k) ? { splits: () => [0, 1], values: () => ["False", "True"] } : isWhole(k) ? { incrs: Array.from({ length: 20 }, (_, p) => [1, 2, 5].map((d) => d * 10 ** p)).flat() } : {};
    const hooks = { drawClear: [band], draw: [(u) => marks(u, k)] };
    const captioned = () => {
      const [, value, whole] = caption.previousElementSibling.children;
      value.textContent = show(values(state.step)[k]);
      value.classList.toggle("is-wrong", isWrong(state.step) && number(values(state.step)[k]) !== right(chunks()));
      whole.textContent = `whole row ${show(truth()[k])}`;
    };
    plots.push({ place: caption, rows, captioned, plot: new uPlot(common(caption, 128, hooks, series, true, y, range), rows(), caption) });
  }

  function holder(parent, captions) {
    const figure = document.createElement("figure"), place = document.createElement("div");
    place.className = "plot";
    if (captions.length) {
      const line = document.createElement("figcaption");
      line.append(...captions.map(([name, text]) => cell("span", text, name)));
      figure.append(line);
    }
    figure.append(place);
    parent.append(figure);
    return place;
  }

  function build() {
    readColours();
    plots.forEach(({ plot }) => plot.destroy());
    plots = [];
    byId("strips").replaceChildren();
    byId("charts").replaceChildren();
    byId("charts").classList.toggle("many", names.length > 4);
    data.inputs.forEach((_, input) => strip(input));
    names.forEach((_, k) => chart(k));
    draw();
  }

  function draw() {
    for (const one of plots) {
      one.plot.setData(one.rows());
      one.captioned?.();
    }
    tell();
    tabulate();
    byId("done").max = chunks();
    byId("done").value = state.step;
    byId("count").textContent = `chunk ${state.step} of ${chunks()}`;
    byId("back").disabled = byId("reset").disabled = state.step === 0;
    byId("step").disabled = state.step === chunks();
    byId("play").textContent = state.timer ? "Pause" : "Play";
    byId("story").setAttribute("aria-live", state.timer ? "off" : "polite");
  }

  // ---------------------------------------------------------------------------------------------- the controls
  function pause() {
    clearTimeout(state.timer);
    state.timer = 0;
  }

  function go(step) {
    pause();
    state.step = Math.max(0, Math.min(step, chunks()));
    draw();
  }

  function advance() {
    state.step += 1;
    state.timer = state.step < chunks() ? setTimeout(advance, Math.max(60, Math.min(1200, 12000 / chunks()))) : 0;
    draw();
  }

  function play() {
    if (state.timer) return go(state.step);
    if (state.step === chunks()) state.step = 0;
    state.timer = setTimeout(advance, 250);
    return draw();
  }

  // What has been read stays read, as far as whole chunks of the new size reach.
  function choose(change) {
    const read = start(state.step);
    change();
    go(read === data.length ? chunks() : Math.floor(read / state.size));
    build();
  }

  byId("reset").addEventListener("click", () => go(0));
  byId("back").addEventListener("click", () => go(state.step - 1));
  byId("step").addEventListener("click", () => go(state.step + 1));
  byId("play").addEventListener("click", play);
  byId("size").addEventListener("change", (event) => choose(() => { state.size = Number(event.target.value); }));
  byId("row").addEventListener("change", (event) => choose(() => { state.row = data.rows.find((row) => row.key === event.target.value); }));
  byId("wrong").addEventListener("change", (event) => { state.wrong = event.target.checked; draw(); });
  document.addEventListener("keydown", (event) => {
    const keys = { ArrowRight: () => go(state.step + 1), ArrowLeft: () => go(state.step - 1), Home: () => go(0), " ": play };
    const own = event.target.closest("select, input, summary") || (event.key === " " && event.target.closest("button"));
    if (own || !keys[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", build);
  new ResizeObserver(() => plots.forEach(({ plot, place }) => {
    if (place.clientWidth && place.clientWidth !== plot.width) plot.setSize({ width: place.clientWidth, height: plot.height });
  })).observe(document.body);
  // A browser may keep what was chosen before a reload.
  byId("size").value = String(state.size);
  byId("row").value = state.row.key;
  byId("wrong").checked = false;
  build();
})();
