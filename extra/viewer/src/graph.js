// The graph on a canvas: boxes in the colour of their placement, moves as thick edges; as much detail as can be seen.
import { select } from "d3-selection";
import { zoom, zoomIdentity } from "d3-zoom";
import { sum } from "d3-array";
import { layered } from "./layered.js";
import { code, element, facts, Surface } from "./dom.js";
import { Folding, nodesOf, STAGES } from "./stage.js";
import { duration, size } from "./recording.js";

const LAYER = 64, HEIGHT = 36, TAG = 16, LETTER = 6.6, READABLE = 0.42, DETAILED = 0.12, MOST_LINES = 5000, FAR = 4 * LAYER;
const LARGE = 3000, REST = 120, MARGIN = 0.3; // boxes; milliseconds; of the window
const MEMORY = "#e3e6ea";

export class GraphView {
  constructor(parent, recording, panel, tip) {
    Object.assign(this, { recording, panel, tip, stageName: "placed", hidesViews: true, colors: new Map(), kept: new Map() });
    const bar = element(parent, "div", "bar");
    this.plans = element(bar, "select", "plan").attr("title", "which program");
    recording.plans.forEach((p, i) => element(this.plans, "option", "", `${recording.planName(i)} · ${p.items.length} kernels × ${p.runs}`).attr("value", i));
    this.plans.on("change", () => this.show(+this.plans.property("value"), this.stageName));
    const stages = element(bar, "span", "stages");
    for (const name of STAGES) element(stages, "button", "stage", name).attr("data-stage", name).on("click", () => this.show(this.plan.number, name));
    this.bar = bar;
    element(bar, "button", "open-all", "unfold all").on("click", () => this.foldAll(false));
    element(bar, "button", "fold-all", "fold all").on("click", () => this.foldAll(true));
    element(bar, "button", "whole", "whole graph").on("click", () => this.whole());
    const label = element(bar, "label");
    this.check = label.append("input").attr("type", "checkbox").attr("class", "views").property("checked", true);
    label.append("span").text("leave out views");
    this.check.on("change", () => {
      this.hidesViews = this.check.property("checked");
      this.kept.clear();
      this.show(this.plan.number, this.stageName);
    });
    this.search = element(bar, "input", "search").attr("type", "search").attr("placeholder", "search: op, shape, line, module");
    this.search.on("input", () => this.find(this.search.property("value"))).on("keydown", (e) => e.key === "Enter" && this.next());
    this.status = element(bar, "span", "status");
    const body = element(parent, "div", "split");
    this.tree = element(body, "div", "tree");
    this.place = element(body, "div", "canvas");
    this.legend = element(this.place, "div", "legend");
    this.surface = new Surface(this.place, (c, w, h) => this.draw(c, w, h));
    this.view = zoomIdentity;
    this.zoom = zoom().scaleExtent([0.005, 4]).on("zoom", (e) => {
      this.view = e.transform;
      if (e.sourceEvent) this.moved = performance.now();
      this.surface.paint();
    });
    this.moved = -1e9;
    select(this.surface.canvas).call(this.zoom).on("dblclick.zoom", null)
      .on("mousemove", (e) => this.hover(e)).on("mouseleave", () => this.tip.hide())
      .on("click", (e) => this.click(e)).on("dblclick", (e) => this.doubleClick(e));
    const best = recording.main;
    if (best) this.show(best.number, best.stages.length ? "placed" : "kernels");
  }

  // ---- what is shown

  show(plan, stage) {
    this.plan = this.recording.plans[plan];
    if (stage !== "kernels" && !this.plan.stages.some((s) => s.name === stage)) stage = "kernels";
    this.stageName = stage;
    this.plans.property("value", plan);
    this.bar.selectAll("button.stage").classed("on", function () { return this.dataset.stage === stage; })
      .attr("disabled", (d, i, all) => (all[i].dataset.stage !== "kernels" && !this.plan.stages.some((s) => s.name === all[i].dataset.stage) ? "" : null));
    const key = `${plan} ${stage}`;
    if (!this.kept.has(key)) this.kept.set(key, new Folding(nodesOf(this.recording, this.plan, stage), this.hidesViews));
    this.folding = this.kept.get(key);
    this.nodes = this.folding.nodes;
    this.selected = null;
    this.found = [];
    this.arrange();
    this.fit();
    if (this.search.property("value")) this.find(this.search.property("value"), true);
  }

