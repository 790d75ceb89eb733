"""Every block of code of the site runs, page by page, each in a folder and a process of its own; the pictures are what
the code draws; the site's table of contents names every page."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from page import blocks, run_page

from extra.howtos import INSTALL
from extra.howtos import PAGES as HOWTOS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# pages whose blocks are changes to a copy of the package, which test_house.py applies and runs
APPLIED = ("adding_a_backend.md", "adding_a_pass.md", "adding_a_sharding_rule.md", "adding_an_op.md")
# blocks that do not run here, by how they begin, and what runs instead
SKIPPED = {
  "benchmarks.md": {
    "python -m venv": "makes environments of other projects; test_bench.py runs each benchmark, small",
    "python -m extra.bench --cold": "the same",
  },
  "embedded_model.md": {"mkdir -p run": "hours of training; test/apps/test_llm.py holds the model"},
}
PAGES = [
  page
  for page in sorted(DOCS.glob("**/*.md"))
  if page.name not in APPLIED and {b.language for b in blocks(page.read_text(encoding="utf-8"))} & {"python", "sh"}
]


def environment() -> dict[str, str]:
  """As a reader has it: the settings of conftest.py are the tests' own."""
  outer = {name: x for name, x in os.environ.items() if name not in ("PLAN_CACHE", "QUICK_CODE", "SPEC", "DEV")}
  path = os.pathsep.join((str(Path(sys.executable).parent), outer.get("PATH", "")))
  return {**outer, "PYTHONPATH": str(ROOT), "PATH": path}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_prints_what_it_says(page, tmp_path):
  for folder in ("examples", "extra"):  # of the clone
    (tmp_path / folder).symlink_to(ROOT / folder)
  command = [sys.executable, str(ROOT / "test/page.py"), str(page), *SKIPPED.get(page.name, ())]
  result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment())
  assert result.returncode == 0, result.stdout + result.stderr


def test_what_is_skipped_is_there():
  for page, beginnings in SKIPPED.items():
    code = [block.code for block in blocks((DOCS / page).read_text(encoding="utf-8"))]
    assert all(any(text.startswith(x) for text in code) for x in beginnings), page


def test_a_wrong_comment_is_noticed():
  wrong = run_page("```python\nprint(1 + 1)  # -> 3\n```\n", "page.md")
  assert len(wrong) == 1 and "# -> 2" in wrong[0]
  assert run_page("```sh\necho 3\n```\n```sh\necho 4  # -> 5\n```\n", "page.md") != []


def test_a_block_that_fails_is_noticed(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(subprocess.CalledProcessError):
    run_page("```sh\nfalse\n```\n", "page.md")
  assert run_page('```python title="x.py"\nprint(7)\n```\n```sh\npython x.py  # -> 7\n```\n', "page.md") == []


def test_every_page_is_in_the_table_of_contents():
  contents = set(re.findall(r"[\w/]+\.(?:md|ipynb)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
  pages = {str(page.relative_to(DOCS)) for kind in ("md", "ipynb") for page in DOCS.glob(f"**/*.{kind}")}
  assert contents == pages


def test_pictures_are_what_the_code_draws(tmp_path):
  command = [sys.executable, "docs/pictures.py", str(tmp_path)]
  subprocess.run(command, check=True, cwd=ROOT, env=environment())
  drawn = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.glob("*.svg")}
  assert drawn == {file.name: file.read_text(encoding="utf-8") for file in (DOCS / "pictures").glob("*.svg")}
  used = {x for page in PAGES for x in re.findall(r"pictures/(\w+\.svg)", page.read_text(encoding="utf-8"))}
  assert used == set(drawn)


def test_every_how_to_says_what_to_install():
  """`extra/howtos.py` makes an environment by these lines, and runs the page in it."""
  section = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("  - How to")[2].partition("\n  - ")[0]
  named = {DOCS / x for x in re.findall(r"[\w/]+\.md", section) if x != "howto/index.md"}
  assert set(HOWTOS.values()) == named | {DOCS / "index.md"} and len(named) == 15
  assert [name for name, page in HOWTOS.items() if not INSTALL.search(page.read_text(encoding="utf-8"))] == []
