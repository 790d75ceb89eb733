"""What sharding costs: on 4,096 simulated devices what it does on 2; nothing is decided twice. Counts, not seconds."""

import gc
import sys

import pytest

from extra.bench.place_cost import localized, mesh_of, training
from tinygrad import Mesh
from tinygrad.engine.canonical import canonical
from tinygrad.helpers import Context
from tinygrad.schedule.schedule import create_schedule
from tinygrad.sharding import decision_cache
from tinygrad.sharding.localize import localize
from tinygrad.sharding.place import placed

MANY = 4096
UNIT = 512  # a model that is cut evenly in 4,096: 4,096 heads, a batch of 4,096


def lines_of(f, *args):
  """(result, lines of Python that the package ran for it): a loop counts, even one without a call in it."""
  count = 0

  def trace(frame, event, arg):
    nonlocal count
    if frame.f_code.co_name == "_forget" or "tinygrad" not in frame.f_code.co_filename:
      return None  # nodes that die are not what is counted
    count += event == "line"
    return trace

  before = sys.gettrace()
  gc.collect()
  gc.disable()
  sys.settrace(trace)
  try:
    result = f(*args)
  finally:
    sys.settrace(before)
    gc.enable()
  return result, count


def calls_of(f, *args):
  """(result, calls of Python and C functions)."""
  count = 0

  def trace(frame, event, arg):
    nonlocal count
    count += event in ("call", "c_call")

  before = sys.getprofile()
  gc.collect()
  gc.disable()
  sys.setprofile(trace)
  try:
    result = f(*args)
  finally:
    sys.setprofile(before)
    gc.enable()
  return result, count


def count(cuts, devices):
  """(UOps of the global graph, placed, localized, decisions made), and the lines that ran in each stage. The devices
  are no other test's, so that all is decided here."""
  names = tuple(f"NULL:{10_000 * devices + i}" for i in range(devices))
  mesh = Mesh(names, (devices,), (cuts,))
  known = set(decision_cache.steps)
  sink, hooks = lines_of(training(1, mesh, UNIT))
  fresh = canonical(sink)[0]
  built, place = lines_of(placed, fresh)
  local, rest = lines_of(localized, built)
  uops = len(fresh.toposort()), len(built.toposort()), len(local.toposort())
  return (*uops, len(decision_cache.steps.keys() - known)), {"hooks": hooks, "place": place, "localize": rest}


@pytest.mark.parametrize("cuts", ["tp", "dp"])
def test_4096_devices_cost_what_2_do(cuts):
  count(cuts, 8)  # fills what is cached whatever the mesh
  few, few_lines = count(cuts, 2)
  many, many_lines = count(cuts, MANY)
  assert few == many
  assert few[3] > 20  # what is decided on this mesh has not been decided on the other
  for name, lines in few_lines.items():
    # `all` and `any` end where the sizes of sub-axes let them, some lines earlier or later; one loop would be 4,096
    assert abs(many_lines[name] - lines) < MANY / 2, f"{name}: {lines} lines on 2 devices, {many_lines[name]}"


def test_the_schedule_of_4096_devices_is_that_of_64():
  """Of 2 it is shorter: there a device reads the other's part of a large sum itself, where many share the work."""

  def items(devices):
    local = localize(canonical(training(1, mesh_of("tp", devices), UNIT)())[0])
    found = create_schedule(local).items
    return len(found), len({i.kernel for i in found})

  assert items(64) == items(MANY)


def test_lines_are_counted():
  """A loop over the devices would be seen."""
  mesh = mesh_of("tp", MANY)
  from_here = {"__name__": "tinygrad.loops"}
  exec(compile("def visit(xs):\n  for x in xs:\n    x\n", "tinygrad/loops.py", "exec"), from_here)
  assert lines_of(from_here["visit"], mesh.devices)[1] > MANY


@pytest.mark.parametrize("cuts", ["tp", "dp"])
def test_calls_a_uop(cuts):
  """57 and 52 when this was written, of graphs like those decided on before; about 500 before there was a table."""
  mesh = mesh_of(cuts, 2)
  with Context(SPEC=1):
    for _ in range(2):
      fresh = canonical(training(4, mesh)())[0]
      built, place = calls_of(placed, fresh)
      _, rest = calls_of(localized, built)
  assert (place + rest) / len(fresh.toposort()) < 75


@pytest.mark.parametrize("cuts", ["tp", "dp"])
def test_a_layer_more_decides_nothing_new(cuts):
  """Placements of the third layer and further ones come from the table."""
  mesh = mesh_of(cuts, 2)

  def decided(layers):
    placed(canonical(training(layers, mesh)())[0])
    return len(decision_cache.steps)

  assert decided(3) == decided(5)