  arrange() {
    const { boxes, edges, box } = this.folding.visible();
    for (const b of boxes) this.face(b);
    const places = layered(boxes.map((b) => b.width), edges.map((e) => [e.a, e.b]));
    boxes.forEach((b, i) => Object.assign(b, { x: places.x[i], y: places.layer[i] * LAYER + HEIGHT }));
    edges.forEach((e, i) => {
      e.points = places.chains[i].map((k) => [places.x[k], places.layer[k] * LAYER + HEIGHT]);
      e.top = Math.min(e.points[0][1], e.points[e.points.length - 1][1]);
      e.bottom = Math.max(e.points[0][1], e.points[e.points.length - 1][1]);
      e.moves.sort((a, b) => this.plan.moves[b].wire - this.plan.moves[a].wire);
      e.bytes = sum(e.moves, (k) => this.plan.moves[k].wire);
    });
    Object.assign(this, { boxes, box, rows: places.rows });
    this.thin = edges.filter((e) => !e.moves.length).sort((a, b) => a.top - b.top);
    this.thick = edges.filter((e) => e.moves.length);
    this.most = this.thick.reduce((m, e) => Math.max(m, e.bytes), 1);
    this.longest = this.thin.reduce((m, e) => Math.max(m, e.bottom - e.top), 0);
    this.byColor = [...boxes].sort((a, b) => (a.color < b.color ? -1 : a.color > b.color ? 1 : 0));
    this.right = boxes.reduce((m, b) => Math.max(m, b.x + b.width / 2), 0);
    this.bottom = places.rows.length * LAYER + HEIGHT;
    this.status.text(`${boxes.length} of ${this.nodes.count} nodes, ${this.plan.moves.length} moves`);
    this.drawTree();
    this.drawLegend();
    this.surface.paint();
  }

  face(b) {
    const n = this.nodes;
    if (b.group) {
      const places = new Map(), moved = this.folding.bytes.get(b.group) ?? 0;
      for (const i of b.members) places.set(n.place[i], (places.get(n.place[i]) ?? 0) + 1);
      const [place] = [...places].sort((x, y) => y[1] - x[1])[0];
      const heat = n.heat ? sum(b.members, (i) => n.heat[i]) : 0;
      const took = n.item ? sum(b.members, (i) => (n.item[i] < 0 ? 0 : this.plan.items[n.item[i]].median)) : 0;
      b.lines = [`⊞ ${b.group.name}`, `${b.members.length} nodes${moved ? `, ${size(moved)} moved` : ""}${took ? `, ${duration(took)}` : ""}`];
      b.color = n.heat ? warm(Math.min(heat, 1)) : this.color(place);
    } else {
      const i = b.node;
      b.lines = [n.label[i], n.value[i]];
      b.color = n.heat ? (n.kind[i] === 3 ? MEMORY : warm(n.heat[i])) : this.color(n.place[i]);
      b.moves = n.kind[i] === 5;
    }
    b.width = Math.max(...b.lines.map((x) => x.length)) * LETTER + 16;
  }

  color(place) {
    if (!place) return "#ffffff";
    if (!this.colors.has(place)) this.colors.set(place, `hsl(${Math.round((this.colors.size * 137.5 + 205) % 360)} 62% 80%)`);
    return this.colors.get(place);
  }

  // ---- beside it

  drawTree() {
    this.tree.selectAll("*").remove();
    element(this.tree, "div", "head", "modules");
    const walk = (g) => {
      for (const c of g.children) {
        if (!c.all) continue;
        const row = element(this.tree, "div", "module").style("padding-left", `${8 + 12 * (c.depth - 1)}px`).attr("data-key", c.key);
        element(row, "span", "fold", this.folding.open.has(c.key) ? "▾" : "▸");
        element(row, "span", "", c.name);
        const moved = this.folding.bytes.get(c);
        element(row, "span", "count", `${c.all}${moved ? ` · ${size(moved)}` : ""}`);
        row.on("click", () => this.toggle(c.key));
        if (this.folding.open.has(c.key)) walk(c);
      }
    };
    walk(this.folding.groups.get(""));
  }

