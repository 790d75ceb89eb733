"""The reference is whole and true: every public name is on a page, has an example in its docstring or in a block of a
page, and every example of a docstring prints what it says. What gives Tensors tells their shapes, and its examples have
them; what raises names its errors; what counts in units names them."""

import ast
import doctest
import inspect
import pathlib
import re
import textwrap
import types
from pathlib import Path

import numpy as np
import pytest
from shapes_told import Calls, holds, told

import tinygrad
from tinygrad import Mesh, Sharding, Tensor, nn
from tinygrad.sharding import explain, visualize

PAGES = {page: page.read_text(encoding="utf-8") for page in (Path(__file__).parents[1] / "docs/reference").glob("*.md")}
DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)
HEADING = re.compile(r"^## `?(\w+)`?$", re.MULTILINE)
# of the reference's modules, what is no part of what users call
INNER = ("T", "everywhere", "scalar_beside")
ALIASES = {"DeviceMesh": "Mesh", "PartitionSpec": "P", "BatchNorm2d": "BatchNorm", "BatchNorm3d": "BatchNorm"}
# groups in which Tensors come back as they are in what is given: a model, a file, an optimizer
OF_STATES = ("tinygrad.nn.state", "tinygrad.nn.optim", "tinygrad.nn.lr_scheduler", "optimizers", "placement")
RAISES = {"mismatch": "ValueError", "refuse": "ShardError"}  # unless another is given
Names = dict[str, object]


def members(cls: type) -> Names:
  """The public methods and properties of a class, by name; fields without a value are told by the class's docstring."""
  found = {name: inspect.getattr_static(cls, name) for name in dir(cls) if not name.startswith("_")}
  return {
    f"{cls.__name__}.{name}": getattr(cls, name)
    for name, x in found.items()
    if isinstance(x, (types.FunctionType, classmethod, staticmethod, property))
  }


def of_module(module: types.ModuleType) -> Names:
  """What a module offers: its own public classes (with the methods that they add) and functions."""
  own = {
    name: x
    for name, x in vars(module).items()
    if callable(x) and not name.startswith("_") and name not in INNER and x.__module__ == module.__name__
  }
  return {name: x for name, x in own.items() if not (isinstance(x, type) and issubclass(x, Exception))}


def public() -> dict[str, Names]:
  """Everything public, in groups."""
  package = {name: getattr(tinygrad, name) for name in tinygrad.__all__}
  plain = {name: x for name, x in package.items() if not isinstance(x, types.ModuleType)}
  plain["checkpoint_policies"] = tinygrad.checkpoint_policies
  methods = sorted(members(Tensor).items())
  groups = {f"tensor{i}": dict(methods[i::4]) for i in range(4)}  # a quarter for each worker
  more = {"placement": {**members(Mesh), **members(Sharding)}, "optimizers": members(nn.optim.Optimizer)}
  modules = {m.__name__: of_module(m) for m in (nn, nn.optim, nn.lr_scheduler, nn.utils, nn.state)}
  tools = {"explain": explain, "visualize": visualize}
  return {"tinygrad": {**plain, **tools}, **groups, **more, **modules}


GROUPS = public()


def documentation(x: object) -> str:
  return inspect.getdoc(x) or ""


BLOCKS = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
USED = {word for text in PAGES.values() for block in BLOCKS.findall(text) for word in re.findall(r"\w+", block)}


def without_example(names: Names) -> list[str]:
  """The names that have no example in their docstring, nor in a block of a page, which runs with the page."""
  return [
    name
    for name, x in names.items()
    if ">>> " not in documentation(x) and ALIASES.get(name, name).rpartition(".")[2] not in USED
  ]


@pytest.mark.parametrize("group", GROUPS)
def test_everything_public_has_an_example(group):
  assert without_example(GROUPS[group]) == []


def test_everything_public_is_on_a_page():
  shown = {name for text in PAGES.values() for name in (*DIRECTIVE.findall(text), *HEADING.findall(text))}
  names = {name.rpartition(".")[2] for name in shown}
  assert [x for x in GROUPS["tinygrad"] if ALIASES.get(x, x) not in names and x != "dtypes"] == []
  assert {
    "tinygrad.nn",
    "tinygrad.nn.optim",
    "tinygrad.nn.lr_scheduler",
    "tinygrad.nn.utils",
    "tinygrad.nn.state",
  } <= shown


def test_a_name_without_an_example_is_noticed():
  def undocumented():
    """It does."""

  assert without_example({"undocumented": undocumented}) == ["undocumented"]


def failures(name: str, x: object) -> list[str]:
  """What the examples of a docstring print, where they do not print what it says."""
  names = {key: getattr(tinygrad, key) for key in tinygrad.__all__}
  names.update(np=np, pathlib=pathlib, explain=explain, visualize=visualize)
  test = doctest.DocTestParser().get_doctest(documentation(x), names, name, None, None)
  said: list[str] = []
  doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=said.append)
  return said


