"""What the rooms promise: a name means one thing across the package, imports are seen, a change touches one place."""

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import tinygrad
from tinygrad.device import backends

PACKAGE = Path(tinygrad.__file__).parent
REGISTRY = ("device/registry.py", "tinygrad.runtime")  # backends are found by name: whoever adds one edits no list
# what each backend has of its own, by the name that its protocol gives it
FAMILIES = {"Batch": "runtime", "Call": "runtime", "Memory": "runtime", "render": "renderer"}


def names(package):
  """Each class and function of a module, and the files that have one; what begins with _ is its module's own."""
  found = defaultdict(set)
  for file in package.rglob("*.py"):
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
      if isinstance(node, ast.ClassDef) or (isinstance(node, ast.FunctionDef) and not node.name.startswith("_")):
        found[node.name].add(file.relative_to(package))
  return found


def shared(found):
  return {
    name: files
    for name, files in found.items()
    if len(files) > 1 and {file.parts[0] for file in files} != {FAMILIES.get(name)}
  }


def test_a_name_means_one_thing():
  assert not shared(names(PACKAGE))


def test_a_second_meaning_of_a_name_is_noticed(tmp_path):
  for file in ("one.py", "other.py"):
    (tmp_path / file).write_text("class Plan:\n  def size(self): ...\n\ndef size(): ...\n\ndef _own(): ...\n")
  assert list(shared(names(tmp_path))) == ["Plan", "size"]


# ---------------------------------------------------------------- a function fits a screen, a table may be wider


def long_functions(folder):
  """Functions of more than 50 lines, what is nested in them counted."""
  return [
    f"{file.name}: {node.name}"
    for file in folder.rglob("*.py")
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= 50
  ]


def is_table(node):
  """A display, displays joined, or a record: a call with three fields or more, all but the first of which are named;
  or a call that takes such a record."""
  if isinstance(node, ast.BinOp):
    return is_table(node.left) or is_table(node.right)
  if isinstance(node, ast.Call):
    record = len(node.args) <= 1 and len(node.keywords) >= 3
    return record or (not node.keywords and any(isinstance(x, ast.Call) and is_table(x) for x in node.args))
  return isinstance(node, (ast.Tuple, ast.List, ast.Set, ast.Dict))


def wide_statements(folder):
  """Where `fmt: skip` ends what is no table."""
  found = []
  for file in folder.rglob("*.py"):
    text = file.read_text(encoding="utf-8")
    marked = {i for i, line in enumerate(text.splitlines(), 1) if line.endswith("# fmt: skip")}
    for node in ast.walk(ast.parse(text)) if marked else ():
      if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)) and is_table(node.value):
        marked.discard(node.end_lineno)
    found += [f"{file.name}: {line}" for line in sorted(marked)]
  return found


def test_a_function_fits_a_screen():
  assert long_functions(PACKAGE) + long_functions(PACKAGE.parent / "extra") == []


CORE = ("uop", "ops", "sharding", "schedule", "codegen", "engine")


def test_the_core_rooms_stay_small():
  lines = sum(len(f.read_text().splitlines()) for room in CORE for f in (PACKAGE / room).rglob("*.py"))
  assert 10_000 < lines < 14_000


def test_only_tables_are_wide():
  assert [x for room in ("tinygrad", "extra", "test") for x in wide_statements(PACKAGE.parent / room)] == []


def test_long_functions_and_wide_statements_are_noticed(tmp_path):
  (tmp_path / "one.py").write_text(
    "def f():\n"
    + "  x = 1\n" * 49
    + "def g():\n"
    + "  x = 1\n" * 50
    + "x = {1: 2}  # fmt: skip\nx = f(1, 2)  # fmt: skip\n"
  )
  assert long_functions(tmp_path) == ["one.py: g"]
  assert wide_statements(tmp_path) == ["one.py: 103"]


# ---------------------------------------------------------------- `python -O` leaves asserts out

CHANGING = {
  "acquire", "add", "append", "clear", "discard", "extend", "insert", "next", "pop", "popitem", "remove", "send",
  "setdefault", "update",
}  # fmt: skip


def asserts_that_change_something(folder):
  """Asserts without which a program goes on otherwise: they bind a name or call what changes an object."""
  return [
    f"{file.name}:{node.lineno}"
    for file in folder.rglob("*.py")
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    if isinstance(node, ast.Assert)
    for part in ast.walk(node.test)
    if isinstance(part, ast.NamedExpr)
    or (isinstance(part, ast.Call) and getattr(part.func, "attr", getattr(part.func, "id", None)) in CHANGING)
  ]


def test_no_assert_changes_anything():
  assert not asserts_that_change_something(PACKAGE)


def test_an_assert_that_changes_something_is_noticed(tmp_path):
  (tmp_path / "a.py").write_text("assert stack.pop() is x\nassert (y := f())\nassert next(it)\nassert len(x) == 3\n")
  assert asserts_that_change_something(tmp_path) == ["a.py:1", "a.py:2", "a.py:3"]