  drawLegend() {
    this.legend.selectAll("*").remove();
    if (this.nodes.heat) {
      for (const [color, text] of [[warm(0), "little time"], [warm(1), "the most time"], [MEMORY, "memory"]]) this.legendRow(color, text);
      this.legendRow("", "reads other devices", "thick");
      return;
    }
    const used = new Set(this.boxes.flatMap((b) => (b.group ? b.members.map((i) => this.nodes.place[i]) : [this.nodes.place[b.node]])));
    for (const [place, color] of this.colors) if (used.has(place)) this.legendRow(color, place);
    if (this.thick.length) this.legendRow("", "moves between devices", "edge");
  }

  legendRow(color, text, look = "") {
    const row = element(this.legend, "div", "row");
    element(row, "span", `swatch ${look}`).style("background", color);
    element(row, "span", "", text);
  }

  toggle(key) {
    this.folding.toggle(key);
    const anchor = this.view;
    this.arrange();
    this.view = anchor;
  }

  foldAll(yes) {
    this.folding.openAll(!yes);
    this.arrange();
    this.fit();
  }

  // ---- where one looks

  // all of it
  whole() {
    const { width, height } = this.surface, k = Math.min(1.1, (width - 40) / Math.max(this.right, 1), (height - 20) / Math.max(this.bottom, 1));
    this.moveTo(zoomIdentity.translate((width - this.right * k) / 2, 10).scale(k));
  }

  // all of it where that can be read, else its beginning
  fit() {
    this.whole();
    if (this.view.k >= READABLE || this.boxes.length > 4000) return;
    const k = 0.6, { width } = this.surface, first = this.boxes[this.rows[0]?.[0] ?? 0];
    const middle = this.right * k < width ? this.right / 2 : first.x;
    this.moveTo(zoomIdentity.translate(width / 2 - middle * k, 10).scale(k));
  }

  moveTo(transform) {
    select(this.surface.canvas).call(this.zoom.transform, transform);
  }

  center(x, y, k = Math.max(this.view.k, 0.9)) {
    this.moveTo(zoomIdentity.translate(this.surface.width / 2 - x * k, this.surface.height / 2 - y * k).scale(k));
  }

  // goes to a node, opening what it is folded in
  focus(i) {
    if (!this.folding.shown[i]) return;
    if (this.folding.closed(i)) {
      this.folding.reveal(i);
      this.arrange();
    }
    const b = this.boxes[this.box[i]];
    this.center(b.x, b.y);
    this.select(b);
  }

  // goes to a move of the plan, by its number
  focusMove(plan, number) {
    this.show(plan, "placed");
    let edge = this.thick.find((e) => e.moves.includes(number));
    if (!edge) {
      for (const [i, rows] of this.nodes.moves) {
        if (!rows.includes(number)) continue;
        for (const [s] of this.folding.feeds[i]) this.folding.reveal(s);
        for (let r = i + 1; r < this.nodes.count; r++) if (this.folding.shown[r] && this.folding.feeds[r].some((f) => f[1].includes(number))) this.folding.reveal(r);
      }
      this.arrange();
      edge = this.thick.find((e) => e.moves.includes(number));
    }
    if (!edge) return;
    edge.moves.sort((a, b) => (b === number) - (a === number));
    const [x, y] = middle(edge);
    this.center(x, y, 0.9);
    this.selectMove(edge);
  }

  focusItem(plan, number) {
    this.show(plan, "kernels");
    this.focus(this.nodes.item.indexOf(number));
  }

  // ---- search

  find(words, quiet = false) {
    const n = this.nodes, wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    this.found = [];
    this.at = -1;
    if (wanted.length) {
      for (let i = 0; i < n.count; i++) {
        const text = `${n.label[i]} ${n.value[i]} ${n.place[i]} ${this.recording.lineName(n.line[i])} ${(n.path[i] ?? []).join("/")} ${n.note[i]}`.toLowerCase();
        if (this.folding.shown[i] && wanted.every((w) => text.includes(w))) this.found.push(i);
      }
    }
    this.matches = new Set(this.found.map((i) => this.box[i]));
    if (!quiet) this.results(words);
    this.surface.paint();
  }

  results(words) {
    if (!words) return this.panel.clear();
    const p = this.panel.clear();
    element(p, "h3", "", `${this.found.length} found`);
    for (const i of this.found.slice(0, 60)) {
      const row = element(p, "div", "result act").attr("data-node", i).on("click", () => this.focus(i));
      element(row, "b", "", this.nodes.label[i]);
      element(row, "span", "", ` ${this.nodes.value[i]} `);
      element(row, "span", "dim", `${this.recording.lineName(this.nodes.line[i])} ${(this.nodes.path[i] ?? []).join("/")}`);
    }
  }

