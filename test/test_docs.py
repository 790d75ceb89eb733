"""The documents hold: README's code runs and prints what it says, and every link leads somewhere."""

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tinygrad.device import GPUS, Device

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXPECTED = re.compile(r"# -> (.*)$", re.MULTILINE)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")


def run_blocks(text: str) -> list[tuple[list[str], list[str]]]:
  """Run the python blocks in one namespace: for each, the lines it printed and the lines it says it prints."""
  namespace: dict[str, object] = {}
  results = []
  for block in BLOCK.findall(text):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
      exec(compile(block, "README.md", "exec"), namespace)
    results.append((printed.getvalue().splitlines(), EXPECTED.findall(block)))
  return results


def test_readme_code_prints_what_it_says(monkeypatch):
  if all(isinstance(Device._attempt(kind), str) for kind in GPUS):
    monkeypatch.setenv("GPU", "CPU")  # as README says
  blocks = run_blocks((ROOT / "README.md").read_text(encoding="utf-8"))
  assert len(blocks) >= 5
  for printed, said in blocks:
    assert said, "every block of the tour prints something to compare"
    assert printed == said


@pytest.mark.parametrize("page", ("auto", "custom_ops", "simulation", "solver"))
def test_a_page_prints_what_it_says(page):
  for printed, said in run_blocks((ROOT / f"docs/{page}.md").read_text(encoding="utf-8")):
    assert said and printed == said


def test_a_wrong_comment_would_be_caught():
  ((printed, said),) = run_blocks("```python\nprint(1 + 1)  # -> 3\n```\n")
  assert printed != said


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
