"""Plans on disk: what their keys hold, that they come back as they were, and that what is no plan is made anew."""

import json
import math
import os
import random
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tinygrad import Context, Device, Mesh, P, Tensor, TinyJit, Variable, dtypes, nn
from tinygrad.device import Sharding
from tinygrad.engine import compile as compiling
from tinygrad.engine.canonical import canonical
from tinygrad.engine.run import recorders
from tinygrad.helpers import PROCESS
from tinygrad.runtime import diskcache, native, plans
from tinygrad.uop import Ops, UOp

TWO = ("CPU:0", "CPU:1")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv("CACHEDIR", str(tmp_path))
  with PROCESS.anew(), Context(PLAN_CACHE=1, QUICK_CODE=1, SPEC=1):  # with SPEC=2 all stages are seen
    yield tmp_path / "objects"


@pytest.fixture
def made(monkeypatch):
  """The graphs that were planned."""
  plain, found = compiling.make_plan, []
  monkeypatch.setattr(compiling, "make_plan", lambda sink, *first: found.append(sink) or plain(sink, *first))
  return found


def numbers(*shape):
  return np.random.default_rng(1).standard_normal(shape, dtype=np.float32)


def places(n):
  return tuple(f"{Device.DEFAULT}:{i}" for i in range(n))


def trained():
  Tensor.manual_seed(3)
  model = nn.Linear(6, 3)
  optimizer = nn.optim.Adam(nn.state.get_parameters(model))
  with Tensor.train():
    for _ in range(2):
      optimizer.zero_grad()
      model(Tensor(numbers(4, 6))).square().mean().backward()
      optimizer.step()
  return model.weight


def captured():
  step = TinyJit(lambda x: (x.exp() @ x).sum(1).realize())
  return [step(Tensor(numbers(5, 5)).realize() + i) for i in range(4)][-1]


def symbolic():
  n = Variable("n", 1, 9).bind(4)
  return Tensor(numbers(9, 3)).realize()[:n].sum(0)


def assigned():
  x = Tensor(numbers(4, 4)).realize()
  x[1:3].assign(Tensor.ones(2, 4)).realize()
  return x + 1


def exchanged():
  x = Tensor(numbers(4, 8)).shard(places(2), 1)
  return (x @ Tensor(numbers(8, 4)).shard(places(2), 0)).shard(places(2), 0)


PROGRAMS = {
  "elementwise": lambda: Tensor(numbers(5, 7)) * 2 + 1,
  "several kernels": lambda: Tensor(numbers(300, 400)).softmax().sum(0),
  "convolution": lambda: Tensor(numbers(1, 3, 9, 9)).conv2d(Tensor(numbers(4, 3, 3, 3)), padding=1),
  "matrices on two devices": exchanged,
  "a mesh": lambda: Tensor(numbers(4, 8)).shard(Mesh(places(4), (2, 2), ("a", "b")), P("a", "b")).sum(),
  "to another device": lambda: (Tensor(numbers(4, 4)) + 1).to("CPU:1").exp().to("CPU"),
  "uneven": lambda: Tensor(numbers(5, 3)).shard(places(2), 0).flip(0).cumsum(0),
  "random": lambda: (Tensor.manual_seed(7), Tensor.randn(8, 8))[1],
  "training": trained,
  "captured": captured,
  "symbolic": symbolic,
  "assigned": assigned,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["CPU", pytest.param("CL", marks=pytest.mark.needs("CL"))])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_comes_from_disk_is_what_was_made(name, kind, made):
  with Context(DEV=kind):
    first = PROGRAMS[name]().numpy()
    assert made
    made.clear()
    with PROCESS.anew():
      assert PROGRAMS[name]().numpy().tobytes() == first.tobytes()
  assert not made


def marks(f):
  """Of the kernels that a value takes."""
  found = []
  recorders.append(lambda run: found.extend(p.mark for p in run.plan.programs if p is not None))
  try:
    f().realize()
  finally:
    recorders.pop()
  return found


def test_kernels_are_marked_by_what_they_compute(made):
  """By which several processes know that they do the same: those from disk as those that are made."""
  x = Tensor(numbers(4, 4)).shard(TWO, axis=0).realize()
  ways = [lambda n=n: (x * n).sum(1) for n in (2.0, 3.0)] + [lambda: (x + 2.0).sum(1)]
  first, planned = [marks(f) for f in ways], len(made)
  assert all(len(m) == 8 for found in first for m in found) and len({*map(tuple, first)}) == 3
  with PROCESS.anew():
    assert [marks(f) for f in ways] == first and len(made) == planned


def test_a_kernel_that_is_no_plain_data_has_no_mark():
  assert plans.mark_of(UOp.new(Ops.SINK, dtypes.void, (), lambda: None)) == ""


def run(cache, script, **settings):
  env = os.environ | {"CACHEDIR": str(cache.parent), "PLAN_CACHE": "1", "QUICK_CODE": "1", "SPEC": "1"} | settings
  return subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=120)


