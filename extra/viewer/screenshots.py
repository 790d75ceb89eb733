"""Makes the pictures of docs/howto/viewer.md: records examples/gpt.py, and photographs its page in a headless Chromium.

python -m extra.viewer.screenshots
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image  # matplotlib brings it
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "howto" / "viewer"
MOST = 300_000  # bytes of a picture


def picture(page: Any, name: str) -> None:
  """What is to be seen now, with few colours: a small file."""
  file = PICTURES / f"{name}.png"
  page.wait_for_timeout(400)
  page.screenshot(path=file)
  Image.open(file).convert("RGB").quantize(255, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
    file, optimize=True
  )
  print(f"{file.name}: {file.stat().st_size} bytes")
  assert file.stat().st_size < MOST


def take(page: Any) -> None:
  """The pictures of a page, in their order."""

  def tab(name: str) -> None:
    page.click(f"button[data-tab={name}]")

  picture(page, "overview")
  page.click(".card.moves tbody tr >> nth=0")
  number = page.evaluate("viewer.view('graph').selected.moves[0]")
  page.mouse.move(*page.evaluate("n => viewer.view('graph').pointOfMove(n)", number))
  picture(page, "move")
  tab("graph")
  page.evaluate("(g => { g.show(g.plan.number, 'placed'); g.select(null); })(viewer.view('graph'))")
  page.mouse.move(5, 5)
  picture(page, "graph")
  page.click("button[data-stage=kernels]")
  picture(page, "kernel_graph")
  for name in ("kernels", "timeline"):
    tab(name)
    picture(page, name)
  tab("memory")
  page.click(".view.memory .holders tbody tr >> nth=0")
  picture(page, "memory")
  page.select_option(".view.memory .what", page.evaluate("`p${viewer.recording.main.number}`"))
  page.click(".view.memory .holders tbody tr >> nth=0")
  picture(page, "memory_by_kernel")


def main() -> None:
  browser = shutil.which("chromium") or shutil.which("google-chrome")
  if browser is None:
    sys.exit("needs a Chromium on this machine (Debian: apt-get install chromium)")
  PICTURES.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory() as folder, sync_playwright() as p:
    file = Path(folder) / "gpt.html"
    environment = {**os.environ, "VIZ": "2", "VIZ_FILE": str(file)}
    subprocess.run([sys.executable, "examples/gpt.py"], cwd=ROOT, env=environment, check=True)
    shown = p.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
    page = shown.new_page(viewport={"width": 1400, "height": 860})
    page.goto(f"file://{file}")
    page.wait_for_function("window.viewer")
    take(page)
    shown.close()


if __name__ == "__main__":
  main()
