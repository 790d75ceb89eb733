"""Whether a custom op's rule is true: its values on parts against those on the whole, and what is wrong where they
differ (docs/custom_ops.md)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.custom import REDUCTIONS, CustomFunction
from tinygrad.device import Mesh, P, ShardError, Sharding, refuse, show_placement
from tinygrad.helpers import numpy, prod
from tinygrad.tensor import Tensor
from tinygrad.transforms.factor_rule import Dims, names_in
from tinygrad.uop import Ops

Cuts = dict[str, tuple[str, ...]]  # factor -> the mesh axes that cut it
ROWS = ("x", "y")


def check_rule(op: CustomFunction, *operands: Any, mesh: Mesh | None = None, trials: int = 20, seed: int = 0) -> int:
  """Compares a custom op on cut operands with its function on whole ones, and its gradients; the number of placements
  that were compared.

  `operands`: a shape for each, which is filled with small whole numbers, or a Tensor, which is taken as it is (an
  index). Each factor is cut alone over each axis of `mesh` (four CPU devices, two by two), then several at once and
  operands anyhow, `trials` times by chance. Results that are whole numbers have to be equal bit for bit, all
  else up to rounding.
  Raises: ShardError that names the factor, the operands and their placements, the largest difference, and a fix;
  TypeError for what is no custom op.

  Examples:
    >>> product = custom_op(lambda x, w: x @ w, rule="m k, k n -> m n")
    >>> check_rule(product, (4, 6), (6, 2)) > 20
    True
  """
  if not isinstance(op, CustomFunction):
    refuse(f"check_rule: {op!r} is no custom op", "check_rule(custom_op(fn, rule='m -> m'), (8,))", error=TypeError)
  check = RuleCheck(op, [as_array(x, seed + i) for i, x in enumerate(operands)], mesh or four_devices())
  cases = check.alone()
  if not cases:
    fix = (
      "give shapes of which dims are divided by an axis of the mesh, e.g. 8, and a rule with factors that may be cut"
    )
    refuse(f"check_rule: no factor of {op.rule.text!r} can be cut over {check.mesh} here", fix)
  chance = random.Random(seed)
  for cuts in [*cases, *(check.together(chance) for _ in range(trials))]:
    check.compare(cuts, [check.placed(i, cuts) for i in range(len(check.arrays))])
  for _ in range(trials):
    check.compare({}, [check.anyhow(i, chance) for i in range(len(check.arrays))])
  return len(cases) + 2 * trials


def four_devices() -> Mesh:
  return Mesh([f"CPU:{i}" for i in range(4)], (2, 2), ROWS)


def as_array(x: Any, seed: int) -> Any:
  """The values of an operand: a Tensor's, or small whole numbers in a shape."""
  if isinstance(x, Tensor):
    return x.numpy()
  return numpy.random.default_rng(seed).integers(-4, 5, x).astype("float32")


def is_close(a: Any, b: Any, exact: bool = True) -> bool:
  """Equal where the numbers are whole and have no more digits than their type, if they are to be `exact`; else up to
  rounding."""
  if a.dtype.kind != "f":
    return bool(numpy.array_equal(a, b))
  most = float(numpy.abs(b).max(initial=0, where=numpy.isfinite(b)))
  if exact and most < 2 ** numpy.finfo(b.dtype).nmant and numpy.array_equal(b, numpy.rint(b), equal_nan=True):
    return bool(numpy.array_equal(a, b, equal_nan=True))
  return bool(numpy.allclose(a, b, rtol=1e-5, atol=1e-5 * most, equal_nan=True))


