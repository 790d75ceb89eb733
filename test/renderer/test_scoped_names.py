"""Names in a source whose loops are blocks."""

import pytest
from test_cstyle import DIALECTS

from tinygrad.dtype import dtypes
from tinygrad.renderer import cstyle, llvm, scoped_names
from tinygrad.uop import AxisKind, Ops, ParamArg, UOp


def twice_loaded():
  """out[1] = x[0], which stands before a loop, and in it, too, for out[0]."""
  out, x = (UOp.new(Ops.PARAM, dtypes.float32, (), ParamArg(slot, 2)) for slot in (0, 1))
  zero, one, end = (UOp.const(dtypes.index, i) for i in (0, 1, 3))
  value = UOp.new(Ops.LOAD, dtypes.float32, (at := UOp.new(Ops.INDEX, dtypes.float32, (x, zero)),))
  r = UOp.new(Ops.RANGE, dtypes.index, (end,), (0, AxisKind.LOOP))
  first, second = (UOp.new(Ops.INDEX, dtypes.float32, (out, i)) for i in (zero, one))
  stores = [UOp.new(Ops.STORE, dtypes.void, (where, value)) for where in (first, second)]
  ended = UOp.new(Ops.ENDRANGE, dtypes.void, (r,))
  return [out, x, at, value, r, at, value, first, stores[0], ended, second, stores[1]]


def renderers():
  yield "llvm", lambda linear: llvm.render(linear, "kernel").source
  for name, dialect in DIALECTS.items():
    yield name, lambda linear, dialect=dialect: cstyle.render(linear, "kernel", dialect).source


RENDERERS = dict(renderers())


def defined_in_loop(source):
  """What is defined within the loop, and what the last store writes."""
  inside, depth, last = set(), 0, ""
  for line in source.splitlines():
    if "for (" in line or line.startswith("body"):
      depth += 1
    elif depth and (line.strip() == "}" or line.startswith("exit")):
      depth -= 1
    if " = " in line and depth:
      inside |= {*line.split(" = ")[0].split()[-1:]}
    if "store float" in line:
      last = line.split("store float ")[1].split(",")[0]
    elif " = v" in line and "[1]" in line:
      last = line.split(" = ")[1].strip(" ;")
  assert inside and last
  return inside, last


@pytest.mark.parametrize("name", RENDERERS)
def test_behind_a_loop_a_value_is_the_one_before_it(name, monkeypatch):
  inside, last = defined_in_loop(RENDERERS[name](twice_loaded()))
  assert last not in inside
  monkeypatch.setattr(scoped_names.ScopedNames, "close", lambda self: None)
  inside, last = defined_in_loop(RENDERERS[name](twice_loaded()))
  assert last in inside, "without scopes it would be the one within"
