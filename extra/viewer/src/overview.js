// The three questions: which line moves the most, which kernel is slowest, what holds the memory at the peak.
import { code, element, table } from "./dom.js";
import { ABOVE, duration, ofRoof, percent, size } from "./recording.js";

const SHOWN = 8;

export class Overview {
  constructor(parent, recording, panel, go) {
    Object.assign(this, { recording, panel });
    const r = recording, body = element(parent, "div", "cards");
    const moves = r.moves, kernels = r.slowest, devices = [...new Set(r.memory.rows.flatMap((x) => x[0]))].map((d) => r.memoryOf(d));
    const top = devices.reduce((a, b) => (b.peak > (a?.peak ?? -1) ? b : a), null);
    this.card(body, "moves", "What moves the most", moves.length ? `${size(moves.reduce((n, m) => n + m.total, 0))} that each device receives, in ${moves.reduce((n, m) => n + m.count, 0)} moves` : "nothing moves between devices", moves[0]?.line, [
      ["bytes", (m) => size(m.total), "n"], ["moves", (m) => (m.plan.runs > 1 ? `${m.count} × ${m.plan.runs} runs` : m.count), "n"], ["kind", (m) => `${m.kind} ${m.axes.join("+")}`],
      ["line", (m) => r.lineName(m.line)], ["", (m) => r.lineCode(m.line), "mono"],
    ], moves, (m) => go.move(m.plan.number, m.plan.moves.indexOf(m.move)), (p) => element(p, "div", "why", moves[0].move.why));
    this.card(body, "slow", "Which kernels take the time", kernels.length ? `${duration(r.total)} on each device, in ${kernels.length} kernels` : "nothing ran", kernels[0]?.line, [
      ["in all", (k) => duration(k.total), "n"], ["of all", (k) => percent(k.total / r.total), "n"], ["median", (k) => duration(k.median), "n"], ["roof", ofRoof, "n"],
      ["kernel", (k) => (k.moves ? `⇄ ${k.name}` : k.name), "mono name"], ["line", (k) => r.lineName(k.line)], ["", (k) => r.lineCode(k.line), "mono"],
    ], kernels, (k) => go.kernel(k.number), null, kernels.slice(0, SHOWN).some((k) => k.share > 1) ? ABOVE : "");
    const held = top ? r.byLine(r.alive(top.rows, top.at)) : [];
    this.card(body, "holds", "What holds the memory at the peak", top ? `${size(top.peak)} on ${top.device}, at ${duration(top.at)}` : "no memory was taken", held[0]?.line, [
      ["bytes", (g) => size(g.nbytes), "n"], ["of all", (g) => percent(g.nbytes / top.peak), "n"], ["buffers", (g) => g.count, "n"], ["what", (g) => (g.held.what === "intermediate values" ? "intermediate values" : g.held.what)],
      ["line", (g) => r.lineName(g.line)], ["", (g) => r.lineCode(g.line), "mono"],
    ], held, (g) => go.memory(g));
    const rows = r.overlap.filter((o) => o.all);
    if (rows.length) {
      this.card(body, "devices", "What the devices do", "the rest is waiting, for others or for Python", -1, [
        ["device", (o) => o.device], ["computes", (o) => duration(o.computes), "n"], ["moves values", (o) => duration(o.moves), "n"],
        ["meanwhile others compute", (o) => (o.moves ? percent(o.hidden / o.moves) : "–"), "n"], ["peak memory", (o) => size(devices.find((d) => d.device === o.device)?.peak ?? 0), "n"],
      ], rows, () => go.timeline());
    }
  }

  card(body, name, title, said, line, columns, rows, act, more, note = "") {
    const c = element(body, "section", `card ${name}`);
    element(c, "h2", "", title);
    element(c, "div", "dim", said);
    if (!rows.length) return;
    if (line >= 0) {
      const best = element(c, "div", "best");
      code(best, this.recording, line);
      if (more) more(best);
    }
    table(c, columns, rows.slice(0, SHOWN), act);
    if (note) element(c, "div", "dim above", note);
    if (rows.length > SHOWN) element(c, "div", "dim", `and ${rows.length - SHOWN} more`);
  }
}