LOADED = """
import sys
from tinygrad import Tensor
print((Tensor([[1.0, 2.0], [3.0, 4.0]]) @ Tensor([[1.0], [2.0]])).tolist())
stages = "tinygrad.codegen", "tinygrad.schedule.schedule", "tinygrad.renderer.llvm", "llvmlite", "concurrent.futures"
print([m for m in stages if m in sys.modules])
"""


def test_a_process_that_finds_its_plans_loads_no_compiler(cache):
  first, second = run(cache, LOADED), run(cache, LOADED)
  assert first.stdout.splitlines()[0] == "[[5.0], [11.0]]" and "tinygrad.codegen" in first.stdout, first.stderr
  assert second.stdout == "[[5.0], [11.0]]\n[]\n", second.stderr


def test_processes_at_the_same_time(cache):
  script = """
import sys
from tinygrad import Tensor
for i in range(30):
  n = (i * int(sys.argv[1])) % 31 + 1
  assert (Tensor.arange(n) * 3 + n).tolist() == [3 * k + n for k in range(n)], n
"""
  env = os.environ | {"CACHEDIR": str(cache.parent), "PLAN_CACHE": "1"}
  command = [sys.executable, "-c", script]
  started = [subprocess.Popen([*command, str(k)], env=env, stderr=subprocess.PIPE) for k in (1, 2, 3)]
  assert [p.communicate(timeout=300)[1] for p in started] == [b""] * 3
  assert all(p.returncode == 0 for p in started)
  assert not [p for p in cache.iterdir() if p.name.startswith(".")], "nothing half is left"


# ---- keys


def key(f, *devices):
  return plans.plan_key(canonical(UOp.sink(f().uop))[0], devices or ("CPU",))


def leaf(*shape, dtype=dtypes.float32, device="CPU"):
  return Tensor(UOp.buffer(shape, dtype, device))


GRAPHS = {
  "sum": lambda: leaf(4, 6) + leaf(4, 6),
  "of one": lambda: (lambda x: x + x)(leaf(4, 6)),
  "product": lambda: leaf(4, 6) * leaf(4, 6),
  "shape": lambda: leaf(6, 4) + leaf(6, 4),
  "type": lambda: leaf(4, 6, dtype=dtypes.float64) + leaf(4, 6, dtype=dtypes.float64),
  "device": lambda: leaf(4, 6, device="CPU:1") + leaf(4, 6, device="CPU:1"),
  "replicated": lambda: leaf(4, 6, device=Sharding(TWO)) + leaf(4, 6, device=Sharding(TWO)),
  "cut": lambda: leaf(4, 6, device=Sharding(TWO, 0)) + leaf(4, 6, device=Sharding(TWO, 0)),
  "cut otherwise": lambda: leaf(4, 6, device=Sharding(TWO, 1)) + leaf(4, 6, device=Sharding(TWO, 1)),
  "other order": lambda: leaf(4, 6, device=Sharding(TWO[::-1], 1)) + leaf(4, 6, device=Sharding(TWO[::-1], 1)),
  "zero": lambda: leaf(4, 6) * 0.0,
  "minus zero": lambda: leaf(4, 6) * -0.0,
  "nan": lambda: leaf(4, 6) * math.nan,
  "axis": lambda: leaf(4, 6).sum(0),
  "other axis": lambda: leaf(4, 6).sum(1),
  "largest": lambda: leaf(4, 6).max(0),
  "reshaped": lambda: leaf(4, 6).reshape(6, 4).sum(0),
  "transposed": lambda: leaf(4, 6).permute(1, 0).sum(0),
  "a variable": lambda: leaf(4, 6)[: Variable("n", 1, 4)].sum(0),
  "another variable": lambda: leaf(4, 6)[: Variable("m", 1, 4)].sum(0),
  "other bounds": lambda: leaf(4, 6)[: Variable("n", 1, 3)].sum(0),
}


def test_different_graphs_have_different_keys():
  keys = {name: key(f, "CPU", "CPU:1") for name, f in GRAPHS.items()}
  assert None not in keys.values()
  assert len(set(keys.values())) == len(keys)
  assert keys == {name: key(f, "CPU", "CPU:1") for name, f in GRAPHS.items()}, "equal graphs have equal ones"


def test_an_argument_s_type_is_a_part_of_the_key():
  args = (1, True, 1.0, "1", (1,), ((1,),), [1], None, Ops.ADD, dtypes.int32, -0.0, 0.0, math.nan, -math.nan)
  assert len({plans.arg_text(x, None) for x in args}) == len(args)
  with pytest.raises(plans.Unwritten):
    plans.arg_text(lambda: 1, None)


@pytest.mark.parametrize("setting", ["NOOPT", "TILE_AND_FUSE", "CPU_THREADS", "DEFER", "BEAM", "RESHARD"])
def test_settings_are_a_part_of_the_key(setting):
  before = key(GRAPHS["sum"])
  with Context(**{setting: 3}):
    assert key(GRAPHS["sum"]) != before
  assert key(GRAPHS["sum"]) == before


