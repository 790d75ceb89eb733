"""The code blocks of docs/adding_an_op.md, applied to a copy of the package, work."""

import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def apply(copy: pathlib.Path, block: str) -> None:
  """Puts a block where its first line says: `# in FILE[, after|before: LINE]`."""
  head, _, code = block.partition("\n")
  found = re.fullmatch(r"# in (\S+?)(?:, (after|before): (.*))?", head)
  assert found, f"block without a place: {head}"
  path, where, anchor = copy / found[1], found[2], found[3]
  if where is None:
    path.write_text(code)
    return
  text = path.read_text()
  line = anchor.removeprefix(" ") + "\n" if anchor.startswith(" #") else anchor + "\n"
  assert text.count(line) == 1, f"{found[1]} has {text.count(line)} lines {anchor!r}"
  path.write_text(text.replace(line, line + code if where == "after" else code + line))


def test_the_blocks_add_an_op(tmp_path):
  shutil.copytree(ROOT / "tinygrad", tmp_path / "tinygrad", ignore=shutil.ignore_patterns("__pycache__", "*.gguf"))
  blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/adding_an_op.md").read_text(), re.S)
  assert len(blocks) == 4
  run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_exp10.py"]
  (tmp_path / "test_exp10.py").write_text(blocks[-1])
  before = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
  assert before.returncode != 0 and "exp10" in before.stdout, "the op exists already: the test would prove nothing"
  for block in blocks:
    apply(tmp_path, block)
  after = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
  assert after.returncode == 0, after.stdout + after.stderr
