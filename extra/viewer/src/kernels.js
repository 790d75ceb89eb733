// The kernels by the time that they take; of one its schedule, source, and place under the roofline.
import { axisBottom, axisLeft } from "d3-axis";
import { scaleLog } from "d3-scale";
import { max, min } from "d3-array";
import { code, element, facts, table } from "./dom.js";
import { ABOVE, duration, ofRoof, percent, size } from "./recording.js";

export class Kernels {
  constructor(parent, recording, panel, tip) {
    Object.assign(this, { recording, panel, tip });
    const bar = element(parent, "div", "bar");
    this.search = element(bar, "input", "search").attr("type", "search").attr("placeholder", "search: name, line, source");
    this.search.on("input", () => this.list());
    this.status = element(bar, "span", "status");
    const split = element(parent, "div", "split");
    this.rows = element(split, "div", "list kernels");
    this.one = element(split, "div", "one");
    this.all = [...recording.slowest, ...recording.kernels.filter((k) => !k.runs)];
    this.list();
    if (this.all.length) this.open(this.all[0].number);
  }

  list() {
    const r = this.recording, wanted = this.search.property("value").toLowerCase();
    const fits = (k) => `${k.name} ${r.lineName(k.line)} ${r.lineCode(k.line)} ${k.source}`.toLowerCase().includes(wanted);
    const some = wanted ? this.all.filter(fits) : this.all;
    this.status.text(`${some.length} of ${this.all.length} kernels, ${duration(r.total)} on each device in all`);
    this.rows.selectAll("*").remove();
    table(this.rows, [
      ["in all", (k) => duration(k.total), "n"], ["of all", (k) => percent(k.total / (r.total || 1)), "n"], ["runs", (k) => k.runs, "n"],
      ["median", (k) => duration(k.median), "n"], ["roof", ofRoof, "n"], ["name", (k) => (k.moves ? `⇄ ${k.name}` : k.name), "mono"], ["line", (k) => r.lineName(k.line)],
    ], some.slice(0, 400), (k) => this.open(k.number), "slowest");
    if (some.some((k) => k.share > 1)) element(this.rows, "div", "dim above", ABOVE);
  }

  open(number) {
    const r = this.recording, k = r.kernels[number];
    this.number = number;
    this.one.selectAll("*").remove();
    const p = this.one;
    element(p, "h2", "", k.name);
    facts(p, [
      ["in all", `${duration(k.total)}, ${percent(k.total / (r.total || 1))} of all kernels`], ["median", `${duration(k.median)} (${k.runs} runs on ${k.devices} × ${k.kind})`],
      ["a run on a device", `${k.ops.toLocaleString("en")} operations, ${size(k.nbytes)} of memory`], ["launch", k.launch],
      ["reads other devices", k.moves ? "yes: it waits until they are ready" : ""],
      ["roofline", k.share ? `${percent(k.share)} of what the machine can do: ${(k.flops / 1e9).toFixed(2)} GFLOP/s, ${(k.bytes / 1e9).toFixed(2)} GB/s` : ""],
    ]);
    if (k.share > 1) element(p, "div", "dim above", ABOVE);
    this.roof(p, k);
    element(p, "h3", "", "where it comes from");
    const lines = new Map();
    for (const [, item] of k.items) for (const [op, line] of item.computes) lines.set(line, (lines.get(line) ?? new Set()).add(r.text(op)));
    for (const [line, ops] of [...lines].filter((x) => x[0] >= 0).slice(0, 8)) {
      element(p, "div", "dim", [...ops].join(", "));
      code(p, r, line);
    }
    if (k.items.length) element(p, "button", "to-graph", "in the graph").on("click", () => this.openItem(k.items[0][0].number, k.items[0][0].items.indexOf(k.items[0][1])));
    element(p, "h3", "", "schedule");
    const nests = Object.entries(k.steps);
    if (!nests.length) element(p, "div", "dim", "as it is written: no steps");
    for (const [label, steps] of nests) {
      const block = element(p, "div", "nest");
      element(block, "b", "", `nest ${label}`);
      const list = element(block, "ol");
      for (const s of steps) element(list, "li", "mono", s);
      if (!steps.length) element(block, "div", "dim", "no steps");
    }
    this.text(p, "source", k.source || "compiled before the recording began");
    this.text(p, "what it computes", k.ast);
  }

  text(p, title, text) {
    const d = element(p, "details", title.split(" ")[0]).attr("open", title === "source" ? "" : null);
    element(d, "summary", "", title);
    element(d, "pre", "", text);
  }

  roof(p, k) {
    const peaks = this.recording.peaks[k.kind];
    if (!peaks || !k.share) return;
    const all = this.all.filter((x) => x.share && x.kind === k.kind && x.ops), w = 430, h = 210;
    const xs = all.map((x) => x.intensity), ridge = peaks[0] / peaks[1];
    const x = scaleLog([Math.min(min(xs) ?? 1, 0.05), Math.max(max(xs) ?? 1, ridge * 4)], [54, w - 10]);
    const y = scaleLog([peaks[0] / 1e4, (max(all, (q) => q.flops) > peaks[0] ? 4 : 2) * peaks[0]], [h - 34, 8]).clamp(true);
    const svg = element(p, "svg", "roof").attr("width", w).attr("height", h);
    const tick = (n) => (n >= 1e9 ? `${n / 1e9}G` : n >= 1e6 ? `${n / 1e6}M` : `${n}`);
    svg.append("g").attr("transform", `translate(0 ${h - 34})`).call(axisBottom(x).ticks(5, "~g"));
    svg.append("g").attr("transform", "translate(54 0)").call(axisLeft(y).ticks(4).tickFormat(tick));
    svg.append("text").attr("x", w / 2).attr("y", h - 4).attr("text-anchor", "middle").text("operations per byte");
    const [a, b] = x.domain();
    svg.append("path").attr("class", "bound").attr("d", `M${x(a)} ${y(Math.max(a * peaks[1], y.domain()[0]))}L${x(ridge)} ${y(peaks[0])}L${x(b)} ${y(peaks[0])}`);
    svg.selectAll("circle").data([...all].sort((a, b) => (a === k) - (b === k))).join("circle").attr("cx", (q) => x(q.intensity)).attr("cy", (q) => y(q.flops)).attr("r", (q) => (q === k ? 7 : 4))
      .attr("class", (q) => (q === k ? "this" : "")).on("click", (e, q) => this.open(q.number))
      .on("mousemove", (e, q) => this.tip.show(e, (t) => {
        element(t, "b", "", q.name);
        element(t, "div", "", `${percent(q.share)} of the roof, ${duration(q.median)}`);
      })).on("mouseleave", () => this.tip.hide());
    svg.append("text").attr("x", 60).attr("y", y(peaks[0]) - 3).text(`${(peaks[0] / 1e9).toFixed(0)} GFLOP/s, ${(peaks[1] / 1e9).toFixed(0)} GB/s`);
  }
}
