"""Makes the pictures of docs/howto/viewer.md: records examples/gpt.py, and photographs its page in a headless Chromium.

python -m extra.viewer.screenshots
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "howto" / "viewer"
MOST = 300_000  # bytes of a picture


def main() -> None:
  from PIL import Image  # matplotlib brings it
  from playwright.sync_api import sync_playwright

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

    def picture(name: str) -> None:
      page.wait_for_timeout(400)
      file = PICTURES / f"{name}.png"
      page.screenshot(path=file)
      Image.open(file).convert("RGB").quantize(200).save(file, optimize=True)
      print(f"{file.name}: {file.stat().st_size} bytes")
      assert file.stat().st_size < MOST

    def tab(name: str) -> None:
      page.click(f"button[data-tab={name}]")

    picture("overview")
    page.click(".card.moves tbody tr >> nth=0")
    number = page.evaluate("viewer.view('graph').selected.moves[0]")
    x, y = page.evaluate("n => viewer.view('graph').pointOfMove(n)", number)
    page.mouse.move(x, y)
    picture("move")
    tab("graph")
    page.evaluate("(g => { g.show(g.plan.number, 'placed'); g.select(null); })(viewer.view('graph'))")
    page.mouse.move(5, 5)
    picture("graph")
    page.click("button[data-stage=kernels]")
    picture("kernel_graph")
    tab("kernels")
    picture("kernels")
    tab("timeline")
    picture("timeline")
    tab("memory")
    page.click(".view.memory .holders tbody tr >> nth=0")
    picture("memory")
    plan = page.evaluate("`p${viewer.recording.main.number}`")
    page.select_option(".view.memory .what", plan)
    page.click(".view.memory .holders tbody tr >> nth=0")
    picture("memory_by_kernel")
    shown.close()


if __name__ == "__main__":
  main()