@dataclass(slots=True)
class RuleCheck:
  """One op on some operands, in several placements."""

  op: CustomFunction
  arrays: list[Any]
  mesh: Mesh
  want: list[tuple[str, Any]]
  sources: list[Dims]
  results: list[Dims]
  sizes: dict[str, int]

  def __init__(self, op: CustomFunction, arrays: list[Any], mesh: Mesh) -> None:
    self.op, self.arrays, self.mesh = op, arrays, mesh
    whole = [Tensor(a) for a in arrays]
    op.on(whole)
    made = op.fn(*whole)
    results = made if isinstance(made, tuple) else (made,)
    bound = op.rule.on([x.uop for x in whole], {k: y.uop.shape for k, y in enumerate(results)})
    self.sources, self.results = ([bound.dims(d) for d in side] for side in (op.rule.sources, op.rule.results))
    self.sizes = {x: n for x, n in bound.sizes.items() if isinstance(n, int)}
    self.want = named_values(*self.made(op.fn if op.gradient is None else op, whole))

  def made(self, op: Callable[..., Any], operands: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The results on these operands, and the operands with gradients of a weighted sum of the results."""
    out = op(*operands)
    results = out if isinstance(out, tuple) else (out,)
    losses = [(y * weights(y)).sum() for y in results if y.is_floating_point()]
    for loss in losses:
      loss.backward()
    return results, tuple(operands)

  # ---- placements

  def may_cut(self, name: str, axes: Sequence[str]) -> bool:
    """Whether equal parts over these axes are what the rule allows. Of several factors of a dim only the major one is
    cut here."""
    n, parts = self.sizes.get(name, 1), prod(self.mesh.shape[self.mesh.names.index(a)] for a in axes)
    minor = {x for dims in (*self.sources, *self.results) for d in dims for x in d[1:]}
    bound = name in names_in(self.sources) and name not in self.op.rule.uncut | minor
    reduced = any(name not in names_in([out]) for out in self.results)
    return bound and n > 1 and n % parts == 0 and not (reduced and self.op.by is None)

  def alone(self) -> list[Cuts]:
    """Each factor over each axis."""
    return [{x: (axis,)} for x in self.sizes for axis in self.mesh.names if self.may_cut(x, (axis,))]

  def together(self, chance: random.Random) -> Cuts:
    """Each axis on a factor that it may cut, or on none."""
    cuts: Cuts = {}
    for axis in chance.sample(self.mesh.names, len(self.mesh.names)):
      fits = [x for x in self.sizes if self.may_cut(x, (*cuts.get(x, ()), axis))]
      if fits and chance.random() < 0.8:
        x = chance.choice(fits)
        cuts[x] = (*cuts.get(x, ()), axis)
    return cuts

  def placed(self, i: int, cuts: Cuts) -> Sharding:
    """Operand i with these factors cut."""
    return Sharding(self.mesh, P(*(tuple(a for x in d for a in cuts.get(x, ())) or None for d in self.sources[i])))

  def anyhow(self, i: int, chance: random.Random) -> Sharding:
    """Operand i cut without regard to the rule: it is moved."""
    dims: list[tuple[str, ...]] = [()] * self.arrays[i].ndim
    for axis in self.mesh.names:
      if dims and chance.random() < 0.6:
        j = chance.randrange(len(dims))
        dims[j] = (*dims[j], axis)
    return Sharding(self.mesh, P(*(d or None for d in dims)))

  # ---- what they give

  def differences(self, op: CustomFunction, places: Sequence[Sharding]) -> list[tuple[str, float]]:
    """The values that are not those of the whole, and by how much."""
    operands = [Tensor(a).shard(p) for a, p in zip(self.arrays, places)]
    found = []
    for (what, b), (_, a) in zip(self.want, named_values(*self.made(op, operands)), strict=True):
      if not is_close(a, b, exact=what.startswith("result")):  # equals share a gradient, in thirds perhaps
        far = numpy.abs(a.astype("float64") - b.astype("float64"))
        found.append((what, float(numpy.nan_to_num(far, nan=numpy.inf).max())))
    return found

  def compare(self, cuts: Cuts, places: Sequence[Sharding]) -> None:
    """Raises ShardError if a value on these parts is not that of the whole."""
    named = ", ".join(f"{x} over {'*'.join(axes)}" for x, axes in cuts.items()) or "operands cut anyhow"
    name = getattr(self.op.fn, "__name__", "fn")
    try:
      wrong = self.differences(self.op, places)
    except ShardError as e:
      rule = f"check_rule: {name} does not run on parts, cut by {self.op.rule.text!r} ({named})"
      refuse(
        f"{rule}:\n  {str(e).splitlines()[0]}",
        f"{' and '.join(f'!{x}' for x in cuts) or '!k'}, if fn needs that whole",
        *self.shown(places),
      )
    if wrong:
      what, far = wrong[0]
      why, fix = self.reason(cuts, places, what)
      rule = f"check_rule: {what} of {name} on parts, cut by {self.op.rule.text!r} ({named}), is not the whole's"
      refuse(f"{rule}: it differs by up to {far:g}; {why}", fix, *self.shown(places))

  def shown(self, places: Sequence[Sharding]) -> list[str]:
    rows = zip(self.arrays, places)
    return [f"operand {i}: {a.dtype}{list(a.shape)} on {show_placement(p)}" for i, (a, p) in enumerate(rows)]

  def reason(self, cuts: Cuts, places: Sequence[Sharding], what: str) -> tuple[str, str]:
    """Why a value differs, and what to write."""
    kind, _, number = what.rpartition(" ")
    results = [self.results[int(number)]] if kind == "result" else self.results
    for x in cuts:
      if any(x not in names_in([out]) for out in results):
        others = {name: by for name, by in REDUCTIONS.items() if by not in (None, self.op.by)}
        right = [name for name, by in others.items() if not self.differences(self.with_partial(by), places)]
        fix = f'partial="{right[0]}"' if right else f"partial=None, or !{x}: it is gathered first"
        lacking = [f"operand {i}" for i, dims in enumerate(self.sources) if x not in names_in([dims])]
        beside = f" ({' and '.join(lacking)} without it counts in each)" if lacking else ""
        return f"{x} is reduced, and parts of the result are not joined by that{beside}", fix
      holders = [i for i, dims in enumerate(self.sources) if x in names_in([dims])]
      if mixed := [f"operand {i}" for i in holders if self.mixes(i, x)]:
        return f"fn mixes elements of {' and '.join(mixed)} along {x}, which the rule keeps", f"!{x}  # gathered first"
    factors = " and ".join(cuts) or "a factor"
    return f"fn does not do with a part along {factors} what it does with the whole", f"!{next(iter(cuts), 'k')}"

  def with_partial(self, by: Ops | None) -> CustomFunction:
    return CustomFunction(self.op.fn, self.op.rule, by, self.op.gradient, self.op.kernels)

  def mixes(self, i: int, name: str) -> bool:
    """Whether a half of the results along a factor changes where the other half of operand i does."""
    for changed, kept in ((1, 0), (0, 1)):
      other = self.arrays[i].copy()
      index = half(other.shape, self.sources[i], name, changed)
      other[index] = numpy.roll(other[index].ravel(), 1).reshape(other[index].shape) * 3 + 1
      made = self.op.fn(*(Tensor(other if k == i else a) for k, a in enumerate(self.arrays)))
      results = made if isinstance(made, tuple) else (made,)
      for (_, want), y, dims in zip(self.want, results, self.results):
        index = half(want.shape, dims, name, kept)
        if name in names_in([dims]) and not is_close(y.numpy()[index], want[index]):
          return True
    return False


def half(shape: Sequence[int], dims: Dims, name: str, which: int) -> tuple[slice, ...]:
  """The first or second half of the dims of which a factor is the major one, all of the others."""
  halves = [(slice(n // 2), slice(n // 2, None))[which] for n in shape]
  return tuple(h if d[:1] == (name,) else slice(None) for h, d in zip(halves, dims))


def weights(y: Tensor) -> Tensor:
  """Whole numbers, by which a sum of y tells its elements apart."""
  return (Tensor.arange(y.uop.size).reshape(y.shape) % 7 - 3).cast(y.dtype)


def named_values(results: Sequence[Tensor], operands: Sequence[Tensor]) -> list[tuple[str, Any]]:
  """Results and gradients as errors name them."""
  found = [(f"result {k}", y.numpy()) for k, y in enumerate(results)]
  grads = [(f"the gradient by operand {i}", x.grad) for i, x in enumerate(operands)]
  return found + [(what, g.numpy()) for what, g in grads if g is not None]
