"""Random scripts over live tensors show what the mirror in numpy does; and the scripts notice wrong rules."""

import inspect

import mutants
import numpy as np
import pytest
import scripts
from mirror import Mirror, Unclear
from scripts import Script, attempt, check, shrink, written
from test_laws import clear_caches

from tinygrad import Tensor

INTERPRETED, COMPILED, CHUNK = 1000, 100, 100
interpreted = pytest.mark.skipif(scripts.KIND != "CPU", reason="interpreted: no device takes part")


@interpreted
@pytest.mark.parametrize("first", range(0, INTERPRETED, CHUNK))
def test_scripts_show_what_numpy_does_interpreted(first):
  for seed in range(first, first + CHUNK):
    check(seed)


@pytest.mark.parametrize("first", range(0, COMPILED, 20))
def test_scripts_show_what_numpy_does_compiled(first):
  for seed in range(10_000 + first, 10_000 + first + 20):
    check(seed, interpreted=False)


def test_scripts_hold_every_kind_of_statement():
  """And most of them more than one line that matters: few are refused by the mirror."""
  text = "\n".join(line for seed in range(200) for line in written(seed).lines)
  calls = "realize( item() tolist() numpy() assign( ] = empty_like() full_like( rand_like() zeros_like() gradient( "
  calls += "minimize( TinyJit shard( detach() clone() contiguous() Context( / nan inf"
  assert [c for c in calls.split() if c not in text] == []
  used = {name for name in dir(Mirror) if f".{name}(" in text}
  unused = {n for n, f in vars(Mirror).items() if inspect.isfunction(f) and not n.startswith("_")} - used
  assert unused <= {"cast", "to", "writable"}, unused


def test_the_mirror_has_tensors_own_functions():
  for name, f in vars(Mirror).items():
    if inspect.isfunction(f) and not name.startswith("_"):
      assert hasattr(Tensor, name), name


def test_a_failing_script_is_shrunk_to_the_lines_that_matter():
  """Where the mirror is wrong, what is left is the wrong call with what it needs."""
  lines = ["a = given([1., 2.], 'host', ONE)", "b = a * 2", "c = b + 1", "show(b.item() if b.ndim == 0 else 0)"]
  script = Script((*lines, "d = a.square()", "show(c.numpy())", "show(d.numpy())"))
  assert attempt(script) is None
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(Mirror, "square", lambda self: self * 3)
    failure = attempt(script)
    assert failure is not None
    small, failure = shrink(script, failure)
  assert small.lines == (lines[0], "d = a.square()", "show(d.numpy())")
  assert failure.kind == "the values differ" and "d.numpy()" in failure.text


def test_the_mirror_says_nothing_of_what_is_not_said():
  x = Mirror([1.0, 2.0], "float32", lazy=False)
  y = x.shard(("CPU:0",))
  x.assign(3)
  with pytest.raises(Unclear, match="perhaps the same tensor"):
    y.numpy()
  z = Mirror([1.0, 2.0], "float32", lazy=False)
  total = (z * z).sum()
  z[0:1] = 5
  with pytest.raises(Unclear, match="realised or written"):
    total.gradient(z)


def test_the_mirrors_gradients_are_slopes():
  """Beside differences of values, for each differentiable operation."""
  rng = np.random.default_rng(0)
  a, b = rng.normal(size=(2, 3, 3))
  functions = [
    lambda x, y: x + y, lambda x, y: x - y * 2, lambda x, y: x * y, lambda x, y: x / (y * y + 1), lambda x, y: x @ y,
    lambda x, y: x.maximum(y), lambda x, y: x.relu(), lambda x, y: x.square(), lambda x, y: x.mean(1),
    lambda x, y: x.max(0), lambda x, y: x.min(1, keepdim=True) * y, lambda x, y: x.cumsum(0),
    lambda x, y: x.cat(y, dim=1).flip(0)[1:, 2], lambda x, y: x.permute(1, 0).reshape(1, 9).expand(2, 9),
    lambda x, y: x.clone().contiguous().cast("float64"),
  ]  # fmt: skip
  for f in functions:

    def loss(a, b, f=f):
      x, y = Mirror(a, "float64"), Mirror(b, "float64")
      out = f(x, y)
      weights = Mirror(np.arange(out.at.size).reshape(out.shape) + 1, "float64")
      return (out * weights).sum(), x

    out, x = loss(a, b)
    (g,) = out.gradient(x)
    for i in np.ndindex(3, 3):
      step = np.zeros((3, 3))
      step[i] = 1e-6
      slope = (loss(a + step, b)[0].item() - loss(a - step, b)[0].item()) / 2e-6
      assert slope == pytest.approx(g.value[i], abs=1e-5)


@interpreted
@pytest.mark.parametrize("name", mutants.OF_SCRIPTS)
def test_mutant_dies_by_a_script(name, monkeypatch):
  clear_caches()
  compiled = mutants.OF_SCRIPTS[name](lambda where, attribute, value: monkeypatch.setattr(where, attribute, value))
  killed = None
  for seed in range(400 if compiled else 1000):
    if (killed := attempt(written(seed, interpreted=not compiled))) is not None:
      break
  monkeypatch.undo()
  clear_caches()
  assert killed is not None, f"{name} survived"
