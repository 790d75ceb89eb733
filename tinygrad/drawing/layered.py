"""Where the nodes of a graph stand in a picture: layer by layer, each reader below what it reads.

The steps are those of K. Sugiyama, S. Tagawa, M. Toda, "Methods for visual understanding of hierarchical system
structures" (IEEE Trans. SMC 11, 1981): layers by longest paths, stand-ins where an edge passes a layer, order by
barycentres, then places. Every step is linear in nodes and short edges, up to sorting; long edges have no stand-ins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BENT = 8  # an edge over more layers is drawn straight: with stand-ins, a graph of n layers could take n² of them
SWEEPS = 4
GAP = 24.0  # between neighbours, in pixels

Link = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Places:
  """`at`: of each node the middle (pixels) and the layer; `ways`: of each edge what it passes, both ends included."""

  at: list[tuple[float, int]]
  ways: list[list[tuple[float, int]]]


def layered(widths: Sequence[float], edges: Sequence[Link]) -> Places:
  """Of nodes in an order in which sources come first (edges are from a lower number to a higher one)."""
  layer, n = layers_of(len(widths), edges), len(widths)
  sizes, chains, links = list(widths), list[list[int]](), list[Link]()
  for a, b in edges:
    passed = range(layer[a] + 1, layer[b]) if layer[b] - layer[a] <= BENT else range(0)
    chain = [a, *range(len(sizes), len(sizes) + len(passed)), b]
    layer += passed
    sizes += [GAP / 2] * len(passed)
    chains.append(chain)
    links += zip(chain, chain[1:])
  above: list[list[int]] = [[] for _ in sizes]
  below: list[list[int]] = [[] for _ in sizes]
  for a, b in links:
    above[b].append(a)
    below[a].append(b)
  rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
  for i, k in enumerate(layer):
    rows[k].append(i)
  order_rows(rows, above, below)
  x = [0.0] * len(sizes)
  for row in rows:
    place_row(row, x, sizes)
  for _ in range(SWEEPS):
    for row in rows[1:]:
      place_row(row, x, sizes, above)
    for row in reversed(rows[:-1]):
      place_row(row, x, sizes, below)
  left = min((x[i] - sizes[i] / 2 for i in range(len(x))), default=0.0)
  at = [(v - left, k) for v, k in zip(x, layer)]
  return Places(at[:n], [[at[i] for i in chain] for chain in chains])


def layers_of(n: int, edges: Sequence[Link]) -> list[int]:
  """One below the lowest source; what has no source, one above its highest reader."""
  layer, highest = [0] * n, dict[int, int]()
  has_source = {b for _, b in edges}
  for a, b in sorted(edges, key=lambda e: e[1]):
    layer[b] = max(layer[b], layer[a] + 1)
  for a, b in edges:
    highest[a] = min(highest.get(a, layer[b]), layer[b])
  return [k if i in has_source else highest.get(i, 1) - 1 for i, k in enumerate(layer)]


def order_rows(rows: list[list[int]], above: list[list[int]], below: list[list[int]]) -> None:
  """Sorts each layer by the mean place of what its nodes hang together with, from above and from below in turns."""
  place = {i: float(k) for row in rows for k, i in enumerate(row)}

  def sort(row: list[int], beside: list[list[int]]) -> None:
    row.sort(key=lambda i: sum(place[j] for j in beside[i]) / len(beside[i]) if beside[i] else place[i])
    place.update((i, float(k)) for k, i in enumerate(row))

  for _ in range(SWEEPS):
    for row in rows[1:]:
      sort(row, above)
    for row in reversed(rows[:-1]):
      sort(row, below)


def place_row(row: list[int], x: list[float], sizes: list[float], beside: list[list[int]] | None = None) -> None:
  """The places in a layer that are nearest, by least squares, to the mean of `beside`, with room for each node: the
  room taken off, an isotonic regression, by pooling adjacent violators (R. E. Barlow et al., 1972)."""
  room, offsets, blocks = 0.0, list[float](), list[tuple[float, int]]()  # a block: the sum of what it wants, its length
  for k, i in enumerate(row):
    room += (sizes[row[k - 1]] + sizes[i]) / 2 + GAP if k else 0.0
    offsets.append(room)
    near = beside[i] if beside is not None else []
    total, count = (sum(x[j] for j in near) / len(near) if near else x[i]) - room, 1
    while blocks and blocks[-1][0] * count >= total * blocks[-1][1]:
      total, count = total + blocks[-1][0], count + blocks[-1][1]
      blocks.pop()
    blocks.append((total, count))
  places = (total / count for total, count in blocks for _ in range(count))
  for i, room, v in zip(row, offsets, places):
    x[i] = v + room
