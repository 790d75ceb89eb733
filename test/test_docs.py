"""The documents hold: README's code runs and prints what it says, and every link leads somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from page import blocks

from tinygrad.device import GPUS, Device

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")


def test_readme_code_prints_what_it_says(tmp_path):
  """In a process of its own: an equal mesh that another test has named would be printed by that name."""
  gpu = {"GPU": "CPU"} if all(isinstance(Device._attempt(kind), str) for kind in GPUS) else {}  # as README says
  command = [sys.executable, str(ROOT / "test/page.py"), str(ROOT / "README.md"), "pip install"]
  result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={**ENVIRONMENT, **gpu})
  assert result.returncode == 0, result.stdout + result.stderr


def test_readme_shows_what_it_prints():
  """Every block of the tour prints something to compare."""
  tour = [block for block in blocks((ROOT / "README.md").read_text(encoding="utf-8")) if block.language == "python"]
  assert len(tour) >= 5 and all(block.said for block in tour)


def test_readme_has_the_two_commands_of_ci():
  """.ci/run takes the sh blocks of this section; a renamed section or a third block would leave it without them."""
  section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Two commands\n")[1].split("\n## ")[0]
  commands = re.findall(r"^```sh\n(.*?)\n```$", section, re.MULTILINE | re.DOTALL)
  assert [c.split(" && ")[0] for c in commands] == ["pip install -e .", "pip install -e '.[test]'"]
  assert all("\n" not in c for c in commands)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path):
  for target in LINK.findall(document.read_text(encoding="utf-8")):
    if "://" not in target:
      assert (document.parent / target).exists(), f"{document.name} links to {target}, which does not exist"


def test_the_worked_example_of_the_architecture_is_what_the_stages_print():
  # a process of its own: an equal mesh that another test has named would be printed by that name
  command = [sys.executable, "examples/stages.py"]
  printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=ENVIRONMENT).stdout
  assert f"```text\n{printed}```" in (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
