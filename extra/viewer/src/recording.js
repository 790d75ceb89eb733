// A recording (tinygrad/viz/trace.py), unpacked, and what all views ask of it.
import { max, median, rollups, sum } from "d3-array";

export async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Recording(await new Response(stream).json());
}

export function size(n) {
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (Math.abs(n) < 1000) return `${unit === "B" ? Math.round(n) : n.toFixed(1)} ${unit}`;
    n /= 1000;
  }
  return `${n.toFixed(1)} TB`;
}

export function duration(us) {
  if (us >= 1e6) return `${(us / 1e6).toFixed(2)} s`;
  return us >= 1e3 ? `${(us / 1e3).toFixed(us >= 1e4 ? 1 : 2)} ms` : `${us.toFixed(1)} µs`;
}

export const percent = (x) => `${(100 * x).toFixed(x < 0.1 ? 1 : 0)}%`;
// a kernel's part of the roof in a table; what is above it has its reason there
export const ofRoof = (k) => (k.share > 1 ? "> 100%" : k.share ? percent(k.share) : "");
export const ABOVE = "> 100%: above the roof, which is measured once: values in caches, or a machine that had less else to do then";

export class Recording {
  constructor(trace) {
    Object.assign(this, trace);
    this.trace = trace;
    this.devices = this.tracks.filter((t) => !t.python);
    this.plans.forEach((plan, i) => this.measure(plan, i));
    this.count();
  }

  // ---- words

  text(i) { return i < 0 ? "" : this.strings[i]; }

  lineName(i) {
    if (i < 0) return "";
    const [file, number] = this.lines[i];
    return `${file.split("/").pop()}:${number}`;
  }

  lineCode(i) { return i < 0 ? "" : this.lines[i][2][this.around].trim(); }

  // names of the modules and functions around, the outermost first
  path(scope) {
    const names = [];
    for (let i = scope; i >= 0; i = this.scopes[i][1]) names.unshift(this.scopes[i][0]);
    return names;
  }

  planName(i) {
    const plan = this.plans[i];
    const where = plan.line < 0 ? "a program" : `${this.lineName(plan.line)}  ${this.lineCode(plan.line)}`;
    return `${i + 1}. ${where.slice(0, 70)}`;
  }

  // the program that takes the most time
  get main() {
    const busy = (p) => [p.typical, p.moves.length];
    return this.plans.reduce((a, b) => (!a || busy(b)[0] > busy(a)[0] || (busy(b)[0] === busy(a)[0] && busy(b)[1] > busy(a)[1]) ? b : a), null);
  }

  isMove(item) { return item.peers || item.kernel < 0; }

  // ---- times

  measure(plan, number) {
    plan.number = number;
    for (const item of plan.items) Object.assign(item, { times: [], spans: [], total: 0, runs: 0 });
  }

  count() {
    for (const track of this.devices) {
      const turn = new Map(); // how often each item has run there
      for (const [, start, us, plan, item] of track.events) {
        if (plan < 0) continue;
        const it = this.plans[plan].items[item], n = turn.get(it) ?? 0;
        turn.set(it, n + 1);
        it.times.push(us);
        const run = (it.spans[n] ??= [Infinity, 0]); // of all devices together
        run[0] = Math.min(run[0], start);
        run[1] = Math.max(run[1], start + us);
      }
    }
    this.kernels.forEach((k, i) => Object.assign(k, { number: i, items: [], total: 0, runs: 0, times: [], spans: [] }));
    for (const plan of this.plans) {
      for (const item of plan.items) {
        item.median = median(item.times) ?? 0;
        item.total = sum(item.times) / item.devices.length; // of one device
        item.runs = Math.round(item.times.length / item.devices.length);
        if (item.kernel < 0) continue;
        const k = this.kernels[item.kernel];
        k.items.push([plan, item]);
        k.total += item.total;
        k.runs += item.runs;
        for (const t of item.times) k.times.push(t);
        for (const [a, b] of item.spans) k.spans.push(b - a);
      }
      plan.runs = max(plan.items, (i) => i.runs) ?? 0;
      plan.total = sum(plan.items, (i) => i.total);
      plan.typical = sum(plan.items, (i) => i.median * i.runs); // without what happens once
    }
    this.total = sum(this.plans, (p) => p.total);
    for (const k of this.kernels) {
      k.median = median(k.times) ?? 0;
      const item = k.items[0]?.[1];
      k.kind = item ? item.devices[0].split(":")[0] : "";
      k.devices = item ? item.devices.length : 1;
      k.line = item ? (item.computes.find((c) => c[1] >= 0) ?? [0, -1])[1] : -1;
      k.moves = item ? this.isMove(item) : false;
      Object.assign(k, this.roofline(k));
    }
  }