  next() {
    if (!this.found.length) return;
    this.at = (this.at + 1) % this.found.length;
    this.focus(this.found[this.at]);
  }

  // ---- the mouse

  under(event) {
    const rect = this.surface.canvas.getBoundingClientRect(), x = this.view.invertX(event.clientX - rect.left), y = this.view.invertY(event.clientY - rect.top);
    const layer = Math.round((y - HEIGHT) / LAYER), row = this.rows[layer] ?? [];
    if (Math.abs(y - HEIGHT - layer * LAYER) <= HEIGHT / 2) {
      for (const i of row) if (Math.abs(this.boxes[i].x - x) <= this.boxes[i].width / 2) return { box: this.boxes[i] };
    }
    let nearest = 9 / this.view.k, edge = null;
    for (const e of this.thick) {
      if (y < e.top - nearest || y > e.bottom + nearest) continue;
      const d = distance(e.points, x, y);
      if (d < nearest) [nearest, edge] = [d, e];
    }
    return { edge };
  }

  hover(event) {
    const { box, edge } = this.under(event);
    this.surface.canvas.style.cursor = box || edge ? "pointer" : "grab";
    if (edge) {
      this.tip.show(event, (t) => {
        for (const k of edge.moves.slice(0, 2)) this.tellMove(t, this.plan.moves[k]);
        if (edge.moves.length > 2) element(t, "div", "dim", `and ${edge.moves.length - 2} more`);
      });
    } else if (box) {
      this.tip.show(event, (t) => {
        element(t, "b", "", box.lines[0]);
        element(t, "div", "", box.lines[1]);
        if (box.group) return element(t, "div", "dim", "double-click unfolds it");
        element(t, "div", "", this.nodes.place[box.node]);
        const line = this.nodes.line[box.node];
        if (line >= 0) element(t, "div", "dim", `${this.recording.lineName(line)}  ${this.recording.lineCode(line)}`);
      });
    } else this.tip.hide();
  }

  tellMove(parent, move) {
    const r = this.recording;
    element(parent, "b", "move", `${move.kind} ${move.axes.join("+")} ${size(move.wire)}`);
    element(parent, "div", "", `${move.value}: ${move.source} → ${move.result}`);
    element(parent, "div", "why", move.why);
    for (const hint of move.hints) element(parent, "div", "dim", hint);
    if (move.line >= 0) element(parent, "div", "dim", `${r.lineName(move.line)}  ${r.lineCode(move.line)}`);
  }

  click(event) {
    const { box, edge } = this.under(event);
    if (edge) this.selectMove(edge);
    else this.select(box ?? null);
  }

  doubleClick(event) {
    const { box } = this.under(event);
    if (!box) return;
    const group = box.group ?? this.folding.of[box.node];
    if (!group.key) return;
    const before = [box.x, box.y], k = this.view.k, member = box.group ? box.members[0] : box.node;
    this.toggle(group.key);
    const now = this.boxes[this.box[member]]; // stays under the mouse
    if (now) this.moveTo(zoomIdentity.translate(this.view.x + (before[0] - now.x) * k, this.view.y + (before[1] - now.y) * k).scale(k));
    this.tip.hide();
  }

  selectMove(edge) {
    this.selected = edge;
    const p = this.panel.clear();
    element(p, "h3", "", edge.moves.length > 1 ? `${edge.moves.length} moves` : "a move");
    for (const k of edge.moves) {
      const m = this.plan.moves[k];
      this.tellMove(element(p, "div", "block"), m);
      facts(p, [["each device receives", size(m.wire)], ["its operand has", size(m.payload)], ["devices exchange", `${m.n} at a time`]]);
      code(p, this.recording, m.line);
    }
    this.surface.paint();
  }

