"""The table of docs/sharding.md: what each op does with cut dims and with partial values, from its card.

    python -m extra.op_table            # prints it
    python -m extra.op_table --write    # puts it into docs/sharding.md

Letters are factors. Each dim of the operands and of the result is made of some; a cut of a factor cuts every dim that
it is in. `(c)`: cut, the result is partial; `c~`: cut, elements change owner; `c!`: it cannot be cut.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from tinygrad import dtypes
from tinygrad.uop import GroupOp, Ops, UOp
from tinygrad.uop.cards import CARDS, Factors, PartialRule

DOCUMENT = Path(__file__).parents[1] / "docs" / "sharding.md"
BEGIN, END = "<!-- made by extra/op_table.py -->", "<!-- end of the table -->"
WITHOUT = frozenset((Ops.BUFFER, Ops.CONST, Ops.VARIABLE, Ops.BIND, Ops.HOLE, Ops.MOVE, Ops.AFTER))  # not run on cuts
WITHOUT |= {Ops.WAIT, Ops.CUSTOM, Ops.CALL}  # which is as its value; whose rule the user says; on parts already

INTEGER = frozenset((Ops.NOT, Ops.IDIV, Ops.MOD, Ops.AND, Ops.OR, Ops.XOR, Ops.SHL, Ops.SHR))

PARTIAL = {
  PartialRule.KEEP: "kept, of every kind",
  PartialRule.PAD: "an add keeps a fill of 0, a mul of 1, max and min any; else made partial",
  PartialRule.SELECT: "kept under a replicated condition; branches that are not partial are made so",
  PartialRule.SUM: "an add is kept, the other operand made partial; max and min beside a finite replicated float",
  PartialRule.EXTREMUM: "max and min of the same op are kept",
  PartialRule.PRODUCT: "kept beside what is replicated and no constant 0, inf or nan; two over different axes are",
  PartialRule.NEGATE: "an add is kept; of floats max becomes min; mul takes a factor that is made partial",
  PartialRule.REDUCE_SAME: "what is partial by the same reduction is kept",
  PartialRule.SCATTER: "updates that are partial by its own op are kept under a replicated index",
  PartialRule.CAST: "kept where the cast commutes: to a wider float, integers to the same width or less",
  PartialRule.MONOTONE: "max and min are kept",
  PartialRule.REDUCE_FIRST: "reduced before",
}


def leaf(*shape: int, dtype: Any = dtypes.float32) -> UOp:
  return UOp.new(Ops.HOLE, dtype, (), (0, shape))


def examples() -> dict[Ops, list[UOp]]:
  """For each op a node on small operands; several where its factors depend on its arg."""
  x = leaf(4, 6)
  out = {op: [elementwise(op, n)] for op, n in arities().items()}
  out[Ops.RESHAPE] = [
    UOp.new(Ops.RESHAPE, x.dtype, (leaf(8, 6),), (2, 4, 6)),
    UOp.new(Ops.RESHAPE, x.dtype, (leaf(2, 4, 6),), (8, 6)),
    UOp.new(Ops.RESHAPE, x.dtype, (leaf(4, 9),), (6, 6)),
  ]
  out[Ops.PERMUTE] = [UOp.new(Ops.PERMUTE, x.dtype, (x,), (1, 0))]
  out[Ops.EXPAND] = [UOp.new(Ops.EXPAND, x.dtype, (leaf(4, 1),), (4, 6))]
  out[Ops.PAD] = [UOp.new(Ops.PAD, x.dtype, (x,), (((0, 0), (1, 1)), 0.0))]
  out[Ops.SHRINK] = [UOp.new(Ops.SHRINK, x.dtype, (x,), ((0, 4), (1, 3)))]
  out[Ops.FLIP] = [UOp.new(Ops.FLIP, x.dtype, (x,), (1,))]
  out[Ops.CAT] = [UOp.new(Ops.CAT, x.dtype, (x, x), 1)]
  out[Ops.WINDOW] = [UOp.new(Ops.WINDOW, x.dtype, (leaf(2, 6, 3),), (1, 2, 1, 1, 4))]
  out[Ops.SPREAD] = [UOp.new(Ops.SPREAD, x.dtype, (leaf(2, 4, 3),), (1, 2, 1, 1, 6))]
  index = leaf(4, 5, dtype=dtypes.int32)
  out[Ops.GATHER] = [UOp.new(Ops.GATHER, x.dtype, (x, index), batch) for batch in (0, 1)]
  out[Ops.SCATTER] = [UOp.new(Ops.SCATTER, x.dtype, (index, leaf(4, 5, 6)), (Ops.ADD, 3, batch)) for batch in (0, 1)]
  out[Ops.REDUCE] = [UOp.new(Ops.REDUCE, x.dtype, (x,), (Ops.ADD, (1,)))]
  out[Ops.IOTA] = [UOp.iota(4)]
  return out


def elementwise(op: Ops, n: int) -> UOp:
  """A node of operand types that the op takes."""
  x, i = leaf(4, 6), leaf(4, 6, dtype=dtypes.int32)
  if op is Ops.WHERE:
    return UOp.new(op, x.dtype, (leaf(4, 6, dtype=dtypes.bool), x, x))
  if op is Ops.THREEFRY:
    return UOp.new(op, dtypes.uint32, (leaf(4, 6, dtype=dtypes.uint32),) * n, 0)
  if op in INTEGER:
    return UOp.new(op, i.dtype, (i,) * n)
  return UOp.new(op, dtypes.bool if op in GroupOp.Comparison else x.dtype, (x,) * n)


def arities() -> dict[Ops, int]:
  """How many sources an elementwise op has, and those that follow its rule."""
  out = {op: 1 if op in GroupOp.Unary else 2 if op in GroupOp.Binary else 3 for op in GroupOp.Elementwise}
  return {**out, Ops.THREEFRY: 4, Ops.CONTIGUOUS: 1, Ops.DETACH: 1, Ops.CONSTRAIN: 1, Ops.ASSIGN: 2}


def rule(u: UOp) -> str:
  """The factors of a node, as `a b, b c -> a c`."""
  factors = CARDS[u.op].factors
  assert factors is not None
  f = factors(u)
  sources = ", ".join(side(f, dims, set()) for dims in f.src) or "nothing"
  return f"{sources} -> {side(f, f.out, set(f.remapped))}"


def side(f: Factors, dims: Any, remapped: set[int]) -> str:
  """One operand's dims, or the result's."""
  return " ".join(dim(f, inner, i in remapped) for i, inner in enumerate(dims)) or "()"


def dim(f: Factors, inner: tuple[int, ...], remapped: bool) -> str:
  names = [f"({letter(n)})" if n in f.contracted else f"{letter(n)}!" if n in f.blocked else letter(n) for n in inner]
  return ("*".join(names) or "1") + ("~" if remapped else "")


def letter(n: int) -> str:
  return "abcdefghij"[n]


def table() -> str:
  """Markdown: ops with the same rules share a row."""
  rows: dict[tuple[str, str], list[str]] = {}
  shown = examples()
  for op, c in CARDS.items():
    if c.factors is None or op in WITHOUT:
      continue
    found = dict.fromkeys(rule(u) for u in shown[op])
    same = set(next(iter(found)).replace(" -> ", ", ").split(", ")) == {"a b"}  # every dim is a factor of its own
    rules = "`a b, .. -> a b`" if same and op in arities() else "; ".join(f"`{r}`" for r in found)
    rows.setdefault((rules, PARTIAL[c.partial]), []).append(f"`{op.name}`")
  lines = ["| ops | factors | partial operands |", "| --- | --- | --- |"]
  lines += [f"| {' '.join(ops)} | {rules} | {is_partial} |" for (rules, is_partial), ops in rows.items()]
  return "\n".join(lines)


def written(document: str) -> str:
  """The document with the table between its marks."""
  head, _, rest = document.partition(BEGIN)
  _, mark, tail = rest.partition(END)
  if not mark:
    raise ValueError(f"no {BEGIN} and {END} in the document\n  fix: put both lines where the table belongs")
  return f"{head}{BEGIN}\n\n{table()}\n\n{END}{tail}"


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
    prog="python -m extra.op_table", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--write", action="store_true", help="put the table into docs/sharding.md")
  args = parser.parse_args(argv)
  if not args.write:
    print(table())
    return 0
  text = written(DOCUMENT.read_text(encoding="utf-8"))
  temporary = DOCUMENT.with_name(f".{DOCUMENT.name}.{os.getpid()}")
  temporary.write_text(text, encoding="utf-8")
  temporary.replace(DOCUMENT)
  return 0


if __name__ == "__main__":
  sys.exit(main())
