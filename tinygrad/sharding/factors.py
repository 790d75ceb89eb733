"""Factor rules at work: cuts of an op's dims become cuts of its factors (collect), conflicts become ways to cut them,
and cuts of factors become cuts of dims (project). One sub-axis cuts at most one factor."""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from tinygrad.device import Placement, Sharding, SubAxis
from tinygrad.device.sub_axes import SubAxes, atoms, boundaries, overlap, size_of
from tinygrad.helpers import PROCESS, prod
from tinygrad.sharding.partial import partials_of
from tinygrad.uop import Factors, UOp, factor_rule

Assignment = dict[int, SubAxes]  # factor -> the sub-axes that cut it, major to minor


def collect(lists: Sequence[Sequence[int]], f: Factors, dims: Sequence[SubAxes]) -> Assignment:
  """Cuts of dims -> cuts of factors. A dim of several factors is cut major to minor, so its sub-axes split by gcd along
  them."""
  out: Assignment = {}
  for inner, sub_axes in zip(lists, dims):
    if not sub_axes:
      continue
    if len(inner) == 1:
      if inner[0] not in f.blocked:
        out[inner[0]] = sub_axes
      continue
    rest = list(sub_axes)
    for factor in inner:
      left = f.sizes[factor]
      if factor in f.blocked or not isinstance(left, int):
        break
      while rest:
        d = rest[0]
        if (g := math.gcd(left, d.size)) == 1:
          break
        out[factor] = (*out.get(factor, ()), SubAxis(g, d.stride * (d.size // g)))
        left //= g
        rest[:1] = [SubAxis(d.size // g, d.stride)] if g < d.size else []
      if left != 1:
        break
  return out


def legal(cuts: Assignment, f: Factors) -> Assignment:
  """Without the cuts that a dim of several factors cannot express: they must be even, and all factors before a cut one
  fully cut; and without those of an `even` factor that are not."""
  out = dict(cuts)
  compound = [inner for lists in (*f.src, f.out) for inner in lists if len(inner) > 1]
  compound += [(factor,) for factor in f.even]
  changed = bool(compound)
  while changed:
    changed = False
    for inner in compound:
      is_open = True
      for factor in inner:
        sub_axes, n = out.get(factor, ()), f.sizes[factor]
        kept = sub_axes if is_open and isinstance(n, int) else ()
        while kept and n % size_of(kept):
          kept = kept[:-1]
        if kept != sub_axes:
          changed = True
          out[factor] = kept
        is_open = is_open and size_of(kept) == n
  return {factor: sub_axes for factor, sub_axes in out.items() if sub_axes}


def project(lists: Sequence[Sequence[int]], cuts: Assignment) -> tuple[SubAxes, ...]:
  """Cuts of factors -> cuts of dims."""
  return tuple(tuple(d for factor in inner for d in cuts.get(factor, ())) for inner in lists)


def merge(
  f: Factors, placements: Sequence[Sharding | None], order: Iterable[int], chain: tuple[int, ...]
) -> tuple[Assignment, set[SubAxis], set[SubAxis]]:
  """The cuts that the sources ask for, earlier ones in `order` first; with those in conflict, and all that are asked
  for."""
  cuts: Assignment = {}
  used, clash, asked = set[SubAxis](), set[SubAxis](), set[SubAxis]()
  for i in order:
    s = placements[i]
    if s is None:
      continue
    refined = [atoms(s.cut(j), chain) for j in range(len(f.src[i]))]
    clash.update(*(s.cut(j) for j, sub_axes in enumerate(refined) if sub_axes is None))
    dims = [sub_axes or () for sub_axes in refined]
    asked.update(*dims)
    for factor, sub_axes in collect(f.src[i], f, dims).items():
      have = cuts.get(factor, ())
      if sub_axes[: len(have)] != have:
        clash |= set(sub_axes) - set(have) if have[: len(sub_axes)] != sub_axes else set()
        continue
      for d in sub_axes[len(have) :]:
        if any(overlap(d, other) for other in used):
          clash.add(d)
          break
        cuts[factor] = (*cuts.get(factor, ()), d)
        used.add(d)
  return cuts, clash, asked


def distinct(ways: Iterable[Assignment], f: Factors) -> list[Assignment]:
  """What is legal of each, once."""
  out: dict[Any, Assignment] = {}
  for cuts in ways:
    ok = legal(cuts, f)
    out.setdefault(tuple(sorted(ok.items())), ok)
  return list(out.values())


def beside(partial: Sequence[SubAxis], ways: Iterable[Assignment], f: Factors) -> list[Assignment]:
  """The ways that leave alone every sub-axis over which something is partial."""
  return distinct((without(partial, cuts) for cuts in ways), f)


def without(sub_axes: Sequence[SubAxis], cuts: Assignment) -> Assignment:
  return {factor: tuple(x for x in ds if not any(overlap(x, d) for d in sub_axes)) for factor, ds in cuts.items()}


def resolved(f: Factors, placements: Sequence[Sharding | None], n: int, strategy: str) -> list[Assignment]:
  """The ways among which bytes decide; where one is contested, the one way of another strategy (Shardy's two)."""
  ways = assignments(f, placements, n)
  if strategy == "cost" or len(ways) == 1:
    return ways
  if strategy == "aggressive":  # that with the most blocks; of equal ones the first, which is the first operand's
    return [max(ways, key=lambda cuts: size_of(d for sub_axes in cuts.values() for d in sub_axes))]
  return [common_prefixes(f, placements, n)]


def assignments(f: Factors, placements: Sequence[Sharding | None], n: int) -> list[Assignment]:
  """The ways to cut the factors: one if nothing is contested; else each contested sub-axis on any factor that can carry
  it, or on none."""
  cut = [i for i, s in enumerate(placements) if s is not None and s.dims]
  ways: list[Assignment] = []
  each_first = ((i, *(j for j in cut if j != i)) for i in cut)
  orders: Iterable[tuple[int, ...]] = itertools.permutations(cut) if len(cut) <= 3 else each_first
  for order in orders:
    chain = boundaries(n, [(d for dim in s.dims for d in dim) for i in order if (s := placements[i]) is not None])
    cuts, clash, asked = merge(f, placements, order, chain)
    kept = {d for sub_axes in legal(cuts, f).values() for d in sub_axes}
    volume = prod(d.size for d in asked)
    if not clash and kept and prod(d.size for d in kept) == volume and sum(len(x) for x in cuts.values()) == len(kept):
      return distinct([*ways, cuts], f)
    if not asked:
      return [{}]
    ways.append(cuts)
    lost = {d for d in asked if not any(overlap(d, k) for k in kept)} | {d for d in asked if d not in kept}
    contested = clash | lost | ({d for sub_axes in cuts.values() for d in sub_axes} if clash else set())
    for d in sorted(contested, key=lambda d: (-d.stride, d.size)):
      base = without([d], cuts)
      ways.append(base)
      for factor, size in enumerate(f.sizes):
        if factor not in f.blocked and isinstance(size, int) and size >= d.size:
          ways.append({**base, factor: (*base.get(factor, ()), d)})
  return distinct(ways, f)


def common_prefixes(f: Factors, placements: Sequence[Sharding | None], n: int) -> Assignment:
  """Each factor cut by the longest prefix on which all sources that cut it agree (as far as theirs go), without the
  sub-axes that a source asks for on another factor."""
  sources = [(lists, s) for lists, s in zip(f.src, placements) if s is not None]
  chain = boundaries(n, [s.used for _, s in sources])
  asked = [collect(lists, f, [atoms(s.cut(i), chain) or () for i in range(len(lists))]) for lists, s in sources]
  out: Assignment = {}
  for factor in range(len(f.sizes)):
    here = [cuts[factor] for cuts in asked if factor in cuts]
    elsewhere = [d for cuts in asked for other, sub_axes in cuts.items() if other != factor for d in sub_axes]
    out[factor] = max(here, key=len, default=())
    for i, d in enumerate(out[factor]):
      if any(len(x) > i and x[i] != d for x in here) or any(overlap(d, e) for e in elsewhere):
        out[factor] = out[factor][:i]
        break
  return legal(out, f)


def carried(u: UOp, placement: Placement, up: bool) -> Placement | None:
  """The placement of u, a rearrangement of its one source, on that source at `placement`, or if not `up` the reverse:
  of the source from which u has every part that is wanted. None where not all of the cuts carry over."""
  return placement if isinstance(placement, str) else _carried(factor_rule(u), placement, up)


@PROCESS.cached
def _carried(f: Factors, placement: Sharding, up: bool) -> Placement | None:
  here, there = (f.src[0], f.out) if up else (f.out, f.src[0])
  cuts = legal(collect(here, f, [placement.cut(i) for i in range(len(here))]), f)
  return placement.with_dims(project(there, cuts)) if placement.with_dims(project(here, cuts)) is placement else None


def source_placement(u: UOp, target: Placement) -> Placement | None:
  """Where u's source has to be for u to be at `target`; None if there is no such place."""
  if isinstance(target, Sharding) and target.partial and target.partial != partials_of(u):
    return None
  return carried(u, target, False)
