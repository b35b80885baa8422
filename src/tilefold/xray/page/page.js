"use strict";
(() => {
  // Every number comes from the data; this script lights up, draws, and counts nothing.
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const make = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const state = { key: -1, text: 0, heat: 0, cell: 0, pass: 0 };

  // ------------------------------------------------------------------------------------------------ rows of a text
  // "k3.1f6": three letters of a keyword, one of nothing, six of a function; the rest has no colour.
  function coloured(text, runs) {
    const code = make("code");
    let at = 0;
    for (const [, letter, length] of runs.matchAll(/([^\d])(\d+)/g)) {
      const part = text.slice(at, (at += Number(length)));
      code.append(letter === "." ? part : make("span", `t-${letter}`, part));
    }
    code.append(text.slice(at));
    return code;
  }

  class Pane {
    // A list of rows, some of which come from a line of source: moving onto such a row, or clicking it, lights that line up.
    constructor(place) {
      this.place = place;
      this.rows = [];
      this.here = -1;
      place.addEventListener("click", (event) => {
        const row = event.target.closest(".row");
        if (row) this.go(this.rows.indexOf(row));
      });
      place.addEventListener("keydown", (event) => {
        const page = Math.max(1, Math.floor(place.clientHeight / (this.rows[0]?.offsetHeight || 16)) - 1), last = this.rows.length - 1;
        const to = { ArrowDown: this.here + 1, ArrowUp: this.here - 1, PageDown: this.here + page, PageUp: this.here - page, Home: 0, End: last }[event.key];
        if (to === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
        event.preventDefault();
        this.go(Math.max(0, Math.min(to, last)));
      });
      Pane.all.push(this);
    }
    fill(rows) {
      this.rows = rows.map(({ key, className, parts }, i) => {
        const row = make("div", `row ${className ?? ""}`);
        row.id = `${this.place.id}-${i}`;
        row.setAttribute("role", "option");
        row.setAttribute("aria-selected", "false");
        if (key >= 0) row.dataset.key = key;
        row.append(...parts);
        return row;
      });
      this.here = -1;
      this.place.removeAttribute("aria-activedescendant");
      this.place.replaceChildren(...this.rows);
      // What stands before the kernel (functions, abbreviations) is passed over.
      const first = this.rows.find((row) => row.dataset.key !== undefined);
      this.place.scrollTop = first && first.offsetTop > this.place.clientHeight ? first.offsetTop - 20 : 0;
      this.light();
    }
    go(to) {
      this.rows[this.here]?.classList.remove("here");
      this.here = to;
      const row = this.rows[to];
      row.classList.add("here");
      this.place.setAttribute("aria-activedescendant", row.id);
      this.show(row, 0);
      if (row.dataset.key !== undefined) select(Number(row.dataset.key), this);
    }
    show(row, room) {
      const top = row.offsetTop, bottom = top + row.offsetHeight, { scrollTop, clientHeight } = this.place;
      if (top < scrollTop || bottom > scrollTop + clientHeight) this.place.scrollTop = Math.max(0, room ? top - clientHeight / 3 : top < scrollTop ? top : bottom - clientHeight);
    }
    light() {
      let first = null, seen = false;
      for (const row of this.rows) {
        const on = row.dataset.key === String(state.key);
        row.classList.toggle("lit", on);
        row.setAttribute("aria-selected", String(on));
        if (on) {
          first ??= row;
          seen ||= row.offsetTop >= this.place.scrollTop && row.offsetTop + row.offsetHeight <= this.place.scrollTop + this.place.clientHeight;
        }
      }
      if (first && !seen) this.show(first, 1);
    }
  }
  Pane.all = [];
  const numbered = ([n, key, text, runs]) => ({ key, parts: [make("span", "number", n || ""), coloured(text, runs)] });
  const gap = () => ({ key: -1, className: "gap", parts: ["\u22ef"] });

  const source = new Pane(byId("source")), rows = new Pane(byId("rows")), passes = byId("pass") && new Pane(byId("pass-rows"));

  function fillSource() {
    source.fill(data.files.flatMap((file, i) => [...(i ? [{ key: -1, className: "gap", parts: [file.name] }] : []), ...file.rows.map((row) => {
      if (!row[0]) return gap();
      const made = numbered(row), found = row[1] < 0 ? [] : data.keys[row[1]].cells;
      const cells = data.columns.map((_, c) => {
        const [text, heat, spare] = found[c] ?? ["", 0, 0], cell = make("span", spare > 0.1 ? "cell spare" : "cell", text);
        if (spare > 0.1) cell.title = `${Math.round(100 * spare)} % of them not needed`;
        if (c === state.heat && heat) cell.style.backgroundColor = `rgba(var(--heat), ${(0.08 + 0.62 * heat).toFixed(2)})`;
        return cell;
      });
      made.parts.splice(1, 0, ...cells);
      return made;
    })]));
    source.place.closest(".panes").style.setProperty("--rows", source.rows.length);
  }

  function fillText(number) {
    state.text = number;
    data.texts.forEach((_, i) => {
      byId(`tab-${i}`).setAttribute("aria-selected", String(i === number));
      byId(`tab-${i}`).tabIndex = i === number ? 0 : -1;
    });
    byId("text").setAttribute("aria-labelledby", `tab-${number}`);
    byId("text-note").textContent = byId("text-note").title = data.texts[number].note;
    rows.fill(data.texts[number].rows.map(numbered));
  }

  function fillPass() {
    state.pass = Number(byId("pass").value);
    const marked = data.passes[state.pass].rows, whole = byId("whole").checked;
    const near = marked.map((_, i) => whole || marked.slice(Math.max(0, i - 3), i + 4).some(([mark]) => mark !== " "));
    passes.fill(marked.flatMap(([mark, n], i) => {
      if (!near[i]) return near[i - 1] ?? true ? [gap()] : [];
      const [, key, text, runs] = data.rows[n];
      return [{ key, className: { "+": "new", "-": "gone" }[mark], parts: [make("span", "mark", mark), coloured(text, runs)] }];
    }));
    byId("pass-back").disabled = state.pass === 0;
    byId("pass-next").disabled = state.pass === data.passes.length - 1;
  }

  // -------------------------------------------------------------------------------------------------- one line
  function select(key, from) {
    state.key = key;
    for (const pane of Pane.all) pane.light();
    if (from !== source) source.here = source.rows.findIndex((row) => row.dataset.key === String(key));
    const line = data.keys[key], shown = data.files.flatMap((file) => file.rows).find((row) => row[1] === key);
    byId("line-title").textContent = `Line ${line.line} of ${line.file}`;
    byId("line-code").replaceChildren(...(shown ? [coloured(shown[2].trim(), "")] : []));
    byId("said").replaceChildren(...line.said.map((text) => make("li", "", text)));
    byId("tile-part").hidden = !line.tiles.length;
    byId("access-part").hidden = !line.accesses.length;
    byId("tile").replaceChildren(...line.tiles.map((n) => {
      const option = make("option", "", data.tiles[n].name);
      option.value = n;
      return option;
    }));
    drawTile(true);
    drawAccesses();
  }

  // -------------------------------------------------------------------------------------------------- the tile
  const laneColour = (lane, warp) => `hsl(${Math.round((lane * 360) / 32)} ${warp % 2 ? 45 : 70}% ${[52, 68, 40, 60][warp % 4]}%)`;
  const ramp = (part) => `hsl(${Math.round(225 - 185 * part)} 70% ${Math.round(32 + 38 * part)}%)`;
  const warpColour = (warp) => `hsl(${(warp * 137) % 360} 58% 55%)`;

  // For each element all (warp, lane, register) that hold it. Of more than two dims the first element along the others.
  function holders(tile) {
    const rank = tile.shape.length, found = new Map();
    const spread = (bases) => bases.reduce((all, basis) => [...all, ...all.map((at) => at.map((x, d) => x ^ basis[d]))], [tile.shape.map(() => 0)]);
    const [registers, lanes, warps] = [tile.register, tile.lane, tile.warp].map(spread);
    warps.forEach((w, warp) => lanes.forEach((l, lane) => registers.forEach((r, register) => {
      const at = w.map((x, d) => x ^ l[d] ^ r[d]);
      if (at.some((x, d) => d < rank - 2 && x)) return;
      const element = rank < 2 ? at[0] : at[rank - 2] * tile.shape[rank - 1] + at[rank - 1];
      if (!found.has(element)) found.set(element, []);
      found.get(element).push([warp, lane, register]);
    })));
    return { found, registers: registers.length, warps: warps.length };
  }

  let drawn = null;
  function drawTile(again) {
    const tile = data.tiles[byId("tile").value];
    if (!tile || byId("tile-part").hidden) return;
    if (again || drawn?.tile !== tile) {
      drawn = { tile, ...holders(tile) };
      state.cell = 0;
    }
    const rank = tile.shape.length, last = tile.shape[rank - 1], count = rank < 2 ? last : last * tile.shape[rank - 2];
    const columns = rank < 2 ? Math.min(last, 64) : last, lines = Math.ceil(count / columns);
    const canvas = byId("drawing"), room = byId("tile-part").clientWidth, ratio = devicePixelRatio || 1;
    // Elements are square, but for a tile of few rows, whose rows are as high as one can see.
    const side = Math.max(1, Math.floor(Math.min((room * ratio) / columns, (520 * ratio) / lines, 26 * ratio)));
    const high = Math.max(side, Math.min(16 * ratio, Math.floor((90 * ratio) / lines)));
    canvas.width = side * columns;
    canvas.height = high * lines;
    canvas.style.width = `${Math.min(room, canvas.width / ratio)}px`;
    canvas.style.height = `${canvas.height / ratio}px`;
    const pen = canvas.getContext("2d"), by = byId("colour").value, line = side > 4 ? 1 : 0;
    for (let element = 0; element < count; element++) {
      const held = drawn.found.get(element) ?? [], x = (element % columns) * side, y = Math.floor(element / columns) * high;
      const colours = [...new Set(held.map(([warp, lane, register]) => ({
        lane: () => laneColour(lane, warp), register: () => ramp(register / Math.max(1, drawn.registers - 1)), warp: () => warpColour(warp),
      })[by]()))].slice(0, Math.max(1, Math.min(4, side - line)));
      colours.forEach((colour, i) => {
        const from = Math.round((i * (side - line)) / colours.length), to = Math.round(((i + 1) * (side - line)) / colours.length);
        pen.fillStyle = colour;
        pen.fillRect(x + from, y, to - from, high - line);
      });
    }
    drawn = { ...drawn, columns, lines, count, side, high };
    const copies = drawn.found.get(0)?.length ?? 0;
    byId("tile-said").textContent = `${tile.said.join("; ")}${rank > 2 ? "; drawn at 0 along the first dims" : ""}${rank < 2 && count > columns ? `; ${columns} elements a row` : ""}`;
    canvas.setAttribute("aria-label", `Tile ${tile.name}, coloured ${{ lane: "by thread", register: "by register", warp: "by warp" }[by]}; each element is held ${copies === 1 ? "once" : `by ${copies} threads`}. Arrow keys move from element to element.`);
    tell();
    const spans = by === "register"
      ? [["register 0", ramp(0)], [`register ${drawn.registers - 1}`, ramp(1)]]
      : by === "warp"
        ? [...Array(Math.min(drawn.warps, 8)).keys()].map((w) => [`warp ${w}`, warpColour(w)])
        : [0, 8, 16, 24, 31].map((l) => [`lane ${l}`, laneColour(l, 0)]).concat(drawn.warps > 1 ? [["lane 0 of warp 1", laneColour(0, 1)]] : []);
    byId("tile-key").replaceChildren(...spans.map(([text, colour]) => {
      const span = make("span"), swatch = make("i", "swatch");
      swatch.style.backgroundColor = colour;
      span.append(swatch, text);
      return span;
    }), ...(copies > 1 ? [make("span", "more", `${copies} threads hold each element${by === "register" ? "" : ": stripes"}`)] : []));
  }

  function tell() {
    const { tile, columns, side, high, found } = drawn, held = found.get(state.cell) ?? [], rank = tile.shape.length, last = tile.shape[rank - 1];
    const at = rank < 2 ? [state.cell] : [...Array(rank - 2).fill(0), Math.floor(state.cell / last), state.cell % last];
    const said = held.slice(0, 4).map(([warp, lane, register]) => `warp ${warp}, lane ${lane}, register ${register}`).join("; ");
    byId("element").textContent = `element [${at.join(", ")}]: ${said}${held.length > 4 ? `; and ${held.length - 4} more` : ""}`;
    const pen = byId("drawing").getContext("2d");
    pen.strokeStyle = "#000";
    pen.lineWidth = Math.max(1, side / 8);
    pen.strokeRect((state.cell % columns) * side + 0.5, Math.floor(state.cell / columns) * high + 0.5, side - 1, high - 1);
  }

  function move(to) {
    if (to < 0 || to >= drawn.count) return;
    state.cell = to;
    drawTile(false);
  }

  // ---------------------------------------------------------------------------------------------- accesses
  const shape = (tag, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };

  function drawAccesses() {
    if (byId("access-part").hidden) return;
    const place = byId("accesses"), room = byId("access-part").clientWidth;
    place.replaceChildren(...data.keys[state.key].accesses.map((one) => {
      const part = make("div", "access"), said = make("p"), global = one.space === "global", unit = global ? "sector" : "pass";
      const many = (n) => `${n} ${unit}${n === 1 ? "" : global ? "s" : "es"}`;
      said.append(make("b", "", `${global ? "" : "shared "}${one.kind} of ${one.bytes} B a thread`), `, warp ${one.warp}${global ? ` at ${one.name}[${one.element}]` : ""}: ${many(one.served)}`);
      if (one.served > one.ideal) said.append(" ", make("span", "more", `where ${many(one.ideal)} would do`));
      const drawing = global ? sectors(one, room) : banks(one, room);
      drawing.setAttribute("role", "img");
      drawing.setAttribute("aria-label", `${said.textContent}. Numbers are lanes.`);
      part.append(said, drawing);
      return part;
    }));
  }

  // Sectors in the order of their addresses; what no lane asks for stays empty.
  function sectors(one, room) {
    const touched = [...new Set(one.lanes.filter((a) => a !== null).flatMap((a) => [Math.floor(a / 32), Math.floor((a + one.bytes - 1) / 32)]))].sort((a, b) => a - b);
    const across = room < 480 ? 4 : 8, gapX = 6, width = (room - gapX * (across - 1)) / across, height = 20, step = height + 18;
    const svg = shape("svg", { viewBox: `0 0 ${room} ${Math.ceil(touched.length / across) * step}` });
    touched.forEach((sector, i) => {
      const x = (i % across) * (width + gapX), y = Math.floor(i / across) * step + 12;
      svg.append(shape("text", { x, y: y - 3 }, `+${sector * 32}`), shape("rect", { x, y, width, height, class: "empty" }));
      const lanes = new Map();
      one.lanes.forEach((a, lane) => {
        if (a === null || a >= sector * 32 + 32 || a + one.bytes <= sector * 32) return;
        const from = Math.max(0, a - sector * 32), to = Math.min(32, a + one.bytes - sector * 32);
        if (!lanes.has(from)) lanes.set(from, { lane, to, more: 0 });
        else lanes.get(from).more += 1;
      });
      for (const [from, { lane, to, more }] of lanes) {
        const wide = ((to - from) * width) / 32;
        svg.append(shape("rect", { x: x + (from * width) / 32, y, width: Math.max(1, wide - 0.6), height, fill: laneColour(lane, 1) }));
        if (wide > 13) svg.append(shape("text", { x: x + (from * width) / 32 + 2, y: y + 13, class: "in" }, more ? `${lane}+` : lane));
      }
      svg.append(shape("rect", { x, y, width, height, class: "frame" }));
    });
    return svg;
  }

  // The words that a warp asks each bank for, one above the other: the banks' turns are as many as the words of one.
  function banks(one, room) {
    const words = Array.from({ length: 32 }, () => new Map());
    one.lanes.forEach((a, lane) => {
      for (let b = 0; a !== null && b < Math.max(4, one.bytes); b += 4) {
        const word = Math.floor((a + b) / 4);
        if (!words[word % 32].has(word)) words[word % 32].set(word, lane);
      }
    });
    const across = room < 480 ? 16 : 32, width = room / across, height = 15, most = Math.min(32, Math.max(...words.map((w) => w.size))), step = (most + 1) * height + 6;
    const svg = shape("svg", { viewBox: `0 0 ${room} ${(32 / across) * step}` });
    words.forEach((held, bank) => {
      const x = (bank % across) * width, y = Math.floor(bank / across) * step;
      svg.append(shape("text", { x: x + width / 2, y: y + 10, "text-anchor": "middle" }, bank));
      [...held.values()].slice(0, most).forEach((lane, i) => {
        svg.append(shape("rect", { x: x + 0.5, y: y + (i + 1) * height, width: width - 1, height: height - 1, fill: laneColour(lane, 1) }),
          shape("text", { x: x + width / 2, y: y + (i + 1) * height + 10.5, "text-anchor": "middle", class: "in" }, lane));
      });
    });
    return svg;
  }

  // ------------------------------------------------------------------------------------------------- the roofline
  let roof = null;
  function drawRoof() {
    const place = byId("roof"), line = data.roofline;
    if (!place) return;
    roof?.destroy();
    const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const at = { once: line.flops / Math.max(1, line.once), moved: line.flops / Math.max(1, line.moved) }, ridge = line.peak_gflop / line.memory_gb;
    const low = Math.min(at.once, at.moved, ridge) / 4, high = Math.max(at.once, at.moved, ridge) * 4;
    const xs = [...Array(65).keys()].map((i) => low * (high / low) ** (i / 64)).concat(at.once, at.moved, ridge).sort((a, b) => a - b);
    const under = (gb) => (x) => Math.min(line.peak_gflop, x * gb) / 1e3, memory = under(line.memory_gb), l2 = under(line.l2_gb);
    const point = (place, roofOf) => xs.map((x) => (x === place ? roofOf(x) : null));
    const number = (v) => (v >= 1e4 ? `${+(v / 1e3).toPrecision(3)}k` : String(+v.toPrecision(3)));
    const font = "12px system-ui, sans-serif", decades = [...Array(24).keys()].map((n) => 10 ** (n - 9)), sparse = high / low > 1e4;
    const axis = (label, size) => ({
      stroke: colour("soft"), font, labelFont: font, label, labelSize: 18, size, gap: 4, grid: { stroke: colour("rule"), width: 1 }, ticks: { show: false },
      splits: (u, i, from, to) => decades.flatMap((d) => (sparse ? [d] : [d, 2 * d, 5 * d])).filter((v) => v >= from && v <= to), filter: (u, splits) => splits, values: (u, splits) => splits.map(number),
    });
    const dot = (name) => ({ stroke: colour(name), width: 0, paths: () => null, points: { show: true, size: 12, fill: colour(name), stroke: colour("card"), width: 2 } });
    roof = new uPlot({
      width: place.clientWidth, height: 240, legend: { show: false }, cursor: { show: false }, padding: [8, 14, 0, 0],
      scales: { x: { time: false, distr: 3, range: [low, high] }, y: { distr: 3, range: [Math.min(memory(low), l2(low), l2(at.moved)) / 2, line.peak_gflop / 500] } },
      axes: [axis("operations a byte", 30), axis("Tera-operations a second", 46)],
      series: [{}, { stroke: colour("soft"), width: 2, points: { show: false } }, { stroke: colour("soft"), width: 1.5, dash: [6, 5], points: { show: false } }, dot("running"), dot("now")],
    }, [xs, xs.map(memory), xs.map(l2), point(at.once, memory), point(at.moved, l2)], place);
  }

  // ------------------------------------------------------------------------------------------------- the controls
  byId("heat").addEventListener("change", (event) => { state.heat = Number(event.target.value); fillSource(); });
  data.texts.forEach((_, i) => byId(`tab-${i}`).addEventListener("click", () => fillText(i)));
  document.querySelector(".tabs").addEventListener("keydown", (event) => {
    const n = data.texts.length, to = { ArrowRight: (state.text + 1) % n, ArrowLeft: (state.text + n - 1) % n, Home: 0, End: n - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    fillText(to);
    byId(`tab-${to}`).focus();
  });
  for (const button of document.querySelectorAll("button[data-key]")) {
    button.addEventListener("click", () => {
      select(Number(button.dataset.key), null);
      byId("source").focus();
      byId("source-title").scrollIntoView();
    });
  }
  byId("tile").addEventListener("change", () => drawTile(true));
  byId("colour").addEventListener("change", () => drawTile(false));
  byId("drawing").addEventListener("pointermove", (event) => {
    const { left, top, width, height } = event.target.getBoundingClientRect();
    const x = Math.floor(((event.clientX - left) / width) * drawn.columns), y = Math.floor(((event.clientY - top) / height) * drawn.lines);
    if (x >= 0 && x < drawn.columns && y >= 0 && y * drawn.columns + x !== state.cell) move(y * drawn.columns + x);
  });
  byId("drawing").addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: drawn.columns, ArrowUp: -drawn.columns }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    move(state.cell + by);
  });
  if (passes) {
    byId("pass").addEventListener("change", fillPass);
    byId("whole").addEventListener("change", fillPass);
    const step = (by) => () => { byId("pass").value = String(state.pass + by); fillPass(); };
    byId("pass-back").addEventListener("click", step(-1));
    byId("pass-next").addEventListener("click", step(1));
    byId("pass").value = "0";
    byId("whole").checked = false;
    fillPass();
  }
  // A browser may keep what was chosen before a reload.
  byId("heat").value = "0";
  byId("colour").value = "lane";
  fillSource();
  fillText(Math.min(1, data.texts.length - 1));
  // What most is to be said of: the first observation's line, else the hottest.
  const first = data.observations.find((found) => found.keys.length)?.keys[0], hot = (key) => key.cells[0]?.[1] ?? 0;
  if (data.keys.length) select(first ?? data.keys.reduce((best, key, n) => (hot(key) > hot(data.keys[best]) ? n : best), 0), null);
  drawRoof();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawRoof);
  let width = document.body.clientWidth;
  new ResizeObserver(() => {
    if (document.body.clientWidth === width) return;
    width = document.body.clientWidth;
    drawRoof();
    drawTile(false);
    drawAccesses();
  }).observe(document.body);
})();
