"""Devices of two kinds in one program: copies between them, captured steps on both, and meshes where they are asked
for. `test_cuda.py` has the same with CUDA's backend."""

import numpy as np
import pytest

from tinygrad import Tensor, TinyJit
from tinygrad.device import Device, Mesh, ShardError
from tinygrad.helpers import Context
from tinygrad.runtime import transfer


def normal(seed, *shape):
  return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_a_mesh_of_two_kinds_is_refused_where_the_user_wrote_it():
  with pytest.raises(
    ShardError, match=r"CPU, NULL:1: a value is cut over devices of one kind(.|\n)*\n  fix: .*MIXED=1"
  ):
    Tensor([1.0, 2.0]).shard(("CPU:0", "NULL:1"), axis=0)
  with Context(MIXED=1):  # what is simulated has no values to share
    with pytest.raises(ShardError, match="NPY, CPU: a value is cut over devices of one kind"):
      Mesh(("NPY", "CPU"))
    assert Mesh(("CPU:5", "CPU:6", "CL:7", "CPU:8")).kinds == ("CPU:5", "CL:7")


@pytest.mark.needs("CL")
def test_copies_between_kinds_pass_through_the_host_in_pieces(monkeypatch):
  monkeypatch.setattr(transfer, "STAGED", 300)
  sizes = []
  kind = type(Device["CL"])
  for name in ("copyin", "copyout"):
    function = getattr(kind, name)

    def noted(self, *args, function=function, data=int(name == "copyin")):
      sizes.append(args[data].nbytes)
      return function(self, *args)

    monkeypatch.setattr(kind, name, noted)
  x = normal(0, 7, 11, 13)  # 11 * 13 numbers are more than a piece, so rows of 13 are joined to pieces
  two, three = ("CL:0", "CL:1"), ("CL:0", "CL:1", "CL:2")
  for source in ("CPU", "CL:1", two, ("CPU:0", "CPU:1", "CPU:2")):
    for cut in (0, 1, 2, None) if isinstance(source, tuple) else (None,):
      for target in (three, *([("CPU:3", "CPU:4")] if "CL" in str(source) else []), "CL:2"):
        for axis in (0, 2, None) if isinstance(target, tuple) else (None,):
          t = Tensor(x).shard(source, axis=cut) if isinstance(source, tuple) else Tensor(x, device=source)
          t.realize()
          t = (t.shard(target, axis=axis) if isinstance(target, tuple) else t.to(target)).realize()
          assert sizes and max(sizes) <= 300, (source, cut, target, axis)
          np.testing.assert_array_equal(t.numpy(), x, f"{source} {cut} {target} {axis}")
          sizes.clear()


@pytest.mark.needs("CL")
def test_a_captured_step_on_two_kinds_of_devices():
  @TinyJit
  def f(x, y):
    u, v = x * 2 + 1, (y * 3).sum(0)
    Tensor.realize(u, v)
    return u, v

  for i in range(4):
    x, y = normal(i, 5, 7), normal(i + 9, 6, 3)
    u, v = f(Tensor(x, device="CPU:1").realize(), Tensor(y, device="CL:1").realize())
    assert (u.device, v.device) == ("CPU:1", "CL:1")
    np.testing.assert_allclose(u.numpy(), x * 2 + 1, rtol=1e-6)
    np.testing.assert_allclose(v.numpy(), (y * 3).sum(0), rtol=1e-4, atol=1e-5)
  assert len(f.captured.stretches) == 1


def test_a_simulated_device_beside_one_that_computes():
  """What is simulated comes first: the rest of the stretch is computed all the same."""
  u, v = Tensor(normal(0, 4), device="NULL") + 1, Tensor(normal(1, 4), device="CPU") + 1
  Tensor.realize(u, v)
  np.testing.assert_array_equal(v.numpy(), normal(1, 4) + 1)


@pytest.mark.needs("CL")
@pytest.mark.parametrize("devices", [("CPU:0", "CL:0"), ("CL:1", "CPU:2", "CL:0")])
def test_a_mesh_of_two_kinds_where_it_is_asked_for(devices):
  x, a, b = normal(0, 13, 70), normal(1, 9, 32), normal(2, 32, 6)
  e = np.exp(x - x.max(1, keepdims=True))
  with Context(MIXED=1):
    np.testing.assert_array_equal((Tensor(x).shard(devices, axis=0) * 2 + 1).numpy(), x * 2 + 1)
    got = Tensor(x).shard(devices, axis=1).softmax(-1)
    np.testing.assert_allclose(got.numpy(), e / e.sum(1, keepdims=True), rtol=1e-5)
    jit = TinyJit(lambda p, q: (p @ q).relu().realize())  # the sum over the cut dim is an all-reduce through the host
    for i in range(4):
      got = jit(Tensor(a + i).shard(devices, axis=1).realize(), Tensor(b).shard(devices, axis=0).realize())
      np.testing.assert_allclose(got.numpy(), np.maximum((a + i) @ b, 0), rtol=1e-4, atol=1e-4)
