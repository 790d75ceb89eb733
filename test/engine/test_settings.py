"""Programs of all kinds give under every setting what they give without: what is printed, checked, traced, searched for
or left out changes no value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tinygrad import Context, Tensor, TinyJit, Variable, nn
from tinygrad.debug import profile

D4 = tuple(f"CPU:{i}" for i in range(4))
SETTINGS = [{"DEBUG": level} for level in range(1, 8)]
SETTINGS += [
  {"PROFILE": 1},
  {"SPEC": 2},
  {"SPEC": 0},
  {"NOOPT": 1},
  {"DEFER": 0},
  {"TILE_AND_FUSE": 0},
  {"CHECK_NAN": 1},
]
SETTINGS += [{"BEAM": 2, "BEAM_SECONDS": 0.2}, {"CPU_THREADS": 3}, {"INTERPRET": 1}, {"STRATEGY": "aggressive"}]
SETTINGS += [{"DEBUG": 2, "PROFILE": 1, "SPEC": 2, "NOOPT": 1, "DEFER": 0}]
PROGRAMS: dict[str, Callable[[Path], Tensor]] = {}


def program(f: Callable[[Path], Tensor]) -> Callable[[Path], Tensor]:
  PROGRAMS[f.__name__] = f
  return f


def array(*shape: int) -> np.ndarray:
  return np.random.default_rng(0).integers(-4, 5, shape).astype(np.float32)


@program
def unsharded(_: Path) -> Tensor:
  x = Tensor(array(6, 8))
  return (x @ x.T).softmax()


@program
def sharded(_: Path) -> Tensor:
  x, w = Tensor(array(6, 8)).shard(D4, 1), Tensor(array(8, 5)).shard(D4, 0)
  return (x @ w).relu() + 1


@program
def resharded(_: Path) -> Tensor:
  return Tensor(array(5, 8)).shard(D4, 0).realize().shard(D4, 1).pad(((1, 0), (0, 0))).realize()


@program
def moved(_: Path) -> Tensor:
  return (Tensor(array(4)) + 1).to("CPU:1").realize() * 2


@program
def gathered_to_one(_: Path) -> Tensor:
  return Tensor(array(8, 2)).shard(D4, 0).realize().to("CPU:2").realize()


@program
def captured(_: Path) -> Tensor:
  step = TinyJit(lambda x: ((x @ x).realize() + 1).realize())
  x = Tensor(array(4, 4)).shard(D4[:2], 0).realize()
  for _ in range(4):
    out = step(x)
  return out


@program
def interpreted(_: Path) -> Tensor:
  return Tensor(array(3, 4), device="PYTHON").sum(1)


@program
def simulated(_: Path) -> Tensor:
  x = Tensor.ones(8, 8, device="NULL").contiguous().shard(("NULL:0", "NULL:1"), 0).realize()
  (x @ x).realize()
  return Tensor(array(1))


@program
def on_disk(folder: Path) -> Tensor:
  file = Tensor.empty(4, 3, device=f"DISK:{folder / 'values'}")
  file.assign(Tensor(array(4, 3)).to(file.device)).realize()
  return file[1:3].to("CPU") * 2


@program
def random(_: Path) -> Tensor:
  Tensor.manual_seed(3)
  return Tensor.rand(7, 5).shard(D4, 0).realize().to("CPU") + Tensor.rand(7, 5)


@program
def written_in_part(_: Path) -> Tensor:
  x = Tensor(array(6, 4)).shard(D4, 0).contiguous().realize()
  x[1:3] = 7.0
  x[4] = x[5]
  return x.realize()


@program
def an_optimizer_step(_: Path) -> Tensor:
  layer, x = nn.Linear(4, 3), Tensor(array(5, 4))
  layer.weight, layer.bias = Tensor(array(3, 4), requires_grad=True), Tensor(array(3), requires_grad=True)
  with Tensor.train():
    opt = nn.optim.SGD(nn.state.get_parameters(layer), lr=0.5, momentum=0.5)
    for _ in range(2):
      opt.zero_grad()
      layer(x).relu().sum().backward()
      opt.step()
  return layer.weight


@program
def symbolic(_: Path) -> Tensor:
  n = Variable("n", 1, 6).bind(4)
  return Tensor(array(6, 2)).realize()[:n].sum(0)


@program
def looked_up(_: Path) -> Tensor:
  return Tensor(array(8, 3)).shard(D4, 0)[Tensor([5, 0, 5])]


@pytest.fixture
def quick_roofline(fresh):
  """Everything is compiled anew, and a roofline takes no time."""
  for name, value in (("MATMUL", 16), ("SUM", 1 << 10), ("VERSION", "of a test"), ("RUNS", 2)):
    fresh.setattr(profile, name, value)
  profile.peaks.cache_clear()
  yield
  profile.peaks.cache_clear()


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: ",".join(f"{k}={v}" for k, v in s.items()))
def test_a_setting_changes_no_value(settings, quick_roofline, tmp_path, capsys):
  for name, f in PROGRAMS.items():
    for folder in ("without", "with"):
      (tmp_path / name / folder).mkdir(parents=True)
    want = f(tmp_path / name / "without").numpy()
    with Context(**settings, PROFILE_FILE=str(tmp_path / "trace.json")):
      got = f(tmp_path / name / "with").numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=name)
  if settings.get("DEBUG", 0) >= 2:
    assert capsys.readouterr().out.count("***") > len(PROGRAMS)  # it did watch


def test_a_negative_beam_is_no_search():
  with Context(BEAM=-1):
    assert (Tensor([1.0, 2.0]) * 11).sum().item() == 33.0
