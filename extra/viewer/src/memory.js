// Memory over time, and over the kernels of a program; what is alive where one points, at first at the peak.
import { select } from "d3-selection";
import { scaleLinear } from "d3-scale";
import { max, maxIndex } from "d3-array";
import { code, element, facts, Surface, table } from "./dom.js";
import { duration, size } from "./recording.js";

const LEFT = 80, TOP = 20, BOTTOM = 26;

export class MemoryView {
  constructor(parent, recording, panel, tip) {
    Object.assign(this, { recording, panel, tip });
    const bar = element(parent, "div", "bar");
    this.what = element(bar, "select", "what");
    this.curves = [...new Set(recording.memory.rows.flatMap((r) => r[0]))].map((d) => recording.memoryOf(d)).sort((a, b) => b.peak - a.peak);
    this.curves.forEach((c, i) => element(this.what, "option", "", `${c.device} over time, at most ${size(c.peak)}`).attr("value", `d${i}`));
    recording.plans.forEach((p, i) => {
      if (p.items.length > 1) element(this.what, "option", "", `kernel by kernel: ${recording.planName(i)}`).attr("value", `p${i}`);
    });
    this.what.on("change", () => this.show(this.what.property("value")));
    element(bar, "button", "to-peak", "the peak").on("click", () => this.goTo(this.peak));
    const split = element(parent, "div", "stacked");
    this.place = element(split, "div", "canvas chart");
    this.list = element(split, "div", "list");
    this.surface = new Surface(this.place, (c, w, h) => this.draw(c, w, h));
    select(this.surface.canvas).on("click", (e) => this.goTo(this.at(e))).on("mousemove", (e) => this.hover(e)).on("mouseleave", () => tip.hide());
    const first = this.curves.length ? "d0" : this.what.select("option").attr("value");
    if (first) this.show(first);
  }

  show(what) {
    this.what.property("value", what);
    const i = +what.slice(1);
    if (what[0] === "d") {
      const c = this.curves[i], last = max(this.recording.tracks, (t) => max(t.events, (e) => e[1] + e[2])) ?? 1;
      Object.assign(this, { curve: c, plan: null, points: [...c.points, [Math.max(last, c.points[c.points.length - 1][0]), c.points[c.points.length - 1][1]]], peak: c.at });
    } else {
      const plan = this.recording.plans[i], lives = this.recording.lives(plan);
      Object.assign(this, { plan, lives, points: lives.used.map((n, k) => [k, n]), peak: maxIndex(lives.used) });
      this.points.push([lives.used.length, lives.used[lives.used.length - 1]]);
    }
    this.goTo(this.peak);
  }

  at(event) {
    const rect = this.surface.canvas.getBoundingClientRect(), x = this.scale.invert(event.clientX - rect.left);
    return this.plan ? Math.max(0, Math.min(this.plan.items.length - 1, Math.floor(x))) : x;
  }

  goTo(at) {
    this.now = at;
    this.surface.paint();
    this.list.selectAll("*").remove();
    if (this.plan) this.valuesAt(at);
    else this.buffersAt(at);
  }

  buffersAt(at) {
    const r = this.recording, alive = r.alive(this.curve.rows, at), groups = r.byLine(alive);
    element(this.list, "h3", "", `${this.curve.device} ${at === this.peak ? "at the peak" : `at ${duration(at)}`}: ${size(alive.reduce((n, x) => n + x[1], 0) + (r.memory.before[this.curve.device] ?? 0))}`);
    table(this.list, [
      ["bytes", (g) => size(g.nbytes), "n"], ["buffers", (g) => g.count, "n"], ["what", (g) => (g.held.what === "intermediate values" ? "intermediate values, in turn" : g.count > 1 ? `${g.held.what}, …` : g.held.what)],
      ["line", (g) => r.lineName(g.line)], ["", (g) => r.lineCode(g.line), "mono"],
    ], groups.slice(0, 60), (g) => this.tell(g), "holders");
    const before = r.memory.before[this.curve.device];
    if (before) element(this.list, "div", "dim", `${size(before)} were in use before the recording began`);
  }