  // what a kernel reaches of what the machine can do; devices of a processor share it
  roofline(k) {
    const peaks = this.peaks[k.kind];
    if (!peaks || !k.median) return { share: 0 };
    // devices of a processor share it: what they do together counts, from the first one's start to the last one's end
    const machines = peaks[2] ? k.devices : 1, seconds = (peaks[2] ? median(k.spans) : k.median) * 1e-6;
    const flops = (k.ops * machines) / seconds, bytes = (k.nbytes * machines) / seconds;
    return { flops, bytes, intensity: k.ops / Math.max(k.nbytes, 1), share: Math.max(flops / peaks[0], bytes / peaks[1]) };
  }

  get slowest() { return this.kernels.filter((k) => k.runs).sort((a, b) => b.total - a.total); }

  // ---- moves

  // by line, kind and axes: how many, their bytes a run, and in all runs
  get moves() {
    const all = this.plans.flatMap((plan) => plan.moves.map((move) => ({ plan, move })));
    const key = ({ plan, move }) => `${plan.number} ${move.line} ${move.kind} ${move.axes}`;
    const rows = rollups(all, (group) => {
      const { plan, move } = group[0], wire = sum(group, (g) => g.move.wire);
      const biggest = group.reduce((a, b) => (b.move.wire > a.move.wire ? b : a)).move;
      return { plan, move: biggest, line: move.line, kind: move.kind, axes: move.axes, count: group.length, wire,
        total: wire * Math.max(plan.runs, 1), numbers: group.map((g) => plan.moves.indexOf(g.move)) };
    }, key);
    return rows.map((r) => r[1]).sort((a, b) => b.total - a.total);
  }

  // ---- memory

  // what memory holds: its line, module, type; of memory for intermediate values what it holds in turn
  holder(row) {
    const [, nbytes, , , holds, line] = row;
    let found = { what: "memory", line, scope: -1, values: [] };
    for (const [p, slot] of holds) {
      const plan = this.plans[p], writers = plan.items.filter((i) => i.slots.indexOf(slot) >= 0 && i.slots.indexOf(slot) < i.writes);
      const known = (item) => (item.computes.find((c) => c[1] >= 0) ?? [0, -1])[1];
      if (slot >= plan.slots.length) {
        const values = writers.map((i) => ({ line: known(i), scope: i.scope, backward: i.backward, name: i.name, nbytes: i.sizes[i.slots.indexOf(slot)] ?? 0 }));
        const biggest = values.reduce((a, b) => (b.nbytes > a.nbytes ? b : a), { nbytes: -1, line: -1, scope: -1 });
        return { what: "intermediate values", line: biggest.line, scope: biggest.scope, backward: biggest.backward, values, plan };
      }
      const about = plan.slots[slot];
      found = { ...found, what: this.text(about.value), line: found.line < 0 ? about.line : found.line, plan };
      if (writers.length) {
        const at = known(writers[0]);
        return { ...found, line: at < 0 ? found.line : at, scope: writers[0].scope, backward: writers[0].backward };
      }
    }
    return { ...found, nbytes };
  }