def test_the_package_s_files_are_a_part_of_the_key(tmp_path, monkeypatch):
  (tmp_path / "uop").mkdir()
  for name in ("one.py", "uop/two.py", "runtime.ll", "notes.txt"):
    (tmp_path / name).write_text("1")
  monkeypatch.setattr(plans, "PACKAGE", str(tmp_path))
  stamps = []
  for change in (
    lambda: None,
    lambda: os.utime(tmp_path / "uop" / "two.py", (5, 5)),
    lambda: (tmp_path / "runtime.ll").write_text("10"),
    lambda: (tmp_path / "three.py").touch(),
    lambda: (tmp_path / "one.py").unlink(),
  ):
    change()
    stamps.append(plans.code_stamp.__wrapped__())
  assert len(set(stamps)) == len(stamps)
  (tmp_path / "notes.txt").write_text("other")
  assert plans.code_stamp.__wrapped__() == stamps[-1]


def test_processor_and_cores_are_a_part_of_the_key(monkeypatch):
  keys = [key(GRAPHS["sum"])]
  monkeypatch.setattr(Device["CPU"], "target", replace(Device["CPU"].target, vector_bytes=8))
  keys.append(key(GRAPHS["sum"]))
  monkeypatch.setattr(plans, "cores", lambda: 77)
  keys.append(key(GRAPHS["sum"]))
  assert len(set(keys)) == 3


def test_another_llvm_s_code_is_not_taken(monkeypatch, made):
  example().numpy()
  monkeypatch.setattr(native, "llvm_stamp", lambda: "another")
  for f in (native.compiled_for, native.processor):
    f.cache_clear()
  try:
    made.clear()
    with PROCESS.anew():
      example().numpy()
    assert made
  finally:
    for f in (native.compiled_for, native.processor):
      f.cache_clear()


# ---- what is not stored, and what is no plan


def stored(cache):
  """The entries that are plans."""
  found = {}
  for path in cache.iterdir():
    data = diskcache.get(path.name)
    if data is not None and data.startswith(b'{"programs"'):
      found[path.name] = data
  return found


def example():
  return (Tensor(numbers(40, 50)).shard(TWO, 0) + 1).exp().sum(0).to("CPU:1")


@pytest.mark.parametrize(
  "settings", [{"PLAN_CACHE": 0}, {"SPEC": 2}, {"CHECK_NAN": 1}, {"INTERPRET": 1}], ids=lambda s: next(iter(s))
)
def test_what_is_looked_at_is_planned_and_not_stored(settings, cache, made):
  with Context(**settings):
    example().realize()
    n = len(made)
    with PROCESS.anew():
      example().realize()
  assert n and len(made) == 2 * n
  assert not cache.exists() or not stored(cache)


def test_what_is_planned_in_vain_is_asked_for_again(cache, made):
  """An entry whose kernel has been evicted."""
  want = example().numpy()
  if native._improver is not None:
    native._improver.join()  # what it writes would be found
  for path in cache.iterdir():
    if path.name not in stored(cache):
      path.unlink()
  made.clear()
  with PROCESS.anew():
    assert example().numpy().tobytes() == want.tobytes()
  assert made


def garbled(data, rng):
  """A stored plan with one thing in it that `store_plan` would not have written there."""
  data = json.loads(data)
  place = data
  while isinstance(place, (dict, list)) and place:
    key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
    if not isinstance(place[key], (dict, list)) or not place[key] or rng.random() < 0.3:
      choices = [None, -1, 10**30, "x", [], {}, [[]], [["CPU", "CPU"]], True, 3.5, [[["CPU:0"], [[[2]]], []]]]
      place[key] = rng.choice(choices)
      break
    place = place[key]
  return json.dumps(data).encode()


def test_garbled_entries_raise_nothing_and_name_nothing_outside(cache):
  example().numpy()
  rng, refused = random.Random(5), 0
  for name, data in stored(cache).items():
    for _ in range(300):
      diskcache.put(name, garbled(data, rng))
      plan = plans.stored_plan(name)
      refused += plan is None
      for item in plan.items if plan else ():
        assert all(0 <= s < len(plan.buffers) + len(plan.temps) for s in item.slots)
  assert refused > 100


@pytest.mark.parametrize("cut", [0, 1, 31, 32, 33, 200, -1])
def test_entries_that_are_cut_off_are_made_anew(cut, cache, made):
  want = example().numpy()
  for name in stored(cache):
    path = cache / name
    path.write_bytes(path.read_bytes()[:cut])
  made.clear()
  with PROCESS.anew():
    assert example().numpy().tobytes() == want.tobytes()
  assert made
  made.clear()
  with PROCESS.anew():
    example().numpy()
  assert not made, "and stored anew"


def test_programs_that_no_other_process_finds_are_not_stored(cache, made):
  for _ in range(2):
    with PROCESS.anew():
      (Tensor.ones(4, 4, device="NULL").contiguous().realize() + 1).realize()
  assert len(made) == 4 and not (cache.exists() and stored(cache))


def test_a_functions_own_op_is_not_stored():
  graph = UOp.new(Ops.DETACH, dtypes.float32, (leaf(4).uop,), lambda: 1)
  assert plans.plan_key(UOp.sink(graph), ("CPU",)) is None