  tell(g) {
    const p = this.panel.clear(), r = this.recording;
    element(p, "h3", "", `${size(g.nbytes)} in ${g.count} buffers`);
    code(p, r, g.line);
    const rows = g.rows.slice(0, 40).map((row) => ({ row, held: r.holder(row) }));
    table(p, [["bytes", (x) => size(x.row[1]), "n"], ["what", (x) => x.held.what], ["module", (x) => r.path(x.held.scope).slice(-3).join(" / ")]], rows, null);
    const values = rows.flatMap((x) => x.held.values ?? []).sort((a, b) => b.nbytes - a.nbytes).slice(0, 40);
    if (!values.length) return;
    element(p, "h4", "", "values that lie there in turn");
    table(p, [["bytes", (v) => size(v.nbytes), "n"], ["kernel", (v) => v.name], ["line", (v) => r.lineName(v.line)], ["module", (v) => (v.backward ? "backward / " : "") + r.path(v.scope).slice(-2).join(" / ")]], values, null);
    const held = rows.find((x) => x.held.values)?.held;
    if (held) element(p, "button", "", "kernel by kernel").on("click", () => this.show(`p${held.plan.number}`));
  }

  valuesAt(at) {
    const r = this.recording, item = this.plan.items[at], alive = this.lives.values.filter((v) => v.first <= at && v.last >= at).sort((a, b) => b.nbytes - a.nbytes);
    element(this.list, "h3", "", `${at === this.peak ? "the peak, at" : "at"} kernel ${at}, ${item.name}: ${size(this.lives.used[at])} on each device`);
    const line = (v) => (v.item?.computes.find((c) => c[1] >= 0) ?? [0, v.slot < this.plan.slots.length ? this.plan.slots[v.slot].line : -1])[1];
    table(this.list, [
      ["bytes", (v) => size(v.nbytes), "n"], ["what", (v) => (v.slot < this.plan.slots.length ? r.text(this.plan.slots[v.slot].value) : "intermediate")],
      ["made by", (v) => v.item?.name ?? "(given)"], ["kernels", (v) => (v.slot < this.plan.slots.length ? "all" : `${v.first} – ${v.last}`), "n"],
      ["line", (v) => r.lineName(line(v))], ["", (v) => r.lineCode(line(v)), "mono"],
    ], alive.slice(0, 80), (v) => {
      const p = this.panel.clear();
      element(p, "h3", "", size(v.nbytes));
      facts(p, [["made by", v.item?.name ?? "given to the program"], ["module", v.item ? r.path(v.item.scope).join(" / ") : ""], ["computes", v.item?.computes.map((c) => r.text(c[0])).join(", ")]]);
      code(p, r, line(v));
    }, "holders");
  }

  hover(event) {
    if (!this.scale) return;
    const at = this.at(event);
    let used = 0;
    for (const [t, n] of this.points) {
      if (t > at) break;
      used = n;
    }
    this.tip.show(event, (t) => {
      element(t, "b", "", size(used));
      element(t, "div", "dim", this.plan ? `kernel ${at}, ${this.plan.items[at].name}` : duration(at));
    });
  }

  draw(c, width, height) {
    if (!this.points) return;
    const end = this.points[this.points.length - 1][0] || 1;
    const x = (this.scale = scaleLinear([0, end], [LEFT, width - 16])), y = scaleLinear([0, (max(this.points, (p) => p[1]) || 1) * 1.08], [height - BOTTOM, TOP]);
    c.font = "10px ui-monospace, monospace";
    c.textBaseline = "middle";
    for (const n of y.ticks(5)) {
      c.strokeStyle = "#e6e9ed";
      c.beginPath();
      c.moveTo(LEFT, y(n));
      c.lineTo(width - 16, y(n));
      c.stroke();
      c.fillStyle = "#5c6670";
      c.textAlign = "right";
      c.fillText(size(n), LEFT - 6, y(n));
    }
    c.textAlign = "center";
    for (const t of x.ticks(8)) c.fillText(this.plan ? `${t}` : duration(t), x(t), height - BOTTOM / 2);
    c.beginPath();
    c.moveTo(x(0), y(0));
    let before = this.points[0][1];
    for (const [t, n] of this.points) {
      c.lineTo(x(t), y(before));
      c.lineTo(x(t), y(n));
      before = n;
    }
    c.lineTo(x(end), y(0));
    c.fillStyle = "#bcd4ec";
    c.strokeStyle = "#3b78b4";
    c.lineWidth = 1.5;
    c.fill();
    c.stroke();
    c.strokeStyle = "#c02a2a";
    c.beginPath();
    c.moveTo(x(this.now + (this.plan ? 0.5 : 0)), TOP);
    c.lineTo(x(this.now + (this.plan ? 0.5 : 0)), height - BOTTOM);
    c.stroke();
    c.textAlign = "left";
  }
}