  // (time, bytes) of a device, and the rows that are alive at its peak
  memoryOf(device) {
    const rows = this.memory.rows.filter((r) => r[0].includes(device));
    const changes = rows.flatMap((r) => [[r[2], r[1]], ...(r[3] === null ? [] : [[r[3], -r[1]]])]);
    changes.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    let used = this.memory.before[device] ?? 0, peak = used, at = 0;
    const points = [[0, used]];
    for (const [t, n] of changes) {
      used += n;
      points.push([t, used]);
      if (used > peak) [peak, at] = [used, t];
    }
    return { device, rows, points, peak, at };
  }

  alive(rows, at) {
    return rows.filter((r) => r[2] <= at && (r[3] === null || r[3] > at)).sort((a, b) => b[1] - a[1]);
  }

  // rows that come from the same line, together
  byLine(rows) {
    const groups = new Map();
    for (const row of rows) {
      const held = this.holder(row), key = `${held.line} ${held.what === "intermediate values"}`;
      if (!groups.has(key)) groups.set(key, { line: held.line, nbytes: 0, count: 0, held, rows: [] });
      const g = groups.get(key);
      g.nbytes += row[1];
      g.count += 1;
      g.rows.push(row);
    }
    return [...groups.values()].sort((a, b) => b.nbytes - a.nbytes);
  }

  // bytes of the values that are alive at each item of a plan, on one device
  lives(plan) {
    const n = plan.items.length, values = [], open = new Map();
    plan.items.forEach((item, i) => {
      item.slots.forEach((slot, k) => {
        const nbytes = item.sizes[k] ?? 0, writes = k < item.writes, reads = item.slots.indexOf(slot, item.writes) >= 0;
        let v = open.get(slot);
        if (slot >= plan.slots.length && writes && !reads) v = undefined; // another value in the same memory
        if (!v) {
          v = { slot, first: slot < plan.slots.length ? 0 : i, last: i, nbytes, item: writes ? item : null };
          values.push(v);
          open.set(slot, v);
        }
        if (writes && !v.item) v.item = item;
        v.last = slot < plan.slots.length ? n - 1 : i;
        v.nbytes = Math.max(v.nbytes, nbytes);
      });
    });
    const used = new Float64Array(n + 1);
    for (const v of values) {
      used[v.first] += v.nbytes;
      used[v.last + 1] -= v.nbytes;
    }
    for (let i = 1; i <= n; i++) used[i] += used[i - 1];
    return { values, used: [...used.slice(0, n)] };
  }

  // ---- devices

  // of each device: the time in which it computes, moves values, does neither; and moves while another one computes
  get overlap() {
    const spans = this.devices.map((t) => t.events.filter((e) => e[3] >= 0).map((e) => [e[1], e[1] + e[2], this.isMove(this.plans[e[3]].items[e[4]])]));
    const computing = merged(spans.flatMap((s) => s.filter((e) => !e[2])));
    return this.devices.map((track, i) => {
      const moves = spans[i].filter((e) => e[2]), own = spans[i].filter((e) => !e[2]);
      const from = spans[i][0]?.[0] ?? 0, to = max(spans[i], (e) => e[1]) ?? 0;
      const length = (some) => sum(some, (e) => e[1] - e[0]);
      return { device: track.name, computes: length(own), moves: length(moves), hidden: common(merged(moves), computing), all: to - from };
    });
  }
}

function merged(spans) {
  const out = [];
  for (const [a, b] of [...spans].sort((x, y) => x[0] - y[0])) {
    if (out.length && a <= out[out.length - 1][1]) out[out.length - 1][1] = Math.max(out[out.length - 1][1], b);
    else out.push([a, b]);
  }
  return out;
}

function common(xs, ys) {
  let total = 0, j = 0;
  for (const [a, b] of xs) {
    while (j < ys.length && ys[j][1] <= a) j++;
    for (let k = j; k < ys.length && ys[k][0] < b; k++) total += Math.min(b, ys[k][1]) - Math.max(a, ys[k][0]);
  }
  return total;
}
