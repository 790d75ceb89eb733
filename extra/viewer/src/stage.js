// A graph as the page shows it: its nodes by module, those that are folded or left out gone, moves on its edges.
import { sum } from "d3-array";

const MOST_AT_FIRST = 70; // boxes

export const STAGES = ["global", "placed", "local", "kernels"];

// the nodes of a stage of a plan
export function nodesOf(recording, plan, name) {
  if (name === "kernels") return kernelsOf(recording, plan);
  const stage = plan.stages.find((s) => s.name === name), backward = new Set(stage.backward);
  return {
    name, plan, count: stage.op.length, src: stage.src, kind: stage.kind, line: stage.line,
    label: stage.op.map((i) => recording.text(i)), value: stage.value.map((i) => recording.text(i)),
    place: stage.place.map((i) => recording.text(i)), note: stage.note.map((i) => recording.text(i)),
    path: pathsOf(recording, stage.scope, backward), moves: new Map(Object.entries(stage.moves).map(([i, m]) => [+i, m])),
    heat: null,
  };
}

// the kernels and copies of a plan: what a slot holds goes from who wrote it last to who reads it
function kernelsOf(recording, plan) {
  const out = { name: "kernels", plan, count: 0, src: [], kind: [], line: [], label: [], value: [], place: [], note: [], moves: new Map(), heat: [], item: [] };
  const scope = [], backward = new Set(), writer = new Map(), most = Math.max(...plan.items.map((i) => i.total), 1e-9);
  const add = (src, kind, line, label, value, place, note, heat, at, item) => {
    out.src.push(src); out.kind.push(kind); out.line.push(line); out.label.push(label); out.value.push(value);
    out.place.push(place); out.note.push(note); out.heat.push(heat); scope.push(at); out.item.push(item);
    return out.count++;
  };
  plan.items.forEach((item, number) => {
    const reads = [];
    item.slots.forEach((slot, k) => {
      if (k < item.writes && item.slots.indexOf(slot, item.writes) < 0) return;
      if (!writer.has(slot) && slot < plan.slots.length) {
        const s = plan.slots[slot];
        writer.set(slot, add([], 3, s.line, "memory", recording.text(s.value), recording.text(s.place), "", 0, -1, -1));
      }
      if (writer.has(slot)) reads.push(writer.get(slot));
    });
    const line = (item.computes.find((c) => c[1] >= 0) ?? [0, -1])[1], ops = item.computes.map((c) => recording.text(c[0]));
    const place = item.devices.length > 1 ? `${item.devices[0]} … ${item.devices[item.devices.length - 1]}` : item.devices[0];
    const note = `computes ${ops.join(", ")}`;
    const i = add([...new Set(reads)], recording.isMove(item) ? 5 : 0, line, item.name, item.runs ? `${item.median.toFixed(1)} µs` : "", place, note, item.total / most, item.scope, number);
    if (item.backward) backward.add(i);
    item.slots.slice(0, item.writes).forEach((slot) => writer.set(slot, i));
  });
  out.path = pathsOf(recording, scope, backward);
  return out;
}

// of each node the names around it; what has no scope is where it is first read
function pathsOf(recording, scope, backward) {
  const known = new Map([[-1, []]]);
  const path = (i) => {
    if (!known.has(i)) known.set(i, recording.path(i));
    return known.get(i);
  };
  const paths = scope.map((s, i) => ({ names: path(s), known: s >= 0, backward: backward.has(i) }));
  const some = paths.filter((p) => p.known);
  let common = 0;
  if (some.length) {
    while (some.every((p) => p.names.length > common && p.names[common] === some[0].names[common])) common++;
  }
  return paths.map((p) => (p.known ? [...(p.backward ? ["backward"] : []), ...p.names.slice(common)] : null));
}

export class Folding {
  constructor(nodes, hidesViews) {
    Object.assign(this, { nodes, hidesViews, open: new Set([""]) });
    this.feed();
    this.group();
    this.openSome();
  }

  // the sources of each node that are shown, with the moves on the way; `shown`: which nodes are
  feed() {
    const { count, src, kind, moves, label } = this.nodes, feeds = new Array(count);
    this.shown = new Uint8Array(count);
    for (let i = 0; i < count; i++) {
      let found = src[i].flatMap((s) => (this.shown[s] ? [[s, []]] : feeds[s]));
      const on = moves.get(i), skipped = label[i] === "sink" || on || kind[i] === 2 || (this.hidesViews && kind[i] === 1);
      if (found.length > 1) found = [...new Map(found.map((f) => [`${f[0]} ${f[1]}`, f])).values()];
      this.shown[i] = skipped ? 0 : 1;
      feeds[i] = on ? found.map(([s, m]) => [s, [...m, ...on]]) : found;
    }
    this.feeds = feeds;
  }