  select(b) {
    this.selected = b;
    const p = this.panel.clear(), n = this.nodes, r = this.recording;
    this.surface.paint();
    if (!b) return;
    if (b.group) {
      element(p, "h3", "", b.group.key);
      facts(p, [["nodes", b.members.length], ["moved inside", size(this.folding.bytes.get(b.group) ?? 0)]]);
      element(p, "button", "unfold", "unfold").on("click", () => this.toggle(b.group.key));
      return;
    }
    const i = b.node, item = n.item && n.item[i] >= 0 ? this.plan.items[n.item[i]] : null;
    element(p, "h3", "", n.label[i]);
    facts(p, [["value", n.value[i]], ["placement", n.place[i]], ["module", (n.path[i] ?? []).join(" / ")], ["", ""]]);
    for (const text of n.note[i].split("\n")) if (text) element(p, "div", "note", text);
    if (item) {
      facts(p, [["runs", item.runs], ["median", duration(item.median)], ["in all", duration(item.total)]]);
      if (item.kernel >= 0) element(p, "button", "to-kernel", "its schedule and source").on("click", () => this.openKernel(item.kernel));
      for (const line of new Set(item.computes.map((c) => c[1]))) code(p, r, line);
    } else code(p, r, n.line[i]);
    const group = this.folding.of[i];
    if (group.key) element(p, "button", "fold", `fold ${group.name}`).on("click", () => this.toggle(group.key));
    this.neighbours(p, "reads", this.folding.feeds[i].map((f) => f[0]));
    const readers = [];
    for (let k = i + 1; k < n.count; k++) if (this.folding.shown[k] && this.folding.feeds[k].some((f) => f[0] === i)) readers.push(k);
    this.neighbours(p, "is read by", readers);
  }

  neighbours(p, title, some) {
    if (!some.length) return;
    element(p, "h4", "", title);
    for (const i of [...new Set(some)].slice(0, 30)) {
      const row = element(p, "div", "result act").on("click", () => this.focus(i));
      element(row, "b", "", this.nodes.label[i]);
      element(row, "span", "dim", ` ${this.nodes.value[i]}`);
    }
  }

  // ---- drawing

  // A large graph is drawn as a picture that reaches beyond the window; while it is being moved, that picture is, for as
  // long as it covers the window and is not blurred.
  draw(c, width, height) {
    if (!this.boxes) return;
    if (this.boxes.length < LARGE) return this.drawAll(c, width, height);
    const moving = performance.now() - this.moved < REST;
    if (!moving || !this.covers(width, height)) this.takePicture(width, height);
    const p = this.picture, { x, y, k } = this.view, s = k / p.view.k;
    c.imageSmoothingEnabled = false;
    c.drawImage(p.canvas, x - (p.view.x + p.left) * s, y - (p.view.y + p.top) * s, p.canvas.width * s, p.canvas.height * s);
    if (!moving) return;
    clearTimeout(this.later);
    this.later = setTimeout(() => this.surface.paint(), REST + 20);
  }

  covers(width, height) {
    const p = this.picture;
    if (!p || p.boxes !== this.boxes || p.marks !== this.matches || p.selected !== this.selected) return false;
    const { x, y, k } = this.view, s = k / p.view.k, left = x - (p.view.x + p.left) * s, top = y - (p.view.y + p.top) * s;
    return s < 2 && left <= 0 && top <= 0 && left + p.canvas.width * s >= width && top + p.canvas.height * s >= height;
  }

  takePicture(width, height) {
    const left = Math.round(width * MARGIN), top = Math.round(height * MARGIN), wide = width + 2 * left, tall = height + 2 * top;
    let canvas = this.picture?.canvas;
    if (canvas?.width !== wide || canvas?.height !== tall) canvas = new OffscreenCanvas(wide, tall);
    const d = canvas.getContext("2d", { alpha: false });
    d.setTransform(1, 0, 0, 1, 0, 0);
    d.fillStyle = "#fff";
    d.fillRect(0, 0, wide, tall);
    d.translate(left, top);
    this.drawAll(d, wide, tall, left, top);
    this.picture = { canvas, view: this.view, left, top, boxes: this.boxes, marks: this.matches, selected: this.selected };
  }

  // what lies in a rectangle around the window: `wide` and `tall`, which begins so far before it
  drawAll(c, width, height, before = 0, above = 0) {
    const { x, y, k } = this.view, left = (-x - before) / k, top = (-y - above) / k, right = left + width / k, bottom = top + height / k;
    c.translate(x, y);
    c.scale(k, k);
    this.drawThin(c, k, left, top, right, bottom);
    this.drawThick(c, k, top, bottom);
    if (k < (this.boxes.length < LARGE ? DETAILED : READABLE)) this.drawSpots(c, k, left, top, right, bottom);
    else this.drawBoxes(c, k, left, top, right, bottom);
    if (k >= READABLE) this.drawLabels(c, left, top, right, bottom);
  }