@pytest.mark.parametrize("group", GROUPS)
def test_examples_print_what_they_say(group, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  wrong = [line for name, x in GROUPS[group].items() for line in failures(name, x)]
  assert not wrong, "".join(wrong)


def test_a_wrong_example_is_noticed():
  def doubled():
    """Twice.

    Examples:
      >>> Tensor([1, 2]).mul(2).tolist()
      [2, 5]
    """

  assert "[2, 4]" in "".join(failures("doubled", doubled))


# ---------------------------------------------------------------- shapes, errors, units


def watched(raw: object, calls: Calls) -> object:
  """A member of a class, noting its calls."""
  if isinstance(raw, property):
    return property(calls.of(raw.fget), raw.fset)
  return type(raw)(calls.of(raw.__func__)) if isinstance(raw, (classmethod, staticmethod)) else calls.of(raw)


def calls_in_examples(name: str, x: object, monkeypatch: pytest.MonkeyPatch) -> Calls:
  """What is called by that name while its examples run, and of a layer its calls."""
  calls, last = Calls(), name.rpartition(".")[2]
  with monkeypatch.context() as patch:
    if name.startswith("Tensor."):
      for alias in [key for key in dir(Tensor) if getattr(Tensor, key) == x]:
        patch.setattr(Tensor, alias, watched(inspect.getattr_static(Tensor, alias), calls))
    if vars(nn).get(last) is x:
      for layer in {cls for cls in vars(nn).values() if isinstance(cls, type) and "__call__" in vars(cls)}:
        patch.setattr(layer, "__init__", calls.layer(layer.__init__))
        patch.setattr(layer, "__call__", calls.of(layer.__call__))
    for home in (tinygrad, nn.utils):
      if vars(home).get(last) is x and isinstance(x, types.FunctionType):
        patch.setattr(home, last, calls.of(x))
    failures(name, x)
  return calls


def wrong_shapes(name: str, x: object, monkeypatch: pytest.MonkeyPatch) -> list[str]:
  """Where Tensors come back in the examples and nothing is said of their shapes, or they have others."""
  said, seen = told(documentation(x)), calls_in_examples(name, x, monkeypatch).seen
  if said is None or not seen:
    return [f"{name}: says no shape"] * bool(seen) + [f"{name}: no example shows {said}"] * (said is not None)
  shapes = [([t.shape for t in given], [t.shape for t in made]) for given, made, _ in seen]
  return [f"{name}: {x} is not {said}" for x, call in zip(shapes, seen) if not holds(said, *call)]


@pytest.mark.parametrize("group", [name for name in GROUPS if name not in OF_STATES])
def test_what_gives_tensors_tells_their_shapes(group, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert [line for name, x in GROUPS[group].items() for line in wrong_shapes(name, x, monkeypatch)] == []


@pytest.mark.parametrize(
  ("wrong", "method"),
  [
    ("(..) -> (..)", "sum"),
    ("(*a, n, *b) -> (*a, n, *b)", "repeat_interleave"),
    ("(.., m, k), (.., k, n) -> (.., n, m)", "matmul"),
    ("(n, m, ..) -> (n, m)", "permute"),
    ("(..) -> (..) without axis", "cumsum"),
    ("(*a, n, *b) -> (*a, k, *b)", "topk"),
    ("(..), (..) -> (..)", "stack"),
    ("-> (n)", "zeros"),
  ],
)
def test_a_wrong_shape_is_noticed(wrong, method, monkeypatch):
  examples = re.search(r"Examples:.*", documentation(getattr(Tensor, method)), re.DOTALL)
  f = inspect.getattr_static(Tensor, method)
  f = getattr(f, "__func__", f)
  if method == "zeros":
    examples = ["Examples:\n  >>> Tensor.zeros(2, 3).shape\n  (2, 3)"]
  monkeypatch.setattr(f, "__doc__", f"It does.\nShape: `{wrong}`.\n\n{examples[0]}")
  assert "is not" in wrong_shapes(f"Tensor.{method}", getattr(Tensor, method), monkeypatch)[0]


def raised(x: object) -> set[str]:
  """The errors that a function raises itself: by `raise`, or by what this package's functions raise through."""
  f = getattr(x.fget if isinstance(x, property) else x, "__func__", x.fget if isinstance(x, property) else x)
  if not isinstance(f, types.FunctionType):
    return set()
  found = set()
  for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(f)))):
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
      found.add(node.exc.func.id)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("mismatch", "refuse"):
      given = [*node.args, *(k.value for k in node.keywords)]
      kinds = [a.id for a in given if isinstance(a, ast.Name) and a.id.endswith("Error")]
      found.add(kinds[0] if kinds else RAISES[node.func.id])
  return {name for name in found if name.endswith("Error")}


def unnamed_errors(name: str, x: object) -> list[str]:
  return [f"{name}: {error}" for error in sorted(raised(x)) if error not in documentation(x)]


@pytest.mark.parametrize("group", GROUPS)
def test_what_raises_names_its_errors(group):
  assert [line for name, x in GROUPS[group].items() for line in unnamed_errors(name, x)] == []


def test_an_error_that_is_not_named_is_noticed():
  def refused(x):
    """It does."""
    if x:
      raise ValueError("no")

  assert unnamed_errors("refused", refused) == ["refused: ValueError"]


# by what a name or the name of an argument has in it, the word of which one has to be in its docstring
UNITS = {
  r"bytes|memory|^mem_|element_size": r"[Bb]ytes",
  r"seconds|timeout|^time": r"seconds|[Ss]econd",
  r"^a?(sin|cos|tan)$": r"radians",
}


def unit_not_named(name: str, x: object) -> list[str]:
  f = getattr(x.fget if isinstance(x, property) else x, "__func__", x.fget if isinstance(x, property) else x)
  arguments = inspect.signature(f).parameters if isinstance(f, types.FunctionType) else ()
  names = (name.rpartition(".")[2], *arguments)
  return [
    f"{name}: {unit}"
    for pattern, unit in UNITS.items()
    if any(re.search(pattern, y) for y in names) and not re.search(unit, documentation(x))
  ]


@pytest.mark.parametrize("group", GROUPS)
def test_what_counts_in_units_names_them(group):
  assert [line for name, x in GROUPS[group].items() for line in unit_not_named(name, x)] == []


def test_a_unit_that_is_not_named_is_noticed():
  def plan(memory):
    """As much as there is."""

  assert unit_not_named("plan", plan) == ["plan: [Bb]ytes"]
