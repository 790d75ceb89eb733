"""Bodies of random programs (extra/fuzz_programs.py, `--small`) of a few elements: lengths that no vector or block
divides, seen through views, reduced along any dims; products, lookups and steps of optimizers of such. They show what
grids do with short rows, of which large programs have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tinygrad import Tensor, Variable, dtypes, nn

if TYPE_CHECKING:
  from extra.fuzz_programs import Body, Program, Values

LENGTHS = (*range(1, 71), 100, 128, 129, 200, 257, 1000, 1025)
MOST = 20_000  # elements
View = Callable[[Tensor], Tensor]


def shape(p: Program) -> tuple[int, ...]:
  found = (MOST,) * 2
  while np.prod(found) > MOST:
    found = tuple(p.pick(*(LENGTHS if p.rng.random() < 0.6 else range(1, 6))) for _ in range(p.pick(1, 2, 2, 3)))
  return found


def padded(x: Tensor, dim: int, part: float) -> Tensor:
  return x.pad(tuple((int(part * 4), int(part * 7) % 3) if i == dim else (0, 0) for i in range(x.ndim)))


def shrunk(x: Tensor, dim: int, part: float) -> Tensor:
  n = x.shape[dim]
  return x.shrink(tuple((int(part * n * 0.5), n - int(part * n * 0.3)) if i == dim else None for i in range(x.ndim)))


VIEWS: dict[str, Callable[[Tensor, int, float], Tensor]] = {
  "flipped": lambda x, d, part: x.flip(d),
  "shrunk": shrunk,
  "padded": padded,
  "permuted": lambda x, d, part: x.permute(*[(i + 1) % x.ndim for i in range(x.ndim)]),
  "expanded": lambda x, d, part: x.unsqueeze(d).expand(*x.shape[:d], 1 + int(part * 4), *x.shape[d:]),
  "in steps": lambda x, d, part: x[(slice(None),) * d + (slice(None, None, 1 + int(part * 3)),)],
  "flat": lambda x, d, part: x.reshape(-1),
}


def views(p: Program) -> View:
  steps = [(p.said(*VIEWS), p.rng.random(), p.rng.random()) for _ in range(p.pick(0, 0, 0, 1, 1, 2))]

  def through(x: Tensor) -> Tensor:
    for name, at, part in steps:
      x = VIEWS[name](x, int(at * x.ndim), part)
    return x

  return through


BEFORE: dict[str, View] = {
  "plain": lambda x: x,
  "negated": lambda x: -x,
  "less": lambda x: x - 1,
  "times -1": lambda x: x * -1.0,
  "exp": lambda x: x.exp(),
  "square": lambda x: x.square(),
  "sigmoid": lambda x: x.sigmoid(),
  "gelu": lambda x: x.gelu(),
  "inverse": lambda x: 1 / (x.abs() + 1),
}
REDUCED: dict[str, Callable[[Tensor, tuple[int, ...]], Tensor]] = {
  "sum": lambda x, dims: x.sum(dims, keepdim=True),
  "mean": lambda x, dims: x.mean(dims, keepdim=True),
  "max": lambda x, dims: x.detach().max(dims, keepdim=True),
  "min": lambda x, dims: x.detach().min(dims, keepdim=True),
  "logsumexp": lambda x, dims: x.logsumexp(dims, keepdim=True),
  "var": lambda x, dims: x.var(dims, keepdim=True, correction=0),
  "norm": lambda x, dims: (x.square().sum(dims, keepdim=True) + 1).sqrt(),
  "prod": lambda x, dims: (x * 0.1 + 1).clip(0.5, 1.5).prod(dims, keepdim=True),
}
AFTERWARDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
  "alone": lambda x, r: r,
  "taken off": lambda x, r: x - r,
  "divided": lambda x, r: x / (r.abs() + 1),
  "added twice": lambda x, r: (x + r).sum(-1),
}
ALONG: dict[str, Callable[[Tensor, int], Tensor]] = {
  "softmax": lambda x, dim: x.softmax(dim),
  "log_softmax": lambda x, dim: x.log_softmax(dim),
  "softmin": lambda x, dim: x.softmin(dim),
  "layernorm": lambda x, dim: (x - x.mean(dim, keepdim=True)) * (x.var(dim, keepdim=True, correction=0) + 1e-2).rsqrt(),
  "cumsum": lambda x, dim: x.float().cumsum(dim) if x.dtype.itemsize < 4 else x.cumsum(dim),
  "entropy": lambda x, dim: (x.softmax(dim) * x.log_softmax(dim)).sum(dim),
  "sorted": lambda x, dim: x.detach().sort(dim)[0],
}


def reduced(p: Program) -> Body:
  x, seen, drawn = p.input(*shape(p)), views(p), [p.rng.random() for _ in range(4)]
  before, how, after = p.said(*BEFORE), p.said(*REDUCED), p.said(*AFTERWARDS)

  def body(v: Values) -> Tensor:
    y = BEFORE[before](seen(v[x]))
    dims = tuple(i for i in range(y.ndim) if drawn[i % 4] < 0.5) or (y.ndim - 1,)
    return AFTERWARDS[after](y, REDUCED[how](y, dims))

  return body


def along(p: Program) -> Body:
  x, seen, at = p.input(*shape(p)), views(p), p.rng.random()
  before, how = p.said(*BEFORE), p.said(*ALONG)
  p.words.append(f"dim {at:.2f}")

  def body(v: Values) -> Tensor:
    y = BEFORE[before](seen(v[x]))
    return ALONG[how](y, int(at * y.ndim))

  return body


def multiplied(p: Program) -> Body:
  m, k, n, layout = p.pick(*LENGTHS[:70]), p.pick(*LENGTHS), p.pick(*LENGTHS[:70]), p.said("NN", "NT", "TN", "TT")
  x = p.input(*((k, m) if layout[0] == "T" else (m, k)))
  y = p.input(*((n, k) if layout[1] == "T" else (k, n)), scale=k**-0.5)
  before, after = p.said(*BEFORE), p.said("alone", "softmax", "sum", "vector")

  def body(v: Values) -> Tensor:
    a, b = BEFORE[before](v[x]), v[y]
    a, b = (a.transpose(0, 1) if layout[0] == "T" else a), (b.transpose(0, 1) if layout[1] == "T" else b)
    out = a @ (b[:, 0] if after == "vector" else b)
    return out.softmax(-1) if after == "softmax" else out.sum(-1) if after == "sum" else out

  return body


def scattered(p: Program) -> Body:
  places, updates, width = p.pick(*LENGTHS[:70], 257), p.pick(*LENGTHS[:70], 200), p.pick((), (1,), (3,), (7,), (33,))
  table, more, how = p.input(places, *width), p.input(updates, *width), p.said("taken", "added", "greatest")
  index = [p.rng.randrange(places) for _ in range(updates)]

  def body(v: Values) -> Tensor:
    at = Tensor(index, device=v[table].device)
    if how == "taken":
      return v[table][at] * 2
    wide = at.reshape(updates, *(1 for _ in width)).expand(updates, *width)
    if how == "added":
      return v[table].scatter_reduce(0, wide, v[more], "sum")
    return v[table].detach().scatter_reduce(0, wide, v[more].detach(), "amax")

  return body


def of_a_length(p: Program) -> Body:
  """Of so many rows as a variable says."""
  most, width = p.pick(*LENGTHS[4:70], 129), p.pick(1, 3, 8, 16, 33)
  x, n = p.input(most, width), p.rng.randint(1, most)
  how = p.said("sum", "softmax", "softmax of columns", "product")
  p.words.append(f"{n} rows")

  def body(v: Values) -> Tensor:
    rows = v[x][: Variable("n", 1, most).bind(n)]
    if how == "product":
      return rows.T @ rows / n
    return (rows if how == "sum" else rows.softmax(-1 if how == "softmax" else 0) * rows).sum(0)

  return body


OPTIMIZERS: dict[str, Callable[[list[Tensor]], nn.optim.Optimizer]] = {
  "SGD": lambda ws: nn.optim.SGD(ws, lr=0.05, momentum=0.9),
  "Adam": lambda ws: nn.optim.Adam(ws, lr=0.01, eps=1e-3),
  "AdamW": lambda ws: nn.optim.AdamW(ws, lr=0.01, eps=1e-3),
  "LAMB": lambda ws: nn.optim.LAMB(ws, lr=0.01, eps=1e-3),
}


def trained(p: Program) -> Body:
  """Two steps: the second reads what the first has written."""
  p.trains, p.dtype = True, p.pick(dtypes.float32, dtypes.float64)
  p.words.append(p.dtype.name)
  rows, inner, width, out = (p.pick(*LENGTHS[:40]) for _ in range(4))
  x, up, down = p.input(rows, inner), p.input(inner, width, scale=inner**-0.5), p.input(width, out, scale=width**-0.5)
  how = p.said(*OPTIMIZERS)

  def body(v: Values) -> Tensor:
    weights = [v[w].clone().realize() for w in (up, down)]
    for w in weights:
      w.requires_grad = True
    optimizer = OPTIMIZERS[how](weights)
    with Tensor.train():
      for _ in range(2):
        optimizer.zero_grad()
        ((v[x] @ weights[0]).gelu() @ weights[1]).square().mean().backward()
        optimizer.step()
    return Tensor.cat(*(w.flatten() for w in weights))

  return body


SMALL = (reduced, reduced, reduced, along, along, along, multiplied, multiplied, scattered, of_a_length, trained)
