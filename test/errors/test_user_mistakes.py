"""Mistakes raise where the user made them, before anything runs, and say what was given, which rule it broke and what
helps.
"""

import numpy as np
import pytest

from tinygrad import Context, Device, Mesh, P, ShardError, Sharding, Tensor, TinyJit
from tinygrad.device import DeviceError

D2 = ("CPU:0", "CPU:1")
D4 = tuple(f"CPU:{i}" for i in range(4))


def ones(*shape):
  return Tensor.ones(*shape).contiguous()


MISTAKES = [
  ("add_shapes", lambda: ones(2, 3) + ones(4, 3), ValueError, [r"\[2, 3\]", r"\[4, 3\]", "fix: "]),
  ("matmul_shapes", lambda: ones(2, 3) @ ones(4, 5), ValueError, [r"\[2, 3\]", r"\[4, 5\]", "fix: "]),
  ("reshape_count", lambda: ones(2, 3).reshape(4, 2), ValueError, ["reshape", r"\[2, 3\]"]),
  ("reduce_axis", lambda: ones(2, 3).sum(axis=2), (ValueError, IndexError), ["2"]),
  ("index_range", lambda: ones(2, 3)[5], IndexError, ["5", "2"]),
  ("cat_shapes", lambda: ones(2, 3).cat(ones(2, 4), dim=0), ValueError, [r"\[2, 3\]", r"\[2, 4\]"]),
  ("unknown_device", lambda: Tensor([1.0], device="ZPU"), DeviceError, ["ZPU", "fix: "]),
  ("unknown_shard_device", lambda: ones(4).shard(("CPU:0", "ZPU:1"), axis=0), DeviceError, ["ZPU", "fix: "]),
  ("cut_missing_dim", lambda: ones(4, 4).shard(D2, axis=2), ShardError, ["dim 2", r"\(4, 4\)"]),
  ("repeated_device", lambda: ones(4).shard(("CPU:0", "CPU:0"), axis=0), ShardError, ["distinct"]),
  ("axis_twice", lambda: ones(4, 4).shard(Mesh(D4, (2, 2), ("dp", "tp")), P("dp", "dp")), ShardError, ["used twice"]),
  (
    "two_device_sets",
    lambda: ones(4).shard(D2, axis=0) + ones(4).shard(("CPU:2", "CPU:3"), axis=0),
    ShardError,
    ["src\\[0\\]", "CPU:0-1", "CPU:2-3", "fix: "],
  ),
  ("two_devices", lambda: ones(4).to("CPU:0") + ones(4).to("CPU:1"), ShardError, ["src\\[1\\]", "CPU:1", "fix: "]),
  ("half_owed_nowhere", lambda: ones(4, 4).shard(D2, axis=0).shard(D2, axis=5), ShardError, ["dim 5"]),
  ("backward_of_many", lambda: ones(3).requires_grad_(True).backward(), (RuntimeError, ValueError), ["scalar"]),
  ("dtype_of_nothing", lambda: Tensor(object()), (TypeError, RuntimeError, ValueError), ["object"]),
  ("dtype_name", lambda: ones(2).cast("float31"), ValueError, ["float31"]),
]


@pytest.mark.parametrize(("make", "kind", "parts"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_mistake_raises_at_the_call(make, kind, parts):
  with pytest.raises(kind) as caught:
    make()
  for part in parts:
    assert caught.match(part)


def test_a_shard_error_names_the_users_line():
  a, b = ones(4).shard(D2, axis=0), ones(4).shard(("CPU:2", "CPU:3"), axis=0)
  with pytest.raises(ShardError, match=r"test_user_mistakes.py:\d+: _ = a \* b"):
    _ = a * b


def test_reshard_0_forbids_an_implied_move_and_names_the_fix():
  a, b = ones(8, 8).shard(D2, axis=0).realize(), ones(8, 8).shard(D2, axis=1).realize()
  with Context(RESHARD=0), pytest.raises(ShardError, match=r"(?s)src\[0\].*src\[1\].*fix: "):
    _ = a + b
  assert (a + b).numpy().tolist() == (2 * np.ones((8, 8))).tolist()


def test_a_jit_that_captures_nothing_says_so():
  step = TinyJit(lambda x: None)
  with pytest.raises((RuntimeError, ValueError), match="(?i)nothing|no kernel|capture"):
    for _ in range(3):
      step(ones(2).realize())


def test_unknown_context_variables_are_named():
  with pytest.raises(ValueError, match="unknown context variable 'DEBUGG'"):
    Context(DEBUGG=2)


def test_after_an_error_everything_goes_on():
  with pytest.raises(ShardError):
    ones(4, 4).shard(D2, axis=2)
  assert ones(4, 4).shard(D2, axis=1).sum().item() == 16 and Sharding(D2, 0).axis == 0 and Device.DEFAULT
