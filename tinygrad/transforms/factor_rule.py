"""The rule of a custom op, as text: `"b m k, b k n -> b m n"` says of which factors each dim of its operands and
results is made, as an einsum does; and on shapes, the factors that placement knows."""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from tinygrad.device import refuse
from tinygrad.helpers import prod
from tinygrad.uop import Factors, UOp, render_shape, sint, upper

Dims = tuple[tuple[str, ...], ...]  # of each dim the factors, major to minor; () for a dim of length one
ANY = ("...",)  # the leading dims that are not named
TOKEN = re.compile(r"\.\.\.|[()]|!?[A-Za-z_]\w*|1(?!\w)|\S+?")
EXAMPLE = 'rule="m k, k n -> m n"'


@dataclass(frozen=True, slots=True)
class FactorRule:
  """A rule as it is written. `uncut`: factors that may not be cut; `sizes`: of those whose sizes shapes do not tell."""

  text: str
  sources: tuple[Dims, ...]
  results: tuple[Dims, ...]
  uncut: frozenset[str] = frozenset()
  sizes: tuple[tuple[str, int], ...] = ()

  def contracted(self, i: int) -> set[str]:
    """The factors that are in the sources and not in result i, as far as they have names."""
    return names_in(self.sources) - names_in([self.results[i]])

  def turned(self, result: int, source: int, reducible: bool) -> "FactorRule":
    """The rule of the derivative of a result by a source: of the result's gradient and all sources, a sum over what the
    source does not have. What only the result has, and what is reduced not by a sum, is not cut."""
    made = names_in([self.results[result]]) - names_in(self.sources)
    uncut = self.uncut | made | (set() if reducible else self.contracted(result))
    text = f"gradient by operand {source} of {self.text}"
    return FactorRule(text, (self.results[result], *self.sources), (self.sources[source],), uncut, self.sizes)

  def on(self, src: Sequence[UOp], shapes: Mapping[int, Sequence[sint]]) -> "BoundRule":
    """The rule on operands, and on the shapes of results by their numbers.
    Raises: ShardError for another number of operands, a wrong rank, and sizes that disagree."""
    if len(src) != len(self.sources):
      self.wrong(f"says {len(self.sources)} operands, and there are {len(src)}", "give the rule's operands", src)
    bound = BoundRule(self, dict(self.sizes))
    ranks = [s.ndim - len(dims) + 1 for s, dims in zip(src, self.sources) if dims[:1] == (ANY,)]
    if len({*ranks}) > 1:
      self.wrong(f"'...' stands for {' and for '.join(map(str, ranks))} dims", "reshape them to as many", src)
    bound.leading = tuple((f"...{i}",) for i in range(max(ranks, default=0)))
    rows = [(f"operand {i}", bound.dims(dims), s.shape) for i, (s, dims) in enumerate(zip(src, self.sources))]
    bound.solve(rows, src)
    results = [(f"result {k}", bound.dims(self.results[k]), shape) for k, shape in shapes.items()]
    bound.solve(results, src)
    return bound

  def wrong(self, what: str, fix: str, src: Sequence[UOp] = ()) -> NoReturn:
    """Raises the error of operands that the rule does not fit."""
    operands = (f"operand {i}: {s.dtype.name}{render_shape(s.shape)}" for i, s in enumerate(src))
    refuse(f"custom op: the rule {self.text!r} {what}", fix, *operands)


