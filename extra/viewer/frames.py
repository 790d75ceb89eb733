"""How many frames a second the viewer's graph moves at: 30,000 nodes, all unfolded, in a headless Chromium.

  python -m extra.viewer.frames

Of the whole graph, of half the way, and of near: while the mouse drags it, and while it turns the wheel. No graphics
card is used, and 60 is the most that there are.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from tinygrad.viz import page

VIEWS = {"whole": None, "half": 0.25, "near": 0.8}
LOOK = """k => { const g = viewer.view('graph');
  if (k) g.center(g.right / 2, g.bottom / 2, k); else g.whole(); }"""
# events as the mouse makes them, one a frame; the frames a second
MOVE = """async wheel => { const g = viewer.view('graph'), c = g.surface.canvas, r = c.getBoundingClientRect();
  const at = i => ({ clientX: r.left + 500 + 3 * i, clientY: r.top + 300 + 2 * i, bubbles: true, view: window });
  const frame = () => new Promise(requestAnimationFrame);
  if (!wheel) c.dispatchEvent(new MouseEvent('mousedown', at(0)));
  await frame();
  const start = performance.now();
  for (let i = 1; i <= 60; i++) {
    if (wheel) c.dispatchEvent(new WheelEvent('wheel', { ...at(0), deltaY: i % 20 < 10 ? -20 : 20, cancelable: true }));
    else window.dispatchEvent(new MouseEvent('mousemove', at(i)));
    await frame();
    g.surface.context.getImageData(0, 0, 1, 1);
  }
  const seconds = (performance.now() - start) / 1e3;
  if (!wheel) window.dispatchEvent(new MouseEvent('mouseup', at(60)));
  return 60 / seconds; }"""


def recording(layers: int, width: int) -> dict[str, Any]:
  """A graph: layers of nodes that read three of the layer before."""
  n = layers * width
  src = [[(i // width - 1) * width + (i * 7 + k * 5) % width for k in range(3)] if i >= width else [] for i in range(n)]
  stage: dict[str, Any] = {"name": "placed", "backward": [], "moves": {}, "src": [sorted(set(s)) for s in src]}
  stage |= {"op": [0] * n, "kind": [0] * n, "value": [1] * n, "place": [2 + i % 3 for i in range(n)], "note": [5] * n}
  stage |= {"line": [-1] * n, "scope": [1 + i * 20 // n for i in range(n)]}
  plan = {"line": -1, "stages": [stage], "moves": [], "items": [], "slots": [], "temps": []}
  words = {"strings": ["add", "float32[8]", "a", "b", "c", ""], "lines": [], "around": 0}
  scopes = [["Model", -1], *([f"blocks.{k}", 0] for k in range(20))]
  about = {"format": "tinygrad recording", "version": 1, "program": "large", "plans": [plan], "scopes": scopes}
  return about | words | {"kernels": [], "peaks": {}, "tracks": [], "memory": {"before": {}, "rows": []}}


def main() -> None:
  from playwright.sync_api import sync_playwright

  browser = shutil.which("chromium") or shutil.which("google-chrome")
  if browser is None:
    sys.exit("needs a Chromium on this machine (Debian: apt-get install chromium)")
  with tempfile.TemporaryDirectory() as folder, sync_playwright() as p:
    file = Path(folder) / "large.html"
    file.write_text(page.page_of(recording(300, 100), "graph"), encoding="utf-8")
    shown = p.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
    tab = shown.new_page(viewport={"width": 1500, "height": 900})
    tab.goto(f"file://{file}")
    tab.wait_for_function("window.viewer")
    arranged = tab.evaluate("""() => { const t = performance.now(); viewer.view('graph').foldAll(false);
      return performance.now() - t; }""")
    print(f"{tab.evaluate('viewer.view(`graph`).boxes.length')} nodes, arranged in {arranged / 1e3:.2f} s")
    for name, k in VIEWS.items():
      tab.evaluate(LOOK, k)
      drag, wheel = tab.evaluate(MOVE, False), tab.evaluate(MOVE, True)
      print(f"{name:6s} frames a second: {drag:3.0f} dragged, {wheel:3.0f} zoomed")
    shown.close()


if __name__ == "__main__":
  main()