  group() {
    const { nodes, feeds } = this, paths = nodes.path.slice(), count = nodes.count;
    for (let i = count - 1; i >= 0; i--) { // who reads it says where it belongs
      for (const s of nodes.src[i]) if (!nodes.path[s] && paths[i]) paths[s] = paths[i];
    }
    this.groups = new Map([["", { key: "", name: "", parent: null, children: [], nodes: [], all: 0, depth: 0 }]]);
    this.of = new Array(count);
    for (let i = 0; i < count; i++) {
      let key = "";
      for (const name of paths[i] ?? []) {
        const next = key ? `${key}/${name}` : name;
        if (!this.groups.has(next)) {
          const parent = this.groups.get(key);
          const made = { key: next, name, parent, children: [], nodes: [], all: 0, depth: parent.depth + 1 };
          this.groups.set(next, made);
          parent.children.push(made);
        }
        key = next;
      }
      this.of[i] = this.groups.get(key);
      if (!this.shown[i]) continue;
      this.of[i].nodes.push(i);
      for (let g = this.of[i]; g; g = g.parent) g.all++;
    }
    this.bytes = new Map(); // of moves within a group
    const on = nodes.moves, rows = nodes.plan.moves;
    for (const [i, m] of on) {
      for (let g = this.of[i]; g; g = g.parent) this.bytes.set(g, (this.bytes.get(g) ?? 0) + sum(m, (k) => rows[k].wire));
    }
    this.feeds = feeds;
  }

  // as many groups as fit, the outer ones first
  openSome() {
    let boxes = this.visibleIn(this.groups.get(""));
    const queue = [...this.groups.get("").children];
    while (queue.length) {
      const g = queue.shift(), more = this.visibleIn(g) - 1;
      if (boxes + more > MOST_AT_FIRST && !(g.children.length === 1 && !g.nodes.length)) continue;
      boxes += more;
      this.open.add(g.key);
      queue.push(...g.children);
    }
  }

  visibleIn(g) { return g.nodes.length + g.children.filter((c) => c.all).length; }

  toggle(key) {
    if (!this.open.delete(key)) this.open.add(key);
  }

  openAll(yes) {
    this.open = new Set(yes ? this.groups.keys() : [""]);
  }

  // opens what a node is folded in
  reveal(i) {
    for (let g = this.of[i]; g; g = g.parent) this.open.add(g.key);
  }

  // the outermost closed group around a node, or null
  closed(i) {
    let found = null;
    for (let g = this.of[i]; g; g = g.parent) if (!this.open.has(g.key)) found = g;
    return found;
  }

  // boxes and edges as they are to be drawn: {node} or {group, members}, in an order in which sources tend to come first
  visible() {
    const { nodes, feeds, shown } = this, boxes = [], number = new Map(), box = new Int32Array(nodes.count).fill(-1);
    for (let i = 0; i < nodes.count; i++) {
      if (!shown[i]) continue;
      const g = this.closed(i), key = g ? g : i;
      if (!number.has(key)) {
        number.set(key, boxes.length);
        boxes.push(g ? { group: g, members: [] } : { node: i });
      }
      box[i] = number.get(key);
      if (g) boxes[box[i]].members.push(i);
    }
    // a group stands where most of it does
    const when = (b) => (b.group ? b.members[b.members.length >> 1] : b.node), rank = new Int32Array(boxes.length);
    const inOrder = boxes.map((b, k) => [when(b), k]).sort((x, y) => x[0] - y[0]).map((x) => x[1]);
    inOrder.forEach((k, place) => (rank[k] = place));
    const edges = new Map();
    for (let i = 0; i < nodes.count; i++) {
      if (box[i] >= 0) box[i] = rank[box[i]];
    }
    for (let i = 0; i < nodes.count; i++) {
      if (!shown[i]) continue;
      for (const [s, m] of feeds[i]) {
        const a = box[s], b = box[i];
        if (a === b) continue;
        const key = a * boxes.length + b;
        if (!edges.has(key)) edges.set(key, { a, b, moves: [] });
        const e = edges.get(key);
        for (const k of m) if (!e.moves.includes(k)) e.moves.push(k);
      }
    }
    return { boxes: inOrder.map((k) => boxes[k]), edges: [...edges.values()], box };
  }
}
