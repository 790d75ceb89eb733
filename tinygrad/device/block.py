"""Blocks: the box of a value that a device's memory holds, what two of them share, how devices copy that, and of what
value given blocks are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from tinygrad.device.backend import PeerCopy
from tinygrad.device.buffer import Buffer
from tinygrad.device.errors import refuse
from tinygrad.device.registry import Device
from tinygrad.device.sharding import Placement, Sharding, check_fits, show_placement
from tinygrad.helpers import dedup, prod

Box = tuple[tuple[int, int], ...]  # for each dim a half-open range
MOST_COPIES = 256  # that devices make in the place of the host


def box_of(p: Placement, d: int, shape: Sequence[int]) -> Box:
  return tuple((0, n) for n in shape) if isinstance(p, str) else p.box(d, shape)


def meet(*boxes: Box) -> Box | None:
  """What is in all boxes; None if nothing is."""
  both = tuple((max(lo for lo, _ in dims), min(hi for _, hi in dims)) for dims in zip(*boxes))
  return both if all(lo < hi for lo, hi in both) else None


def around(boxes: Sequence[Box]) -> Box:
  """The smallest box that holds them all; those that are empty hold nothing."""
  full = [box for box in boxes if all(lo < hi for lo, hi in box)] or boxes[:1]
  return tuple((min(lo for lo, _ in dims), max(hi for _, hi in dims)) for dims in zip(*full))


def runs(a: Box, a_shape: Sequence[int], b: Box, b_shape: Sequence[int]) -> Iterator[tuple[int, int, int]]:
  """What two boxes share, as runs of neighbours in the blocks of memory that hold them: (where in a's block, where in
  b's, how many), in elements. A block has `shape` elements, of which the box's are the first of every dim."""
  if (both := meet(a, b)) is None:
    return
  sizes = [hi - lo for lo, hi in both]
  k = len(sizes)  # the dims from k - 1 on are one run
  while k > 1 and sizes[k - 1] == a_shape[k - 1] == b_shape[k - 1]:
    k -= 1
  first, count = max(k - 1, 0), prod(sizes[max(k - 1, 0) :])
  for steps in itertools.product(*map(range, sizes[:first])):
    at = [lo + n for (lo, _), n in zip(both, (*steps, *(0 for _ in both)))]
    yield offset(at, a, a_shape), offset(at, b, b_shape), count


def offset(at: Sequence[int], box: Box, shape: Sequence[int]) -> int:
  """Where an element of the value lies in the block of a box."""
  flat = 0
  for x, (lo, _), n in zip(at, box, shape):
    flat = flat * n + x - lo
  return flat


def peer_copies(ins: dict[Box, tuple[Buffer, int]], outs: Sequence[tuple[Box, Buffer, int]]) -> list[PeerCopy]:
  """The copies that fill the blocks `outs` (what box, on which device of which buffer) from the blocks `ins`, if these
  devices are of one kind that can make them, and they are few; else none."""
  names = {b.devices[i] for b, i in ins.values()} | {b.devices[i] for _, b, i in outs}
  found: list[PeerCopy] = []
  if len({Device[name].kind for name in names}) > 1 or not Device[names.pop()].capabilities.copies:
    return found
  for there, out, i in outs:
    for here, (source, k) in ins.items():
      size, own = out.dtype.itemsize, (Device[out.devices[i]], out.handle(i))
      theirs = Device[source.devices[k]], source.handle(k)
      pieces = itertools.islice(runs(there, out.local_shape, here, source.local_shape), MOST_COPIES + 1)
      found += [PeerCopy(*own, to * size, *theirs, at * size, n * size) for to, at, n in pieces]
      if len(found) > MOST_COPIES:
        return []
  return found


def shape_of_blocks(shapes: Sequence[tuple[int, ...]], placement: Placement) -> tuple[tuple[int, ...], Sequence[int]]:
  """(the shape that `shapes` are the blocks of, which of them each device holds). Raises ShardError."""
  if isinstance(placement, str):
    if len(shapes) != 1:
      refuse(f"from_shards: {placement} is one device, and {len(shapes)} parts are given", "parts[:1]  # give one")
    return shapes[0], [0]
  if placement.partial:
    refuse(f"from_shards: {show_placement(placement)}", "placement.reduced  # reduce the parts, and give this")
  if not shapes or any(len(s) != len(shapes[0]) for s in shapes):
    refuse(f"from_shards: the parts have shapes {list(shapes)}", "give parts of equal rank")
  n, rank = len(placement), len(shapes[0])
  check_fits(placement, (0,) * rank)
  where = [tuple(placement.block(i, d) for i in range(rank)) for d in range(n)]
  distinct = dedup(where)
  if len(shapes) not in (n, len(distinct)):
    count = f"{n} (one for each device)" + ("" if len(distinct) == n else f" or {len(distinct)} (one for each block)")
    rule = f"{show_placement(placement)} needs {count} parts, got {len(shapes)}"
    refuse(f"from_shards: {rule}", _joined(shapes, placement) or "give those")
  number = list(range(n)) if len(shapes) == n else [distinct.index(w) for w in where]
  # along each dim the blocks at block 0 of the others
  along = [{w[i]: shapes[k][i] for w, k in zip(where, number) if not any(w[:i] + w[i + 1 :])} for i in range(rank)]
  shape = tuple(sum(lengths.values()) for lengths in along)
  for d, k in enumerate(number):
    want = tuple(hi - lo for lo, hi in placement.box(d, shape))
    if shapes[k] != want:
      rule = f"on {show_placement(placement)} device {placement.devices[d]} holds {list(want)} of {list(shape)}"
      fix = "cut every dim into blocks of ceil(n / parts), the last ones shorter (Sharding.box)"
      refuse(f"from_shards: part {k} has shape {list(shapes[k])}, and {rule}", _joined(shapes, placement) or fix)
  return shape, number


def _joined(shapes: Sequence[tuple[int, ...]], placement: Sharding) -> str:
  """Code that makes a tensor of parts of any number and lengths along the one cut dim, and places that; "" if they fit
  along no such dim."""
  cut = [i for i, dim in enumerate(placement.dims) if dim]
  if len(cut) != 1 or len({s[: cut[0]] + s[cut[0] + 1 :] for s in shapes}) > 1:
    return ""
  return f"Tensor.cat(*map(Tensor, parts), dim={cut[0]}).shard(placement)"
