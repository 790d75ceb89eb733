"""Sums carried in a wider type than they are kept in: the wide parts are reduced, the narrow result is gathered."""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinygrad.device import Placement, Sharding, same_devices
from tinygrad.device.sub_axes import size_of
from tinygrad.sharding.costs import PUSHED
from tinygrad.sharding.factors import source_placement
from tinygrad.sharding.moves import ints, wire
from tinygrad.uop import Move, Ops, UOp, substitute

LARGE = 1 << 16  # bytes to be saved for which one more meeting of the devices is worth it


@dataclass(frozen=True, slots=True)
class SunkCast:
  """CAST(reduce(x)) run as CAST(reduce_scatter(x)): the cast is to fewer bytes an element, or its reader wants a cut.

  `placement`: at which the cast runs. `links`: what rearranges it on its way to `last`, the cast first; `last` is a
  move to a cut, or None where the cast itself is gathered. `saved`: bytes that a device does not receive."""

  placement: Placement
  links: tuple[UOp, ...]
  last: UOp | None
  saved: float


def sink_casts(order: Sequence[UOp]) -> dict[UOp, SunkCast]:
  """CAST(all_reduce(x)) -> all_gather(CAST(reduce_scatter(x))), the cast to fewer bytes an element, where it alone
  reads a large x: every element is cast as before, so the bits are the same. Where all that reads the cast is a move to
  a cut, x is scattered onto that, and nothing is gathered. The casts for which this is cheaper, and how they run."""
  found: dict[UOp, SunkCast] = {}
  casts = [u for u in order if u.op is Ops.CAST and u.src[0].op is Ops.MOVE]
  uses = Counter(s for u in order for s in u.src) if casts else {}
  readers = {s: u for u in order for s in u.src} if casts else {}
  for u in casts:
    if uses[u.src[0]] > 1:
      continue
    links, last = [u], u
    while uses[last] == 1 and (last := readers[last]).op in PUSHED:
      links.append(last)
    wanted = last.device if last.op is Ops.MOVE else None
    for link in reversed(links):
      wanted = source_placement(link, wanted) if wanted is not None else None
    if wanted is not None and (saved := saved_at(u.src[0], wanted)) > 0:
      found[u] = SunkCast(wanted, tuple(links), last, saved)
    elif (way := scattered_cast(u)) is not None:
      found[u] = way
  return found


def build_sunk(sink: UOp, casts: Mapping[UOp, SunkCast]) -> UOp:
  """The graph with these casts run so. They stand in order, and one may be below another."""
  mapping, memo = dict[UOp, UOp](), dict[UOp, UOp]()
  for u, way in casts.items():
    move, last = u.src[0], way.last
    below = (substitute(move.src[0], mapping, memo),)
    if last is None:
      part = move.replace(src=below, arg=Move(way.placement, move.arg.pinned))
      mapping[u] = move.replace(dtype=u.dtype, src=(u.replace(src=(part,)),))
      continue
    v = last.replace(dtype=move.dtype, src=below, arg=Move(way.placement, False))
    for link in way.links:
      v = link.replace(src=(v,))
    mapping[last] = v if v.device == last.device else UOp.new(Ops.MOVE, v.dtype, (v,), last.arg)
  return substitute(sink, mapping, memo) if mapping else sink


def saved_at(move: UOp, there: Placement) -> float:
  """Bytes that are saved where what `move` reduces is reduced to `there`, a cut; 0 where it cannot be."""
  unreduced, here = move.src[0].device, move.device
  if not isinstance(unreduced, Sharding) or not unreduced.partial or move.arg.pinned or here is None:
    return 0.0
  if not isinstance(there, Sharding) or there.partial or not same_devices(unreduced, there):
    return 0.0
  price = functools.partial(wire, move.shape, move.dtype.itemsize, unreduced)
  return price(here) - price(there)


def scattered_cast(u: UOp) -> SunkCast | None:
  """How `u`, the CAST of an all-reduce, is best computed: at a further even cut of its longest dim by
  the sub-axes over which it is partial; None to leave it."""
  move = u.src[0]
  a, b, shape = move.src[0].device, move.device, ints(u.shape)
  if not isinstance(a, Sharding) or not isinstance(b, Sharding) or len(a.partial) != 1 or a.reduced is not b:
    return None
  sub_axes = a.partial[0].sub_axes
  even = [i for i, n in enumerate(shape) if n % (b.parts(i) * size_of(sub_axes)) == 0 and isinstance(u.shape[i], int)]
  if u.dtype.itemsize >= move.dtype.itemsize or not even:
    return None
  longest = max(even, key=lambda i: shape[i])
  cut = b.with_dims([(*b.cut(i), *sub_axes) if i == longest else b.cut(i) for i in range(len(shape))])
  assert isinstance(cut, Sharding)
  wide, narrow = move.dtype.itemsize, u.dtype.itemsize
  saved = wire(shape, wide, a, b) - wire(shape, wide, a, cut) - wire(shape, narrow, cut, b)
  return SunkCast(cut, (u,), None, saved) if saved >= LARGE else None