@dataclass(slots=True)
class BoundRule:
  """A rule on shapes: what its factors are long."""

  rule: FactorRule
  sizes: dict[str, sint]
  leading: Dims = ()
  said: dict[str, str] = field(default_factory=dict)  # by what the size of a factor is known

  def dims(self, dims: Dims) -> Dims:
    """With a name for each leading dim."""
    return (*self.leading, *dims[1:]) if dims[:1] == (ANY,) else dims

  def solve(self, rows: Sequence[tuple[str, Dims, Sequence[sint]]], src: Sequence[UOp]) -> None:
    """Finds the sizes of the factors that these dims are made of, and holds them against each other."""
    open_ = []
    for label, dims, shape in rows:
      if len(dims) != len(shape):
        what, fix = f"says {len(dims)} dims of {label}, which has {len(shape)}", "write each dim in the rule, or '...'"
        self.rule.wrong(what, fix, src)
      open_ += [(f"dim {i} of {label}", names, n) for i, (names, n) in enumerate(zip(dims, shape))]
    while open_:
      left = [row for row in open_ if not self.know(*row, src)]
      if len(left) == len(open_):
        label, names, n = left[0]
        unknown = [x for x in names if x not in self.sizes]
        what = f"does not tell the sizes of {' and '.join(unknown)} in {label}, which is {n}"
        self.rule.wrong(what, f"custom_op(…, {unknown[0]}=…)  # its length", src)
      open_ = left

  def know(self, label: str, names: tuple[str, ...], n: sint, src: Sequence[UOp]) -> bool:
    """Whether a dim's factors are known now, of which one may not have been before."""
    unknown = [x for x in names if x not in self.sizes]
    if len(unknown) > 1:
      return False
    known = prod(self.sizes[x] for x in names if x in self.sizes)
    if unknown and len(names) == 1:
      self.sizes[unknown[0]], self.said[unknown[0]] = n, label
    elif unknown and isinstance(n, int) and isinstance(known, int) and known and n % known == 0:
      self.sizes[unknown[0]], self.said[unknown[0]] = n // known, label
    elif unknown or known != n:
      parts = [f"{x} is {self.sizes[x]} by {self.said.get(x, 'its keyword')}" for x in names if x in self.sizes]
      what = f"does not fit {label}, which is {n}: {', and '.join(parts) or 'a 1 is a dim of length one'}"
      self.rule.wrong(what, "reshape the operand, or correct the rule", src)
    return True

  def factors(self, result: int, used: Container[int], partial: bool) -> Factors:
    """As placement knows them. `used`: the operands that the result is made of: what only others have is not reduced in
    it. `partial`: whether factors that are may be cut."""
    sources = [self.dims(dims) for dims in self.rule.sources]
    out = self.dims(self.rule.results[result])
    number = {name: i for i, name in enumerate(dict.fromkeys(x for dims in (*sources, out) for d in dims for x in d))}

    def numbered(dims: Dims) -> tuple[tuple[int, ...], ...]:
      return tuple(tuple(number[x] for x in d) for d in dims)

    here, there = names_in(sources), names_in([out])
    reduced = names_in([dims for i, dims in enumerate(sources) if i in used]) - there
    symbolic = {x for x in number if not isinstance(self.sizes[x], int)}
    uncut = (self.rule.uncut & set(number)) | symbolic | (there - here) | (set() if partial else reduced)
    return Factors(
      src=tuple(map(numbered, sources)),
      out=numbered(out),
      sizes=tuple(upper(self.sizes[x]) for x in number),
      blocked=frozenset(number[x] for x in uncut),
      contracted=frozenset(number[x] for x in reduced),
      even=frozenset(number.values()),
    )


def names_in(operands: Sequence[Dims]) -> set[str]:
  return {name for dims in operands for d in dims for name in d}


# ---------------------------------------------------------------- the text


def factor_rule_from(text: str, sizes: Mapping[str, int]) -> FactorRule:
  """The rule that a text says. Raises: ShardError for what is none."""
  if not isinstance(text, str) or text.count("->") != 1:
    refuse(f"custom op: the rule {text!r} needs one '->' between its operands and its result", EXAMPLE)
  uncut: set[str] = set()
  sources, results = (tuple(dims_from(x, text, uncut) for x in side.split(",")) for side in text.split("->"))
  named = names_in(sources) | names_in(results)
  if "..." in names_in(results) - names_in(sources):
    refuse(f"custom op: the rule {text!r} has '...' in a result and in no operand", 'rule="... k -> ..."')
  for name, n in sizes.items():
    if name not in named:
      known = ", ".join(sorted(named - {"..."}))
      refuse(f"custom op: {name}={n!r} is no factor of the rule {text!r}", f"name one of {known}, or leave it out")
    if type(n) is not int or n < 1:
      refuse(f"custom op: the factor {name} of the rule {text!r} has a length, not {n!r}", f"{name}=8")
  return FactorRule(text, sources, results, frozenset(uncut), tuple(sorted(sizes.items())))


def dims_from(operand: str, text: str, uncut: set[str]) -> Dims:
  """The dims of one operand; notes what has a `!`."""
  dims: list[tuple[str, ...]] = []
  inner: list[str] | None = None
  for token in TOKEN.findall(operand):
    name = token.removeprefix("!")
    if token == "(" and inner is None:
      inner = []
    elif token == ")" and inner:
      dims.append(tuple(inner))
      inner = None
    elif token == "..." and not dims and inner is None:
      dims.append(ANY)
    elif token == "1" and inner is None:
      dims.append(())
    elif name.isidentifier():
      if any(name in d for d in dims) or name in (inner or ()):
        fix = "give each dim a name of its own; a diagonal is made inside fn"
        refuse(f"custom op: the rule {text!r} has {name} twice in {operand.strip()!r}", fix)
      if inner is None:
        dims.append((name,))
      else:
        inner.append(name)
      if name != token:
        uncut.add(name)
    else:
      refuse(f"custom op: the rule {text!r} has {token!r} where it says nothing, in {operand.strip()!r}", EXAMPLE)
  if inner is not None:
    refuse(f"custom op: the rule {text!r} has a '(' that is not closed, in {operand.strip()!r}", 'rule="(h d) -> h d"')
  return tuple(dims)