  // thin edges, as many as can be told apart
  drawThin(c, k, left, top, right, bottom) {
    const all = this.thin;
    let from = lower(all, top - this.longest), to = lower(all, bottom);
    const step = Math.max(1, Math.ceil((to - from) / (k < DETAILED ? MOST_LINES / 4 : MOST_LINES)));
    c.strokeStyle = step > 1 ? "#d5d9de" : "#a9b0b8";
    c.lineWidth = Math.min(1 / k, 3);
    c.beginPath();
    for (from -= from % step; from < to; from += step) {
      const e = all[from];
      if (e.bottom < top) continue;
      const a = e.points[0], b = e.points[e.points.length - 1];
      if ((a[0] < left && b[0] < left) || (a[0] > right && b[0] > right)) continue;
      if (k < READABLE) {
        c.moveTo(a[0], a[1]);
        c.lineTo(b[0], b[1]);
      } else curve(c, e.points);
    }
    c.stroke();
  }

  // from afar: a spot for each box, those of one colour together
  drawSpots(c, k, left, top, right, bottom) {
    let color = null;
    const least = 1.2 / k, tall = Math.max(HEIGHT, least);
    for (const b of this.byColor) {
      const w = Math.max(b.width, least);
      if (b.x + w < left || b.x - w > right || b.y + tall < top || b.y - tall > bottom) continue;
      if (b.color !== color) c.fillStyle = deeper((color = b.color));
      c.fillRect(b.x - w / 2, b.y - tall / 2, w, tall);
    }
    this.drawMarks(c, k);
  }

  drawBoxes(c, k, left, top, right, bottom) {
    c.textAlign = "center";
    c.textBaseline = "middle";
    const seen = [], first = Math.max(0, Math.floor((top - HEIGHT * 1.5) / LAYER)), last = Math.min(this.rows.length - 1, Math.ceil((bottom - HEIGHT / 2) / LAYER));
    for (let layer = first; layer <= last; layer++) {
      for (const i of this.rows[layer]) {
        const b = this.boxes[i], w = b.width;
        if (b.x + w / 2 < left || b.x - w / 2 > right) continue;
        c.fillStyle = b.color;
        c.strokeStyle = b === this.selected ? "#111" : b.moves ? "#c02a2a" : b.group ? "#444" : "#8a929b";
        c.lineWidth = b === this.selected ? 3 : b.group || b.moves ? 2 : 1;
        c.beginPath();
        c.roundRect(b.x - w / 2, b.y - HEIGHT / 2, w, HEIGHT, b.group ? 2 : 8);
        c.fill();
        c.stroke();
        if (k >= READABLE) seen.push(b);
      }
    }
    c.fillStyle = "#1d232a"; // a font is set once
    c.font = "600 11px ui-monospace, monospace";
    for (const b of seen) c.fillText(b.lines[0], b.x, b.y - 8);
    c.font = "10px ui-monospace, monospace";
    for (const b of seen) c.fillText(b.lines[1], b.x, b.y + 8);
    this.drawMarks(c, k);
  }

  // what was searched for, and what is selected
  drawMarks(c, k) {
    const least = 5 / k;
    c.strokeStyle = "#e0a100";
    c.lineWidth = Math.max(3, 3 / k);
    for (const i of this.matches ?? []) this.mark(c, this.boxes[i], least);
    if (this.selected?.lines && k < DETAILED) {
      c.strokeStyle = "#111";
      this.mark(c, this.selected, least);
    }
  }

  mark(c, b, least) {
    if (!b) return;
    const w = Math.max(b.width + 6, least), h = Math.max(HEIGHT + 6, least);
    c.strokeRect(b.x - w / 2, b.y - h / 2, w, h);
  }

  // moves; those that pass many layers are paler
  drawThick(c, k, top, bottom) {
    for (const e of this.thick) {
      if (e.bottom < top || e.top > bottom) continue;
      const wide = 2 + 7 * Math.sqrt(e.bytes / this.most), far = e.bottom - e.top > FAR;
      c.strokeStyle = e === this.selected ? "#7a0f0f" : far ? "rgb(200 44 44 / 0.28)" : "rgb(200 44 44 / 0.8)";
      c.lineWidth = Math.max(wide, Math.min(wide, 1.2) / k);
      c.beginPath();
      curve(c, e.points);
      c.stroke();
    }
  }

