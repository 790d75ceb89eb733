"""Sharded equals unsharded, for random programs on random meshes and placements; and the laws notice wrong rules."""

import itertools

import methods
import mutants
import pytest
import transformed
from harness import check, check_captured, compiled, pairs
from programs import make

from tinygrad.device import Device
from tinygrad.distributed import process_count, process_index
from tinygrad.engine import jit
from tinygrad.helpers import PROCESS, Context
from tinygrad.sharding.outcomes import STRATEGIES
from tinygrad.uop import GroupOp, Ops

INTERPRETED, COMPILED, CHUNK = 2000, 200, 100
KIND = Device.DEFAULT.partition(":")[0]  # of the compiled programs' nine devices
if KIND != "CPU":  # whose compilers take a hundred times as long: with PoCL 140 programs are 170 s of processor time
  COMPILED = 140
interpreted = pytest.mark.skipif(KIND != "CPU", reason="interpreted: no device takes part, so DEV=CPU has shown it")
BOUND = 2000  # programs within which every mutant must die
STEPS = 12


@interpreted
@pytest.mark.parametrize("first", range(0, INTERPRETED, CHUNK))
def test_sharded_equals_unsharded_interpreted(first):
  if first // CHUNK % process_count() != process_index():  # no device takes part: each has its share
    return
  told = 0
  for seed in range(first, first + CHUNK):
    with Context(DEFER=seed // 2 % 2, STRATEGY=STRATEGIES[seed // 4 % 3]):  # odd seeds have more partial values
      told += check(seed, steps=STEPS, methods=first % (2 * CHUNK) > 0)
  assert told > 0.8 * CHUNK, "too many programs grow beyond what float32 adds exactly"


@pytest.mark.parametrize("first", range(0, COMPILED, 20))
def test_sharded_equals_unsharded_compiled(first):
  with Context(DEFER=first // 20 % 2):
    told = sum(check(seed, compiled, 9, KIND, first % 40 > 0) for seed in range(10_000 + first, 10_000 + first + 20))
  assert told > 0.7 * 20


OF_TRANSFORMS = range(10_003, 10_800, 4)  # the seeds of programs with a part that goes through transforms


@pytest.mark.parametrize("first", range(0, len(OF_TRANSFORMS), 10))
def test_a_transformed_part_is_replayed_on_other_values(first):
  with Context(DEFER=first // 10 % 2):
    told = sum(check_captured(seed, KIND) for seed in OF_TRANSFORMS[first : first + 10])
  assert told


def test_arguments_that_stay_those_of_the_first_call_are_seen(monkeypatch):
  monkeypatch.setattr(jit.Captured, "renew", lambda self, given, first: None)
  with pytest.raises(AssertionError, match="call 3"):
    for seed in OF_TRANSFORMS:
      check_captured(seed, KIND)


def test_every_public_method_has_a_row_or_a_reason():
  rows = {row.name for row in methods.ROWS}
  assert not rows & set(methods.REASONS)
  missing, gone = methods.public() - rows - set(methods.REASONS), rows - methods.public()
  assert not missing, f"add a row or a reason to test/laws/methods.py for {sorted(missing)}"
  assert not gone, f"no methods of Tensor: {sorted(gone)}"


@interpreted
@pytest.mark.parametrize("number", range(len(methods.ROWS)))
def test_every_row_alone(number):
  """Two programs that begin with the row: one forward, and one backward where it is differentiated."""
  row = methods.ROWS[number]
  for defer, backward in ((0, 0), (1, 2)):
    with Context(DEFER=defer):
      seeds = range(30_000 + 3 * number + backward, 40_000, 3 * len(methods.ROWS))
      assert any(check(seed, steps=2, methods=True, row=row) for seed in itertools.islice(seeds, 5)), row


@interpreted
def test_the_programs_hold_every_op_forward_and_backward():
  seen, differentiated = set(), set()
  for seed in range(800):
    p = make(seed)
    for v in pairs(p):
      ops = {u.op for u in v.plain.toposort()}
      seen |= ops
      differentiated |= ops if v.text.startswith("gradient") else set()
  # ops of the global view; VARIABLE is inside shapes, BIND is the engine's, HOLE and what follows MOVE belong to
  # later stages

  wanted = (
    GroupOp.Elementwise
    | GroupOp.Movement
    | {
      Ops.CONST,
      Ops.IOTA,
      Ops.BUFFER,
      Ops.GATHER,
      Ops.SCATTER,
      Ops.REDUCE,
      Ops.ASSIGN,
      Ops.AFTER,
      Ops.CONTIGUOUS,
      Ops.DETACH,
    }
  )
  assert wanted - seen == set()
  assert {
    Ops.MUL,
    Ops.WHERE,
    Ops.CAT,
    Ops.WINDOW,
    Ops.SPREAD,
    Ops.GATHER,
    Ops.SCATTER,
    Ops.PAD,
    Ops.SHRINK,
    Ops.FLIP,
    Ops.MAX,
  } <= differentiated


@interpreted
def test_the_programs_hold_every_transform():
  text = "\n".join(v.text for seed in range(3, 2000, 4) for v in make(seed).made)
  assert [name for name in transformed.NAMES if name not in text] == []


def clear_caches():
  PROCESS.forget()


@interpreted
@pytest.mark.parametrize("name", mutants.MUTANTS)
def test_mutant_dies_by_an_assertion(name, monkeypatch):
  clear_caches()
  mutants.MUTANTS[name](lambda where, attribute, value: monkeypatch.setattr(where, attribute, value))
  killed, first = None, mutants.NOTICED_BY.get(name, 0)
  for k in (first, *range(BOUND)):
    seed = 4 * k + 3 if name in mutants.OF_TRANSFORMS else k
    try:
      with Context(DEFER=1 - k % 4 // 3):  # mostly 1
        check(seed)
    except AssertionError as e:
      killed = seed, str(e)
      break
    except (
      ValueError,
      IndexError,
      TypeError,
    ):  # a wrong rule may also make graphs that no card accepts: that is no law
      continue
  monkeypatch.undo()
  clear_caches()
  assert killed is not None, f"{name} survived {BOUND} programs"
