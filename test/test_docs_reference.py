"""The reference is whole and true: every public name is on a page, has an example in its docstring or in a block of a
page, and every example of a docstring prints what it says."""

import doctest
import inspect
import pathlib
import re
import types
from pathlib import Path

import numpy as np
import pytest

import tinygrad
from tinygrad import Mesh, Sharding, Tensor, nn
from tinygrad.sharding import explain, visualize

PAGES = {page: page.read_text(encoding="utf-8") for page in (Path(__file__).parents[1] / "docs/reference").glob("*.md")}
DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)
HEADING = re.compile(r"^## `?(\w+)`?$", re.MULTILINE)
# of the reference's modules, what is no part of what users call
INNER = ("T", "everywhere", "scalar_beside")
ALIASES = {"DeviceMesh": "Mesh", "PartitionSpec": "P", "BatchNorm2d": "BatchNorm", "BatchNorm3d": "BatchNorm"}
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