# ---------------------------------------------------------------- lazy imports


def arrows_of(tree):
  """The modules that a file imports, anywhere in it."""
  for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom):
      yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    elif isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)


def unseen_lazy_modules(package):
  """Modules of tinygrad that a file names in a string, to load them later, and does not import under TYPE_CHECKING:
  arrows that import-linter does not see."""
  found = []
  for file in package.rglob("*.py"):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    texts = {x.value for x in ast.walk(tree) if isinstance(x, ast.Constant) and isinstance(x.value, str)}
    lazy = [x for x in texts if x.startswith("tinygrad.") and all(map(str.isidentifier, x.split(".")))]
    unseen = set(lazy) - set(arrows_of(tree))
    found += [(str(file.relative_to(package)), x) for x in sorted(unseen) if importlib.util.find_spec(x)]
  return found


def test_import_linter_sees_lazy_imports():
  assert unseen_lazy_modules(PACKAGE) == [REGISTRY]


def test_a_lazy_import_that_nothing_sees_is_noticed(tmp_path):
  (tmp_path / "one.py").write_text('from tinygrad.helpers import LazyModule\nx = LazyModule("tinygrad.dtype")\n')
  assert unseen_lazy_modules(tmp_path) == [("one.py", "tinygrad.dtype")]


# ---------------------------------------------------------------- what a backend can do is data


def kinds_asked_for(package, kinds):
  """Where code asks which kind a device is, by its name, or probes an object that it takes from `Device`."""
  found = []
  for file in package.rglob("*.py"):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
      asked = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
      if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "startswith":
        asked = node.args
      probes = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr")
      probed = probes and {x.id for x in ast.walk(node.args[0]) if isinstance(x, ast.Name)} & {"Device", "backend", "b"}
      if probed or any(isinstance(x, ast.Constant) and x.value in kinds for x in asked):
        found.append((str(file.relative_to(package)), node.lineno))
  return found


def test_nobody_asks_which_kind_a_device_is():
  assert kinds_asked_for(PACKAGE, backends()) == []


def test_a_question_for_a_kind_is_noticed(tmp_path):
  lines = ('x = kind == "CPU"', 'x = d.startswith("DISK")', 'x = hasattr(Device[d], "wrap")', 'x = d == "here"')
  (tmp_path / "one.py").write_text("\n".join(lines))
  assert kinds_asked_for(tmp_path, {"CPU", "DISK"}) == [("one.py", i) for i in (1, 2, 3)]


# ---------------------------------------------------------------- what is known of an op stands on its card


def is_op(node):
  return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Ops"


def sets_of_ops(package):
  """Where a set or list of ops is written, a tuple that is searched, or a table that gives an op a number, a text that
  is no spelling, or another op. What a stage does with an op (a function, how it is spelled) is its own."""
  found = []
  for file in package.rglob("*.py"):
    if file.relative_to(package).parts[0] in ("ops", "uop"):
      continue
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
      ops = [x for x in node.elts if is_op(x)] if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else []
      table = isinstance(node, ast.Dict) and any(x is not None and is_op(x) for x in node.keys)
      facts = table and any(
        is_op(x) or (isinstance(x, ast.Constant) and not isinstance(x.value, str)) for x in node.values
      )
      if len(ops) > 1 or (ops and isinstance(node, ast.Set)) or facts:
        found.append((str(file.relative_to(package)), node.lineno))
  return found


def test_no_set_of_ops_stands_outside_the_cards():
  assert sets_of_ops(PACKAGE) == []


def test_a_set_of_ops_is_noticed(tmp_path):
  lines = (
    "SLOW = {Ops.EXP: 2}", "SWAP = {Ops.MAX: Ops.MIN}", "x = u.op in (Ops.ADD, Ops.SUB)", "y = A | {Ops.ADD}",
    "CODES = {Ops.ADD: 'add', Ops.SUB: sub}", "z = (Ops.ADD, 1)",
  )  # fmt: skip
  (tmp_path / "one.py").write_text("\n".join(lines))
  assert sets_of_ops(tmp_path) == [("one.py", i) for i in (1, 2, 3, 4)]


# ---------------------------------------------------------------- one way to rewrite


def looked_up(loop):
  """The names whose entries for the sources of a node a loop reads: x in `[x[s] for s in u.src]`."""
  for node in ast.walk(loop):
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)) and ast.unparse(node.generators[0].iter).endswith(".src"):
      yield from (ast.unparse(x.value) for x in ast.walk(node.elt) if isinstance(x, ast.Subscript))


