"""The ways to run an op on sources placed as they are: where each source would have to be, and where the result is.

Collect, resolve, update (`factors.py`), once with partial sources reduced first and, where the op's card allows it
(`partial.py`), once with them as they are. Which of the ways is taken is for `decisions.py`, by bytes (`costs.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.device import Partial, Placement, ShardError, Sharding, device_set, same_devices, show_placement
from tinygrad.device.sub_axes import size_of
from tinygrad.dtype import DType
from tinygrad.helpers import PROCESS, prod, user_line
from tinygrad.ops import Trait, having
from tinygrad.sharding.factors import Assignment, beside, project, resolved
from tinygrad.sharding.moves import wire
from tinygrad.sharding.partial import Kept, keep, partials_of
from tinygrad.uop import Ops, UOp, factor_rule, mesh_of

Nodes = tuple[UOp, ...]
STRATEGIES = ("cost", "basic", "aggressive")
PLACELESS, REDUCES, IDENTITY = having(Trait.PLACELESS), having(Trait.REDUCES), having(Trait.IDENTITY)
CACHED = 100_000  # entries of a table, which is then emptied


def is_partial(placement: Placement | None) -> bool:
  return isinstance(placement, Sharding) and bool(placement.partial)


@dataclass(frozen=True, slots=True)
class Outcome:
  """One way to run an op: the placement of each source and of the result, and how many blocks the work is cut into."""

  required: tuple[Placement | None, ...]
  result: Placement | None
  parts: int
  partial: float  # bytes charged for reducing the result
  mapped: float  # and for cuts along which the index map is no identity
  stays: bool  # no source has to move
  defers: bool = False  # sources stay partial, or are made so


ways_found: dict[tuple[Any, ...], list[Outcome]] = PROCESS.table()


def outcomes(op: Ops, dtype: DType, src: Nodes, arg: Any, strategy: str = "cost") -> list[Outcome]:
  """The ways to run an op on sources placed as they are (a source on a single device beside a sharded one is brought
  in), those that reduce partial sources first; cached, never empty. `strategy`: "cost" gives all ways to cut the op, by
  bytes to be chosen; "basic" and "aggressive" are Shardy's resolutions of contested sub-axes, which give one.
  Raises: ValueError for another strategy."""
  key: tuple[Any, ...] = (op, dtype, arg, strategy, *[(s.shape, s.device) for s in src])
  kept = None
  if any(partials_of(s) for s in src) and (kept := keep(op, dtype, src, arg)) is not None:
    key = (kept, *key)  # legality looks at more than placements
  found = ways_found.get(key)
  if found is None:
    if len(ways_found) > CACHED:
      ways_found.clear()
    found = ways_found[key] = _find_outcomes(op, dtype, src, arg, kept, strategy)
  return found


def _find_outcomes(op: Ops, dtype: DType, src: Nodes, arg: Any, kept: Kept | None, strategy: str) -> list[Outcome]:
  if strategy not in STRATEGIES:
    fix = f"use one of {', '.join(STRATEGIES)}, e.g. Context(STRATEGY={STRATEGIES[0]!r})"
    raise ValueError(f"STRATEGY={strategy!r}: there is no such strategy for contested axes\n  fix: {fix}")
  devices = tuple(s.device for s in src)
  if op is Ops.ASSIGN:
    return [Outcome((devices[0], devices[0]), devices[0], 1, 0.0, 0.0, devices[1] is None or devices[1] == devices[0])]
  if op is Ops.CUSTOM and arg[1].placed is not None:
    return [Outcome(devices, arg[1].placed, 1, 0.0, 0.0, True)]
  if op in PLACELESS or op is Ops.AFTER or op is Ops.WAIT or op is Ops.SINK:
    return [Outcome(devices, devices[0] if op in IDENTITY else None, 1, 0.0, 0.0, True)]
  base = next((d for d in devices if isinstance(d, Sharding)), None)
  if base is None:
    return [Outcome(devices, one_device(op, src), 1, 0.0, 0.0, True)]
  if not all(same_devices(base, d) for d in devices if isinstance(d, Sharding)):
    raise two_sets(op, src)
  u = UOp.new(op, dtype, src, arg)
  f, shape = factor_rule(u), u.max_shape
  placements = [d.reduced if isinstance(d, Sharding) else None for d in devices]
  found: list[Outcome] = []
  ways = resolved(f, placements, len(base), strategy)
  plans: list[tuple[Kept, list[Assignment]]] = [(Kept(((),) * len(src), ()), ways)]
  if kept is not None:
    partial = [d for partials in (*kept.sources, kept.result) for o in partials for d in o.sub_axes]
    plans.append((kept, beside(partial, ways, f)))
  for plan, cuttings in plans:
    for cuts in cuttings:
      contracted = tuple(d for factor in sorted(f.contracted) for d in cuts.get(factor, ()))
      by = arg[0] if op in REDUCES else Ops.ADD
      if contracted and any(o.op is not by for o in plan.result):
        continue
      required = tuple(
        None if d is None and not partials else Sharding.of(base.mesh, project(lists, cuts), partials)
        for d, lists, partials in zip(devices, f.src, plan.sources)
      )
      is_partial = (*plan.result, *([Partial(contracted, by, op is Ops.GATHER)] if contracted else []))
      result = Sharding.of(base.mesh, project(f.out, cuts), is_partial)
      cost = wire(shape, dtype.itemsize, result, result.reduced)
      mapped = prod(result.local_shape(shape)) * dtype.itemsize if any(result.cut(i) for i in f.remapped) else 0.0
      parts = size_of(d for sub_axes in cuts.values() for d in sub_axes)
      stays = all(d == r for d, r in zip(devices, required))
      found.append(Outcome(required, result, parts, cost, mapped, stays, plan is kept))
  return found


def result(u: UOp) -> Placement | None:
  """The device of a node whose sources are placed."""
  match u.op:
    case Ops.BUFFER | Ops.MOVE:
      return u.arg.device  # type: ignore[no-any-return]
    case Ops.SHARD | Ops.COLLECTIVE:  # a local value lives on each device of the set, without cuts: its shape is local
      device = u.src[0].device if u.op is Ops.SHARD else u.arg.result
      return Sharding.of(device.mesh, ()) if isinstance(device, Sharding) else device
  for o in outcomes(u.op, u.dtype, u.src, u.arg):
    if o.stays or all(s.device == r or (s.device is None and not is_partial(r)) for s, r in zip(u.src, o.required)):
      return o.result
  what, fix = "the node was built on sources that are not placed for it", "build it through the UOp methods"
  raise AssertionError(shard_error(u.op, u.src, what, fix))


# ---------------------------------------------------------------- errors of operands that no way fits


def two_sets(op: Ops, src: Nodes) -> ShardError:
  """The error of operands on two device sets."""
  cut = [i for i, s in enumerate(src) if isinstance(s.device, Sharding)]
  first, other = cut[0], next(i for i in cut if not same_devices(src[cut[0]].device, src[i].device))  # type: ignore[arg-type]
  sets = [sorted(device_set(src[i].device)) for i in (first, other)]  # type: ignore[arg-type]
  order = "the same devices in another order" if sets[0] == sets[1] else "two different device sets"
  fix = f"{operand(other)}.shard({operand(first)}.device)  # brings one to the other's placement"
  return shard_error(op, src, f"the operands live on {order}", fix)


def operand(i: int) -> str:
  """How a fix names the operand i."""
  return "xyz"[i] if i < 3 else f"src[{i}]"


def one_device(op: Ops, src: Nodes) -> Placement | None:
  """The single device that all sources with one are on; None if there is none. Raises ShardError for two."""
  found = list(dict.fromkeys(s.device for s in src if s.device is not None))
  if len(found) > 1:
    other = next(i for i, s in enumerate(src) if s.device == found[1])
    raise shard_error(op, src, "the operands live on different devices", f"{operand(other)}.to({found[0]!r})")
  return found[0] if found else None


def shard_error(op: Ops, src: Sequence[UOp], what: str, fix: str) -> ShardError:
  """The error that shows the operands with dtype, shape and placement, the user's line, and what helps."""
  lines = [f"{op.name.lower()}: {what}"]
  lines += [
    f"    src[{i}]: {s.dtype.name}{list(s.shape)} on {show_placement(s.device, mesh_of(s))}" for i, s in enumerate(src)
  ]
  return ShardError("\n".join([*lines, f"    in {user_line()}", f"  fix: {fix}"]))
