// What ran when: a lane for each device and each thread of Python.
import { select } from "d3-selection";
import { zoom, zoomIdentity } from "d3-zoom";
import { scaleLinear } from "d3-scale";
import { bisector, max, min } from "d3-array";
import { code, element, facts, Surface, table } from "./dom.js";
import { duration, percent } from "./recording.js";

const LANE = 34, LEFT = 130, TOP = 26, MOVES = "#d9542b", SPAN = "#b9c4d0";
const NEAREST = 0.001; // no view is of fewer microseconds
const after = bisector((e) => e[1] + e[2]).left;

export class Timeline {
  constructor(parent, recording, panel, tip) {
    Object.assign(this, { recording, panel, tip });
    const bar = element(parent, "div", "bar");
    element(bar, "button", "all", "everything").on("click", () => this.fit(this.from, this.to));
    element(bar, "button", "last", "the last run").on("click", () => this.lastRun());
    this.search = element(bar, "input", "search").attr("type", "search").attr("placeholder", "search: kernel, line");
    this.search.on("input", () => this.find(this.search.property("value")));
    const key = element(bar, "span", "key");
    for (const [color, text] of [["hsl(205 60% 62%)", "computes (a hue for each kernel)"], [MOVES, "moves values between devices"], [SPAN, "Python"]]) {
      element(key, "span", "swatch").style("background", color);
      element(key, "span", "", text);
    }
    this.place = element(parent, "div", "canvas");
    this.lanes = recording.tracks.filter((t) => t.events.length).map((t) => this.lane(t));
    this.from = min(this.lanes, (l) => l.track.events[0][1]) ?? 0;
    this.to = max(this.lanes, (l) => max(l.track.events, (e) => e[1] + e[2])) ?? 1;
    let y = TOP;
    for (const l of this.lanes) {
      l.y = y;
      y += l.depth * (l.track.python ? 18 : LANE) + 8;
    }
    this.height = y;
    this.scale = scaleLinear([this.from, this.to], [LEFT, 1000]);
    this.surface = new Surface(this.place, (c, w, h) => this.draw(c, w, h));
    this.surface.resized = () => this.domain && this.look(...this.domain);
    this.view = zoomIdentity;
    const closest = (this.to - this.from) / NEAREST;
    this.zoom = zoom().scaleExtent([0.5, Math.max(closest, 1)]).on("zoom", (e) => {
      this.view = e.transform;
      this.domain = this.view.rescaleX(this.scale).domain();
      this.surface.paint();
    });
    select(this.surface.canvas).call(this.zoom).on("mousemove", (e) => this.hover(e)).on("mouseleave", () => tip.hide()).on("click", (e) => this.click(e));
    this.lastRun();
  }

  // spans of Python lie within one another: each has a depth
  lane(track) {
    const ends = [], rows = track.events.map(([, start, us]) => {
      while (ends.length && ends[ends.length - 1] <= start + 0.05) ends.pop();
      ends.push(start + us);
      return Math.min(ends.length - 1, 7);
    });
    return { track, rows: track.python ? rows : null, depth: track.python ? (max(rows) ?? 0) + 1 : 1, widest: max(track.events, (e) => e[2]) ?? 0 };
  }

  lastRun() {
    const best = this.recording.main;
    if (!best) return this.fit(this.from, this.to);
    let from = Infinity, to = 0;
    for (const { track } of this.lanes.filter((l) => !l.track.python)) {
      const mine = track.events.filter((e) => e[3] === best.number), last = mine.map((e) => e[4]).lastIndexOf(min(mine, (e) => e[4]));
      for (const e of mine.slice(Math.max(last, 0))) [from, to] = [Math.min(from, e[1]), Math.max(to, e[1] + e[2])];
    }
    this.fit(from, to);
  }

  fit(from, to) {
    const margin = (to - from) * 0.02;
    this.look(from - margin, to + margin);
  }

  // shows these times, whatever the width
  look(from, to) {
    this.scale.range([LEFT, Math.max(this.surface.width || 1000, LEFT + 60) - 10]);
    const k = (this.to - this.from) / Math.max(to - from, 10 * NEAREST);
    select(this.surface.canvas).call(this.zoom.transform, zoomIdentity.translate(LEFT - this.scale(from) * k, 0).scale(k));
  }

  color(e) {
    const [name, , , plan, item] = e;
    if (plan < 0) return SPAN;
    const it = this.recording.plans[plan].items[item];
    if (this.recording.isMove(it)) return MOVES;
    let h = 0;
    for (let i = 0; i < name.length; i++) h = (h * 31 + name.charCodeAt(i)) % 360;
    return `hsl(${150 + (h % 130)} 55% ${58 + (h % 3) * 6}%)`;
  }

  draw(c, width, height) {
    this.scale.range([LEFT, width - 10]);
    const x = this.view.rescaleX(this.scale);
    this.x = x;
    c.font = "10px ui-monospace, monospace";
    c.textBaseline = "middle";
    const ticks = x.ticks(Math.max(2, width / 140)), step = ticks.length > 1 ? ticks[1] - ticks[0] : 1;
    c.strokeStyle = "#e6e9ed";
    c.fillStyle = "#5c6670";
    c.lineWidth = 1;
    for (const t of ticks) {
      c.beginPath();
      c.moveTo(x(t), TOP - 6);
      c.lineTo(x(t), height);
      c.stroke();
      c.fillText(step >= 1e3 ? `${+(t / 1e3).toFixed(3)} ms` : `${+t.toFixed(2)} µs`, x(t) + 3, 10);
    }
    for (const lane of this.lanes) this.drawLane(c, lane, x, width);
    c.fillStyle = "#f6f7f9";
    c.fillRect(0, 0, LEFT - 6, height);
    c.fillStyle = "#1d232a";
    for (const l of this.lanes) c.fillText(l.track.name.replace("Python ", "").slice(0, 20), 8, l.y + (l.track.python ? 9 : LANE / 2));
  }