  // what moves, beside its edge: the most bytes first. Where that would cover another label, as little as its bytes, and
  // where even these would, nothing: pointing at the edge tells it
  drawLabels(c, left, top, right, bottom) {
    c.textAlign = "center";
    c.textBaseline = "middle";
    c.font = "600 10px ui-monospace, monospace";
    this.labels = [];
    const near = this.thick.filter((e) => e.bottom >= top && e.top <= bottom && (e.bottom - e.top <= FAR || e === this.selected));
    for (const e of near.sort((a, b) => (b === this.selected) - (a === this.selected) || b.bytes - a.bytes)) {
      const label = this.labelOf(e, left, right);
      if (!label) continue;
      this.labels.push(label);
      const { x, y, w, text } = label, here = e === this.selected;
      c.fillStyle = here ? "#7a0f0f" : "#fff3f2";
      c.strokeStyle = here ? "#7a0f0f" : "#c02a2a";
      c.lineWidth = 1;
      c.beginPath();
      c.roundRect(x - w / 2, y - TAG / 2, w, TAG, TAG / 2);
      c.fill();
      c.stroke();
      c.fillStyle = here ? "#fff" : "#7a0f0f";
      c.fillText(text, x, y);
    }
  }

  labelOf(e, left, right) {
    const m = this.plan.moves[e.moves[0]], places = middles(e).filter(([x]) => x >= left && x <= right);
    const long = e.moves.length > 1 ? `${e.moves.length} moves ${size(e.bytes)}` : `${m.kind} ${m.axes.join("+")} ${size(m.wire)}`;
    for (const text of [long, size(e.bytes)]) {
      const w = text.length * 6.1 + 8;
      for (const [x, y] of places) {
        if (this.labels.every((l) => Math.abs(l.x - x) >= (l.w + w) / 2 + 2 || Math.abs(l.y - y) >= TAG + 2)) return { x, y, w, text };
      }
    }
    return null;
  }

  // where a node is on the page, for whoever points at it
  pointOf(i) {
    const b = this.boxes[this.box[i]], rect = this.surface.canvas.getBoundingClientRect();
    return [rect.left + this.view.applyX(b.x), rect.top + this.view.applyY(b.y)];
  }

  pointOfMove(number) {
    const e = this.thick.find((t) => t.moves.includes(number)), rect = this.surface.canvas.getBoundingClientRect();
    const [x, y] = middle(e);
    return [rect.left + this.view.applyX(x), rect.top + this.view.applyY(y)];
  }
}

function warm(share) {
  return `hsl(${Math.round(48 - 42 * share)} ${Math.round(70 + 20 * share)}% ${Math.round(93 - 30 * share)}%)`;
}

function deeper(color) {
  return color.replace(/(\d+)%\)$/, (all, n) => `${Math.max(+n - 14, 30)}%)`);
}

function curve(c, points) {
  let [x, y] = points[0];
  c.moveTo(x, y);
  for (let i = 1; i < points.length; i++) {
    const [u, v] = points[i], half = (y + v) / 2;
    c.bezierCurveTo(x, half, u, half, u, v);
    [x, y] = [u, v];
  }
}

const middle = (e) => middles(e)[0];

// between the layers that an edge passes, those in the middle of it first
function middles(e) {
  const half = Math.max(Math.ceil((e.points.length - 1) / 2), 1), found = [];
  for (let k = 1; k < e.points.length; k++) {
    const [a, b] = [e.points[k - 1], e.points[k]];
    found.push([(a[0] + b[0]) / 2, (a[1] + b[1]) / 2, Math.abs(k - half)]);
  }
  return found.sort((a, b) => a[2] - b[2]).map(([x, y]) => [x, y]);
}

function distance(points, x, y) {
  let least = Infinity;
  for (let i = 1; i < points.length; i++) {
    const [a, b] = [points[i - 1], points[i]], half = (a[1] + b[1]) / 2;
    for (let t = 0; t <= 1; t += 0.05) {
      const s = 1 - t, px = s * s * s * a[0] + 3 * s * s * t * a[0] + 3 * s * t * t * b[0] + t * t * t * b[0];
      const py = s * s * s * a[1] + 3 * s * s * t * half + 3 * s * t * t * half + t * t * t * b[1];
      least = Math.min(least, Math.hypot(px - x, py - y));
    }
  }
  return least;
}

// the first edge whose top is not above y
function lower(edges, y) {
  let a = 0, b = edges.length;
  while (a < b) {
    const m = (a + b) >> 1;
    if (edges[m].top < y) a = m + 1;
    else b = m;
  }
  return a;
}
