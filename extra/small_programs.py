"""Bodies of random programs (extra/fuzz_programs.py, `--small`) of a few elements: lengths that no vector or block
divides, seen through views, reduced along any dims, over two devices; whole numbers and truths; orders with equal
elements, infinities and what is not a number; products, convolutions, windows, attention, lookups, writes to a part of
what is read, and steps of optimizers of such. They show what grids do with short rows, of which large programs have
none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tinygrad import Tensor, Variable, dtypes, nn

if TYPE_CHECKING:
  from extra.fuzz_programs import Body, Program, Values
  from tinygrad.dtype import DType

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
QUARTERS = tuple(i / 4 for i in range(-9, 10))
SPECIAL = (-2.5, -0.0, 0.0, 0.25, 3.0, float("inf"), float("-inf"), float("nan"))
WHOLE = (dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16, dtypes.int32, dtypes.uint32, dtypes.int64, dtypes.bool)


def of(p: Program, *types: DType) -> None:
  """The program is of one of these types, in place of the one that has been drawn."""
  p.dtype, p.words = p.pick(*types), p.words[1:]
  p.words.append(p.dtype.name)


def whole(p: Program) -> None:
  of(p, *WHOLE)
  p.final = True
  few = p.pick(1, 10, 100)  # of the other truth to one
  p.among = (True, *[False] * few) if p.dtype is dtypes.bool else range(0 if dtypes.is_unsigned(p.dtype) else -9, 10)


def reduced(p: Program) -> Body:
  x, seen, drawn = p.input(*shape(p)), views(p), [p.rng.random() for _ in range(4)]
  before, how, after = p.said(*BEFORE), p.said(*REDUCED), p.said(*AFTERWARDS)
  p.loose = 4 if how == "prod" else 1  # each factor is rounded

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


COUNTED: dict[str, Callable[[Tensor, tuple[int, ...]], Tensor]] = {
  "sum of whole": lambda x, dims: x.sum(dims, keepdim=True),
  "max of whole": lambda x, dims: x.max(dims, keepdim=True),
  "min of whole": lambda x, dims: x.min(dims, keepdim=True),
  "prod of whole": lambda x, dims: x.prod(dims, keepdim=True),
  "any": lambda x, dims: (x > 3).any(dims, keepdim=True),
  "all": lambda x, dims: (x < 9).all(dims, keepdim=True),
}


def counted(p: Program) -> Body:
  whole(p)
  x, seen, drawn, how = p.input(*shape(p)), views(p), [p.rng.random() for _ in range(4)], p.said(*COUNTED)
  after = p.said("alone", "beside", "twice")

  def body(v: Values) -> list[Tensor]:
    y = seen(v[x])
    dims = tuple(i for i in range(y.ndim) if drawn[i % 4] < 0.5) or (y.ndim - 1,)
    r = COUNTED[how](y, dims)
    return [r, r < y, y.cast(r.dtype).sum(dims)] if after == "beside" else [r.sum(-1) if after == "twice" else r]

  return body


IN_ORDER: dict[str, Callable[[Tensor, int], list[Tensor]]] = {
  "argmax": lambda x, dim: [x.argmax(dim)],
  "argmin": lambda x, dim: [x.argmin(dim), x.min(dim)],
  "sort": lambda x, dim: [*x.sort(dim)],
  "sort down": lambda x, dim: [*x.sort(dim, descending=True)],
  "argsort": lambda x, dim: [x.argsort(dim)],
  "topk": lambda x, dim: [*x.topk(min(3, int(x.shape[dim])), dim)],
  "cummax": lambda x, dim: [*x.cummax(dim)],
  "extremes": lambda x, dim: [x.max(dim), x.min(), x.argmax()],
  "compared": lambda x, dim: [x == x.max(dim, keepdim=True), (x >= 0).sum(dim), x.isnan().any(dim)],
}


def in_order(p: Program) -> Body:
  """Of elements many of which are equal."""
  if p.rng.random() < 0.4:
    whole(p)
  else:
    p.final, p.among = True, SPECIAL if p.rng.random() < 0.4 else QUARTERS
  x, seen, at, how = p.input(*shape(p)), views(p), p.rng.random(), p.said(*IN_ORDER)
  p.words.append(f"dim {at:.2f}")

  def body(v: Values) -> list[Tensor]:
    y = seen(v[x])
    return IN_ORDER[how](y, int(at * y.ndim))

  return body


def over_two(p: Program) -> Body:
  """What `reduced` computes, of an operand on two devices, where the interpreter has it on one."""
  body, first, at = reduced(p), len(p.shapes) - 1, p.rng.random()
  p.words.append("over two")

  def placed(v: Values) -> Tensor:
    x = v[first]
    if x.device != "PYTHON":
      x = x.shard(tuple(f"{x.device}:{i}" for i in range(2)), axis=int(at * x.ndim))
    return body([*v[:first], x])

  return placed


def convolved(p: Program) -> Body:
  dims, channels, out = p.pick(1, 2, 2), p.pick(1, 2, 3, 4, 6, 8), p.pick(1, 2, 3, 4, 6, 8, 17)
  sides = [p.pick(*range(3, 15), 28) for _ in range(dims)]
  kernel = [min(p.pick(1, 2, 3, 5), side) for side in sides]
  groups = p.pick(1, 1, channels) if out % channels == 0 else 1
  dilation = p.pick(1, 1, 2) if all(2 * k - 1 <= n for k, n in zip(kernel, sides, strict=True)) else 1
  stride, padding, after = p.pick(1, 1, 2, 3), p.pick(0, 0, 1, 2), p.said("conv", "conv, tanh", "conv, softmax")
  x = p.input(p.pick(1, 2, 3), channels, *sides)
  w = p.input(out, channels // groups, *kernel, scale=(channels * float(np.prod(kernel))) ** -0.5)
  p.words.append(f"stride {stride} padding {padding} dilation {dilation} groups {groups}")
  p.loose = 4

  def body(v: Values) -> Tensor:
    y = v[x].conv2d(v[w], groups=groups, stride=stride, padding=padding, dilation=dilation)
    return y.tanh() if after == "conv, tanh" else y.softmax(1) if after == "conv, softmax" else y

  return body


WINDOWS: dict[str, Callable[[Tensor, int, int], Tensor]] = {
  "greatest of windows": lambda x, k, stride: x.detach().max_pool2d(k, stride, padding=k // 2),
  "mean of windows": lambda x, k, stride: x.avg_pool2d(k, stride),
  "linear": lambda x, k, stride: x.interpolate((x.shape[2] + k, x.shape[3] * stride), mode="linear"),
  "nearest": lambda x, k, stride: x.interpolate((x.shape[2] * stride, x.shape[3] + k), mode="nearest"),
}


def in_windows(p: Program) -> Body:
  x = p.input(p.pick(1, 2, 5), p.pick(1, 3, 8), p.pick(*range(4, 20)), p.pick(*range(4, 20)))
  how, k, stride = p.said(*WINDOWS), p.said(2, 3, 4), p.said(1, 2, 3)
  return lambda v: WINDOWS[how](v[x], k, stride)


def attended(p: Program) -> Body:
  heads, shared, width = p.pick(1, 2, 3), p.rng.random() < 0.3, p.pick(1, 3, 4, 8, 16, 17, 33)
  queries, mode = p.pick(*LENGTHS[:70]), p.said("up to itself", "to all", "to some", "with a bias")
  keys = queries if mode == "up to itself" else p.pick(*LENGTHS[:70], 129)
  q, k, value = (p.input(heads, queries, width), *(p.input(1 if shared else heads, keys, width) for _ in range(2)))
  beside = p.input(queries, keys)
  p.loose = 4

  def body(v: Values) -> Tensor:
    some = (v[beside].detach() > -1) | (Tensor.arange(keys, device=v[q].device) == 0)
    mask = some if mode == "to some" else v[beside] if mode == "with a bias" else None
    k_of_all, v_of_all = (v[i].expand(heads, keys, width) for i in (k, value))
    return v[q].scaled_dot_product_attention(k_of_all, v_of_all, attn_mask=mask, is_causal=mode == "up to itself")

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


LOOKUPS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor | list[Tensor]]] = {
  "taken": lambda table, at, wide, more: table[at] * 2,
  "taken and added": lambda table, at, wide, more: table[at].sum(0),
  "gathered": lambda table, at, wide, more: (table * table).gather(0, wide),
  "added": lambda table, at, wide, more: table.scatter_reduce(0, wide, more, "sum"),
  "mean": lambda table, at, wide, more: table.scatter_reduce(0, wide, more, "mean"),
  "greatest": lambda table, at, wide, more: table.detach().scatter_reduce(0, wide, more.detach(), "amax"),
  "least of new": lambda table, at, wide, more: table.detach().scatter_reduce(0, wide, more.detach(), "amin", False),
  "last": lambda table, at, wide, more: table.scatter(0, wide, more),
  "counts": lambda table, at, wide, more: [at.one_hot(table.shape[0]).sum(0), at.argsort(), table[at] > 0],
}


def scattered(p: Program) -> Body:
  places, updates, width = p.pick(*LENGTHS[:70], 257), p.pick(*LENGTHS[:70], 200), p.pick((), (1,), (3,), (7,), (33,))
  table, more, how = p.input(places, *width), p.input(updates, *width), p.said(*LOOKUPS)
  index, p.final = [p.rng.randrange(places) for _ in range(updates)], how == "counts"

  def body(v: Values) -> Tensor | list[Tensor]:
    at = Tensor(index, device=v[table].device)
    return LOOKUPS[how](v[table], at, at.reshape(updates, *(1 for _ in width)).expand(updates, *width), v[more])

  return body


def doubled_on(a: Tensor, b: Tensor) -> None:
  a[1:] = a[:-1] * 2


def middle_row(a: Tensor, b: Tensor) -> None:
  a[a.shape[0] // 2] = a.sum(0) + b[0]


def half_summed(a: Tensor, b: Tensor) -> None:
  a[:, : a.shape[1] // 2 + 1] = (a * b)[:, : a.shape[1] // 2 + 1].cumsum(0)


def swapped(a: Tensor, b: Tensor) -> None:
  a[::2] = a[::2].flip(0)
  a[:, 1::2] = a[:, 1::2].flip(1) + b[:, 1::2]


WRITES: dict[str, Callable[[Tensor, Tensor], object]] = {
  "flipped onto itself": lambda a, b: a.assign(a.flip(0) + b),
  "doubled on": doubled_on,
  "centered": lambda a, b: a.assign(a - a.mean(0, keepdim=True)).assign(a * a.sum(1, keepdim=True)),
  "squared": lambda a, b: a.assign(a @ a.transpose(0, 1) @ b / a.numel()),
  "middle row": middle_row,
  "half summed": half_summed,
  "softmax of itself": lambda a, b: a.assign(a.softmax(0)),
  "rolled": lambda a, b: a.assign(a.roll(1, 0) + a.roll(1, 1)),
  "swapped": swapped,
}


def written(p: Program) -> Body:
  """What is written where it is read, beside what has been read before."""
  n, m, how, p.final = p.pick(*LENGTHS[1:70]), p.pick(*LENGTHS[1:70]), p.said(*WRITES), True
  x, y = p.input(n, m), p.input(n, m)

  def body(v: Values) -> list[Tensor]:
    a = v[x].clone().realize()
    before = a.square().mean(0), a[0] + 1
    WRITES[how](a, v[y])
    return [a, *before, a.square().mean(1)]

  return body


def rows_of(x: Tensor, part: float) -> Tensor:
  """As many as it has, in another order, some twice."""
  n = int(x.shape[0])
  return x[Tensor([int(i * (1 + part * 5)) % n for i in range(n)], device=x.device)]


def shifted(x: Tensor, dim: int) -> Tensor:
  """On by one, a zero before."""
  return x.pad(tuple((1, 0) if i == dim else (0, 0) for i in range(2)))[: x.shape[0], : x.shape[1]]


# of (n, m), or of a row, a column or an element of such, which they stretch or leave
STEPS: dict[str, Callable[[Tensor, Tensor, int, float], Tensor]] = {
  "add": lambda x, y, dim, part: x + y * part,
  "multiply": lambda x, y, dim, part: x * y.tanh(),
  "subtract": lambda x, y, dim, part: (x - y).tanh(),
  "maximum": lambda x, y, dim, part: x.maximum(y),
  "relu": lambda x, y, dim, part: (x - part).relu(),
  "exponent": lambda x, y, dim, part: (x.tanh() * part).exp(),
  "sum to one": lambda x, y, dim, part: x.sum(dim, keepdim=True) / x.shape[dim],
  "greatest of all": lambda x, y, dim, part: x.max(dim, keepdim=True),
  "less the greatest": lambda x, y, dim, part: x - x.max(dim, keepdim=True),
  "logsumexp of a dim": lambda x, y, dim, part: x.logsumexp(dim, keepdim=True),
  "softmax of a dim": lambda x, y, dim, part: x.softmax(dim),
  "root of squares": lambda x, y, dim, part: x / (x.square().mean(dim, keepdim=True) + 0.1).sqrt(),
  "running": lambda x, y, dim, part: x.cumsum(dim) / x.shape[dim],
  "turned": lambda x, y, dim, part: x.flip(dim),
  "moved on": lambda x, y, dim, part: x.roll(int(part * 3) + 1, dim),
  "shifted": lambda x, y, dim, part: shifted(x, dim),
  "product by itself": lambda x, y, dim, part: (x @ x.transpose(0, 1) @ x / x.numel()).tanh() + y,
  "by rows": lambda x, y, dim, part: rows_of(x, part),
  "in memory": lambda x, y, dim, part: x.contiguous(),
  "realized": lambda x, y, dim, part: x.realize(),
}


def mixed(p: Program) -> Body:
  """Steps on any of what is there, of which several results are asked for together."""
  of(p, dtypes.float32, dtypes.float32, dtypes.float64, dtypes.float16)
  n, m, p.loose, p.final = p.pick(*LENGTHS[:70], 129, 257), p.pick(*LENGTHS[:70], 129, 257), 4, True
  inputs = [p.input(n, m), p.input(n, m), p.input(1, m), p.input(n, 1)]
  steps = [
    (p.said(*STEPS), p.rng.randrange(4 + i), p.rng.randrange(4 + i), p.rng.randrange(2), p.rng.random())
    for i in range(p.pick(3, 5, 7, 9))
  ]
  wanted = [p.rng.randrange(len(steps)) for _ in range(p.pick(0, 1, 2))]

  def body(v: Values) -> list[Tensor]:
    found = [v[i] for i in inputs]
    for name, x, y, dim, part in steps:
      found.append(STEPS[name](found[x], found[y], dim, part))
    return [found[-1], *(found[4 + i] for i in wanted)]

  return body


def of_a_length(p: Program) -> Body:
  """Of so many rows as a variable says."""
  most, width = p.pick(*LENGTHS[4:70], 129), p.pick(1, 3, 8, 16, 33)
  x, n = p.input(most, width), p.rng.randint(1, most)
  how = p.said(*OF_A_LENGTH)
  p.words.append(f"{n} rows")
  return lambda v: OF_A_LENGTH[how](v[x][: Variable("n", 1, most).bind(n)])


OF_A_LENGTH: dict[str, View] = {
  "sum of some rows": lambda x: x.sum(0),
  "softmax of rows": lambda x: (x.softmax(-1) * x).sum(0),
  "softmax of columns": lambda x: (x.softmax(0) * x).sum(0),
  "product of some rows": lambda x: x.T @ x / x.shape[0],
  "attended rows": lambda x: (x @ x.T).softmax(-1).sum(0).square().sum(),
  "var of some rows": lambda x: (x - x.mean(0, keepdim=True)).square().sum(0),
  "logsumexp of some rows": lambda x: x.logsumexp(0),
  "greatest of some rows": lambda x: x.detach().max(0) + x.logsumexp(1).sum(0),
}


OPTIMIZERS: dict[str, Callable[[list[Tensor]], nn.optim.Optimizer]] = {
  "SGD": lambda ws: nn.optim.SGD(ws, lr=0.05, momentum=0.9),
  "Adam": lambda ws: nn.optim.Adam(ws, lr=0.01, eps=1e-3),
  "AdamW": lambda ws: nn.optim.AdamW(ws, lr=0.01, eps=1e-3),
  "LAMB": lambda ws: nn.optim.LAMB(ws, lr=0.01, eps=1e-3),
  "Muon": lambda ws: nn.optim.Muon(ws, lr=0.01),
}


def trained(p: Program) -> Body:
  """Two steps: the second reads what the first has written."""
  p.final, p.dtype = True, p.pick(dtypes.float32, dtypes.float64)
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


SMALL = (
  *(reduced, reduced, reduced, along, along, along, counted, in_order, in_order, over_two, multiplied, multiplied),
  *(
    convolved,
    convolved,
    in_windows,
    attended,
    attended,
    scattered,
    scattered,
    written,
    mixed,
    mixed,
    mixed,
    of_a_length,
    trained,
  ),
)