  // events that are narrower than a pixel are drawn together
  drawLane(c, lane, x, width) {
    const { events } = lane.track, tall = lane.track.python ? 16 : LANE - 4;
    const start = after(events, x.invert(LEFT) - lane.widest), until = x.invert(width);
    let drawn = new Float64Array(lane.depth).fill(-Infinity);
    for (let i = start; i < events.length && events[i][1] < until; i++) {
      const e = events[i], row = lane.rows ? lane.rows[i] : 0, a = Math.max(x(e[1]), LEFT - 6), b = Math.min(x(e[1] + e[2]), width);
      if (b < LEFT - 6 || b - drawn[row] < 0.7) continue;
      const w = Math.max(b - a, 0.7), y = lane.y + row * 18;
      drawn[row] = a + w;
      c.fillStyle = this.color(e);
      c.fillRect(a, y, w, tall);
      if (this.matches?.has(e)) {
        c.strokeStyle = "#111";
        c.lineWidth = 2;
        c.strokeRect(a, y, Math.max(w, 2), tall);
      }
      if (w > 40) {
        c.fillStyle = "#12181f";
        c.save();
        c.beginPath();
        c.rect(a, y, w, tall);
        c.clip();
        c.fillText(e[0], a + 3, y + tall / 2);
        c.restore();
      }
    }
  }

  find(words) {
    const wanted = words.toLowerCase(), r = this.recording;
    this.matches = new Set();
    for (const l of this.lanes) {
      for (const e of wanted ? l.track.events : []) {
        const computes = e[3] >= 0 ? r.plans[e[3]].items[e[4]].computes : [];
        if (`${e[0]} ${computes.map((x) => r.lineName(x[1])).join(" ")}`.toLowerCase().includes(wanted)) this.matches.add(e);
      }
    }
    const p = this.panel.clear();
    if (words) element(p, "h3", "", `${this.matches.size} found`);
    const first = [...this.matches][0];
    if (first) this.fit(first[1] - first[2] * 6, first[1] + first[2] * 7);
    this.surface.paint();
  }

  under(event) {
    const rect = this.surface.canvas.getBoundingClientRect(), px = event.clientX - rect.left, y = event.clientY - rect.top;
    if (px < LEFT || !this.x) return null;
    for (const lane of this.lanes) {
      const row = Math.floor((y - lane.y) / (lane.track.python ? 18 : LANE));
      if (row < 0 || row >= lane.depth) continue;
      const t = this.x.invert(px), near = this.x.invert(px + 2) - t, { events } = lane.track;
      let found = null;
      for (let i = after(events, t - lane.widest - near); i < events.length && events[i][1] <= t + near; i++) {
        const e = events[i];
        if (e[1] + e[2] >= t - near && (!lane.rows || lane.rows[i] === row)) found = { lane, event: e };
      }
      if (found) return found;
    }
    return null;
  }

  hover(event) {
    const found = this.under(event);
    this.surface.canvas.style.cursor = found ? "pointer" : "grab";
    if (!found) return this.tip.hide();
    this.tip.show(event, (t) => this.tell(t, found.lane, found.event));
  }

  tell(t, lane, [name, , us, plan, item]) {
    const r = this.recording;
    element(t, "b", "", `${name}  ${duration(us)}`);
    element(t, "div", "dim", lane.track.name);
    if (plan < 0) return;
    const it = r.plans[plan].items[item];
    element(t, "div", "", r.isMove(it) ? "reads what other devices hold" : "computes");
    const line = (it.computes.find((x) => x[1] >= 0) ?? [0, -1])[1];
    if (line >= 0) element(t, "div", "dim", `${r.lineName(line)}  ${r.lineCode(line)}`);
  }

  click(event) {
    const found = this.under(event), p = this.panel.clear();
    if (!found) return this.summary(p);
    const [name, start, us, plan, item] = found.event, r = this.recording;
    element(p, "h3", "", name);
    facts(p, [["on", found.lane.track.name], ["from", duration(start)], ["takes", duration(us)]]);
    if (plan < 0) return;
    const it = r.plans[plan].items[item];
    facts(p, [["median", duration(it.median)], ["module", r.path(it.scope).join(" / ")]]);
    if (it.kernel >= 0) element(p, "button", "to-kernel", "its schedule and source").on("click", () => this.openKernel(it.kernel));
    element(p, "button", "to-graph", "in the graph").on("click", () => this.openItem(plan, item));
    for (const line of new Set(it.computes.map((x) => x[1]))) code(p, r, line);
  }

  summary(p = this.panel.clear()) {
    if (!this.recording.devices.length) return;
    element(p, "h3", "", "devices");
    const rows = this.recording.overlap;
    table(p, [
      ["device", (o) => o.device], ["computes", (o) => duration(o.computes), "n"], ["moves", (o) => duration(o.moves), "n"],
      ["meanwhile others compute", (o) => (o.moves ? percent(o.hidden / o.moves) : "–"), "n"],
    ], rows, null, "overlap");
    element(p, "div", "dim", "Between kernels a device waits, for others or for Python. Kernels are timed on their device, as they run in a batch where the backend notes times (CPU); elsewhere one by one.");
  }
}