def rebuilt_by_hand(package):
  """Loops that make nodes of what their sources became, as `rewrite.rebuild` does."""
  found = []
  for file in package.rglob("*.py"):
    for loop in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
      if isinstance(loop, ast.For):
        targets = [t for x in ast.walk(loop) if isinstance(x, ast.Assign) for t in x.targets]
        noted = {ast.unparse(t.value) for t in targets if isinstance(t, ast.Subscript)}
        makers = {ast.unparse(x.func).split(".")[-1] for x in ast.walk(loop) if isinstance(x, ast.Call)}
        if noted & set(looked_up(loop)) and makers & {"new", "replace", "make", "on_sources", "decided_anew"}:
          found.append(str(file.relative_to(package)))
  return sorted(found)


def test_there_is_one_way_to_rewrite():
  """Beside the driver: the local forms of a value, of which there may be several, and what a comparison reads, where
  a source stands for another node for this one reader."""
  assert rebuilt_by_hand(PACKAGE) == ["sharding/lower_to_local.py", "sharding/replacement.py", "uop/rewrite.py"]


def test_a_loop_that_rebuilds_by_hand_is_noticed(tmp_path):
  (tmp_path / "one.py").write_text("for u in order:\n  new[u] = u.replace(src=tuple(new[s] for s in u.src))\n")
  (tmp_path / "two.py").write_text("for u in order:\n  depth[u] = 1 + max([depth[s] for s in u.src], default=0)\n")
  assert rebuilt_by_hand(tmp_path) == ["one.py"]


# ---------------------------------------------------------------- what a change touches


def applied(blocks, copy):
  """Puts each block after the line that its first one names, or at the end of the file, in a copy of the package; the
  files that this touches."""
  touched = set()
  for block in blocks:
    head, _, code = block.partition("\n")
    path, line = re.fullmatch(r"# in (\S+?)(?:, after: (.*))?", head).groups()
    text = (copy / path).read_text(encoding="utf-8") if (copy / path).exists() else ""
    assert line is None or text.count(line + "\n") == 1, f"{path} has {text.count(line)} lines {line!r}"
    new = text + code if line is None else text.replace(line + "\n", line + "\n" + code)
    (copy / path).write_text(new, encoding="utf-8")
    touched.add(path)
  return touched


def page_in_copy(name, copy):
  """A copy of the package, and the blocks of a page: changes to it, and a program that needs them."""
  shutil.copytree(PACKAGE, copy / "tinygrad", ignore=shutil.ignore_patterns("__pycache__", "*.gguf"))
  page = (PACKAGE.parent / "docs" / name).read_text(encoding="utf-8")
  *blocks, program = re.findall(r"```python\n(.*?)```", page, re.S)
  return blocks, program


def run_in_copy(copy, *command):
  return subprocess.run([sys.executable, *command], cwd=copy, capture_output=True, text=True)


def test_a_unary_op_touches_two_files(tmp_path):
  blocks, test = page_in_copy("adding_an_op.md", tmp_path)
  (tmp_path / "test_exp10.py").write_text(test, encoding="utf-8")
  pytest = "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_exp10.py"
  before = run_in_copy(tmp_path, *pytest)
  assert "no attribute 'exp10'" in before.stdout, "the op is there already: the test would prove nothing"
  assert applied(blocks, tmp_path) == {"tinygrad/uop/op.py", "tinygrad/ops/elementwise.py"}
  after = run_in_copy(tmp_path, *pytest)
  assert after.returncode == 0, after.stdout + after.stderr


def test_a_sharding_rule_touches_one_file(tmp_path):
  blocks, test = page_in_copy("adding_a_sharding_rule.md", tmp_path)
  (tmp_path / "test_unpacking.py").write_text(test, encoding="utf-8")
  pytest = "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_unpacking.py"
  before = run_in_copy(tmp_path, *pytest)
  assert "2 failed, 1 passed" in before.stdout, "the rule is there already: the test would prove nothing"
  assert applied(blocks, tmp_path) == {"tinygrad/sharding/partial.py"}
  after = run_in_copy(tmp_path, *pytest)
  assert after.returncode == 0, after.stdout + after.stderr


def test_a_backend_touches_one_file(tmp_path):
  blocks, program = page_in_copy("adding_a_backend.md", tmp_path)
  before = run_in_copy(tmp_path, "-c", program)
  assert "there is no backend 'TOY'" in before.stderr, "it is there already: the test would prove nothing"
  assert applied(blocks, tmp_path) == {"tinygrad/runtime/toy.py"}
  after = run_in_copy(tmp_path, "-c", program)
  assert after.returncode == 0, after.stdout + after.stderr


def test_a_codegen_pass_touches_one_file(tmp_path):
  blocks, test = page_in_copy("adding_a_pass.md", tmp_path)
  (tmp_path / "test_divisions.py").write_text(test, encoding="utf-8")
  pytest = "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_divisions.py"
  before = run_in_copy(tmp_path, *pytest)
  assert "2 failed, 7 passed" in before.stdout, "the pass is there already: the test would prove nothing"
  assert applied(blocks, tmp_path) == {"tinygrad/codegen/lower.py"}
  after = run_in_copy(tmp_path, *pytest)
  assert after.returncode == 0, after.stdout + after.stderr
