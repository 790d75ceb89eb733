"""Sums carried in a wider type than they are kept in: the wide parts are reduced, the narrow result is gathered."""

import functools
from collections import Counter
from collections.abc import Sequence

from tinygrad.device import Placement, Sharding, same_devices
from tinygrad.sharding.costs import PUSHED
from tinygrad.sharding.factors import below
from tinygrad.sharding.moves import ints, size_of, wire
from tinygrad.uop import Move, Ops, UOp, substitute

CASTS = frozenset((Ops.CAST,))  # hot: a member of an enum takes longer to look up than to find here
LARGE = 1 << 16  # bytes to be saved for which one more meeting of the devices is worth it


def sink_casts(order: Sequence[UOp]) -> UOp:
  """CAST(all_reduce(x)) -> all_gather(CAST(reduce_scatter(x))), the cast to fewer bytes an element, where it alone
  reads a large x: every element is cast as before, so the bits are the same. Where all that reads the cast is a move to
  a cut, x is scattered onto that, and nothing is gathered. The sink comes last in `order`."""
  mapping: dict[UOp, UOp] = {}
  casts = [u for u in order if u.op in CASTS and u.src[0].op is Ops.MOVE]
  uses = Counter(s for u in order for s in u.src) if casts else {}
  readers = {s: u for u in order for s in u.src} if casts else {}
  for u in casts:
    move = u.src[0]
    if uses[move] > 1:
      continue
    links, last = [u], u
    while uses[last] == 1 and (last := readers[last]).op in PUSHED:
      links.append(last)
    wanted = last.device if last.op is Ops.MOVE else None
    for link in reversed(links):
      wanted = below(link, wanted) if wanted is not None else None
    if wanted is not None and costs_less(move, wanted):
      v = last.replace(dtype=move.dtype, src=move.src, arg=Move(wanted, False))
      for link in links:
        v = link.replace(src=(v,))
      mapping[last] = v if v.device == last.device else UOp.new(Ops.MOVE, v.dtype, (v,), last.arg)
    elif (way := scattered(u)) is not None:
      part = move.replace(arg=Move(way, move.arg.pinned))
      mapping[u] = move.replace(dtype=u.dtype, src=(u.replace(src=(part,)),))
  return substitute(order[-1], mapping) if mapping else order[-1]


def costs_less(move: UOp, there: Placement) -> bool:
  """Whether `move` reduces what can be reduced in fewer bytes to `there`, a cut."""
  unreduced, here = move.src[0].device, move.device
  if not isinstance(unreduced, Sharding) or not unreduced.partial or move.arg.pinned or here is None:
    return False
  if not isinstance(there, Sharding) or there.partial or not same_devices(unreduced, there):
    return False
  price = functools.partial(wire, move.shape, move.dtype.itemsize, unreduced)
  return price(there) < price(here)


def scattered(u: UOp) -> Sharding | None:
  """The placement at which `u`, the CAST of an all-reduce, is best computed: a further even cut of its longest dim by
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
  return cut if saved >= LARGE else None
