"""What the rooms promise: a name means one thing across the package."""

import ast
from collections import defaultdict
from pathlib import Path

import tinygrad

PACKAGE = Path(tinygrad.__file__).parent
# what each backend has of its own, by the name that its protocol gives it
FAMILIES = {"Batch": "runtime", "Call": "runtime", "Memory": "runtime"}


def classes(package):
  found = defaultdict(set)
  for file in package.rglob("*.py"):
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
      if isinstance(node, ast.ClassDef):
        found[node.name].add(file.relative_to(package))
  return found


def shared(found):
  return {
    name: files
    for name, files in found.items()
    if len(files) > 1 and {file.parts[0] for file in files} != {FAMILIES.get(name)}
  }


def test_a_class_has_a_name_of_its_own():
  assert not shared(classes(PACKAGE))


def test_a_second_class_of_a_name_is_noticed(tmp_path):
  for file in ("one.py", "other.py"):
    (tmp_path / file).write_text("class Plan:\n  pass\n")
  assert list(shared(classes(tmp_path))) == ["Plan"]
