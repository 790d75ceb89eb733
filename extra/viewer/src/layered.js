// Where the nodes of a graph stand: layer by layer, each reader below what it reads (K. Sugiyama, S. Tagawa, M. Toda,
// IEEE Trans. SMC 11, 1981). Linear in nodes and short edges, up to sorting within layers.
const GAP = 26, LARGE = 6000;

// `widths` of nodes 0 … n-1; `edges`: [source, reader], those with source > reader are drawn upwards
export function layered(widths, edges) {
  const n = widths.length, bent = n > LARGE ? 2 : 8, sweeps = n > LARGE ? 2 : 4;
  const down = edges.map(([a, b]) => (a < b ? [a, b] : [b, a])).sort((x, y) => x[1] - y[1]);
  const layer = new Int32Array(n), fed = new Uint8Array(n), highest = new Int32Array(n).fill(1 << 30);
  for (const [a, b] of down) {
    layer[b] = Math.max(layer[b], layer[a] + 1);
    fed[b] = 1;
  }
  for (const [a, b] of down) highest[a] = Math.min(highest[a], layer[b]);
  for (let i = 0; i < n; i++) if (!fed[i] && highest[i] < 1 << 30) layer[i] = Math.max(highest[i] - 1, 0);
  // stand-ins where an edge passes layers
  const sizes = Array.from(widths, (w) => w), at = Array.from(layer), above = [], below = [], chains = new Array(edges.length);
  for (let i = 0; i < n; i++) above.push([]), below.push([]);
  edges.forEach(([a, b], e) => {
    const [u, v] = a < b ? [a, b] : [b, a], chain = [u];
    if (layer[v] - layer[u] <= bent) {
      for (let k = layer[u] + 1; k < layer[v]; k++) {
        chain.push(sizes.length);
        sizes.push(GAP / 2);
        at.push(k);
        above.push([]);
        below.push([]);
      }
    }
    chain.push(v);
    for (let k = 1; k < chain.length; k++) {
      above[chain[k]].push(chain[k - 1]);
      below[chain[k - 1]].push(chain[k]);
    }
    chains[e] = a < b ? chain : chain.reverse();
  });
  const rows = Array.from({ length: at.reduce((m, k) => Math.max(m, k), -1) + 1 }, () => []);
  at.forEach((k, i) => rows[k].push(i));
  const x = new Float64Array(sizes.length);
  order(rows, above, below, sweeps, x);
  for (const row of rows) put(row, x, sizes, null);
  for (let s = 0; s < sweeps; s++) {
    for (const row of rows.slice(1)) put(row, x, sizes, above);
    for (const row of rows.slice(0, -1).reverse()) put(row, x, sizes, below);
  }
  let left = Infinity;
  for (let i = 0; i < x.length; i++) left = Math.min(left, x[i] - sizes[i] / 2);
  for (let i = 0; i < x.length; i++) x[i] -= left;
  return { x, layer: at, rows: rows.map((row) => row.filter((i) => i < n)), chains };
}

// each layer by the mean place of what its nodes hang together with, from above and from below in turns
function order(rows, above, below, sweeps, x) {
  const place = new Float64Array(x.length), wish = new Float64Array(x.length);
  for (const row of rows) row.forEach((i, k) => (place[i] = k));
  const sort = (row, beside) => {
    for (const i of row) {
      let total = 0;
      for (const j of beside[i]) total += place[j];
      wish[i] = beside[i].length ? total / beside[i].length : place[i];
    }
    row.sort((a, b) => wish[a] - wish[b]);
    row.forEach((i, k) => (place[i] = k));
  };
  for (let s = 0; s < sweeps; s++) {
    for (const row of rows.slice(1)) sort(row, above);
    for (const row of rows.slice(0, -1).reverse()) sort(row, below);
  }
}

// the places nearest, by least squares, to the mean of the neighbours, with room for each: what is too near is pooled
function put(row, x, sizes, beside) {
  const offsets = new Float64Array(row.length), totals = [], counts = [];
  let room = 0;
  row.forEach((i, k) => {
    if (k) room += (sizes[row[k - 1]] + sizes[i]) / 2 + GAP;
    offsets[k] = room;
    let want = x[i];
    if (beside && beside[i].length) {
      want = 0;
      for (const j of beside[i]) want += x[j];
      want /= beside[i].length;
    }
    let total = want - room, count = 1;
    while (totals.length && totals[totals.length - 1] * count >= total * counts[counts.length - 1]) {
      total += totals.pop();
      count += counts.pop();
    }
    totals.push(total);
    counts.push(count);
  });
  let k = 0;
  totals.forEach((total, b) => {
    for (let c = 0; c < counts[b]; c++, k++) x[row[k]] = total / counts[b] + offsets[k];
  });
}
