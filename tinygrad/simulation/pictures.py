"""A timeline as a picture (SVG) and as a page (HTML) with that picture, which can be zoomed, and a table."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from html import escape

from tinygrad.helpers import size_to_str
from tinygrad.simulation.memory import held_at_most, in_use
from tinygrad.simulation.program import Entry, StepProgram
from tinygrad.simulation.timeline import KERNELS, MOVES, Span, StepTimeline

WIDTH, LEFT, LANE, GAP, CURVE = 1200.0, 20.0, 26.0, 8.0, 60.0  # pixels
NARROW = 0.4  # pixels: spans of one kind that are nearer than this to one another are drawn as one
COLORS = {
  "kernel": "#4c78a8", "all_reduce": "#e45756", "reduce_scatter": "#f58518", "all_gather": "#eeca3b",
  "all_to_all": "#b279a2", "permute": "#ff9da6", "copy": "#9d755d",
}  # fmt: skip
BOUND = {"memory": "#72b7b2", "overhead": "#bab0ac"}  # of kernels that are not by their operations
LEGEND = (("kernel, by its operations", "#4c78a8"), ("by its memory", "#72b7b2"), ("by its launch", "#bab0ac"))
MOST_CLASSES = 64  # of devices that are drawn


def duration(seconds: float) -> str:
  """A length of time with three digits and a unit."""
  for unit, n in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
    if seconds * n >= 1:
      return f"{seconds * n:.3g} {unit}"
  return f"{seconds * 1e9:.3g} ns"


def span_label(e: Entry, s: Span) -> str:
  """What a span is, in the user's words where they are known."""
  line = next((f" {os.path.basename(at[0])}:{at[1]}" for _, at in e.item.computes if at), "")
  what = s.kind if s.kind != "kernel" else next((op for op, _ in e.item.computes), e.name)
  return f"{what}{line or f' {e.name}'}"


def color(s: Span) -> str:
  return BOUND.get(s.bound, COLORS["kernel"]) if s.kind == "kernel" else COLORS.get(s.kind, "#888")


def as_drawn(spans: Sequence[Span], scale: float) -> Iterator[tuple[Span, float, float, int]]:
  """(the longest span, from, to, how many) of what is drawn as one rectangle."""
  first: tuple[Span, float, float, int] | None = None
  for s in spans:
    if first is None:
      first = s, s.start, s.end, 1
      continue
    longest, start, end, n = first
    small = min(s.seconds, end - start) * scale < NARROW or s.seconds * scale < NARROW
    if small and (s.start - end) * scale < NARROW and color(s) == color(longest):
      first = s if s.seconds > longest.seconds else longest, start, s.end, n + 1
    else:
      yield first
      first = s, s.start, s.end, 1
  if first is not None:
    yield first


def svg(t: StepTimeline, program: StepProgram) -> str:
  """The picture: for each class of devices a lane of kernels, one of communications, and the memory in use."""
  shown = t.classes[:MOST_CLASSES]
  each = 20 + 2 * (LANE + GAP) + CURVE + GAP
  height = 70 + each * len(shown) + (20 if len(t.classes) > len(shown) else 0)
  size = f'width="{WIDTH + 2 * LEFT:.0f}" height="{height:.0f}" viewBox="0 0 {WIDTH + 2 * LEFT:.0f} {height:.0f}"'
  out = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">']
  out.append('<rect width="100%" height="100%" fill="white"/>')
  out.append(text_at(LEFT, 18, f"{t.cluster.name}: {duration(t.seconds)}"))
  out += legend(t)
  for c, devices in enumerate(shown):
    out += lanes(t, program, c, f"{devices}", 60 + each * c)
  if len(t.classes) > len(shown):
    out.append(text_at(LEFT, height - 6, f"and {len(t.classes) - len(shown)} more classes of devices"))
  return "\n".join([*out, "</svg>\n"])


def text_at(x: float, y: float, said: str, more: str = "") -> str:
  return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(said)}</text>'


def legend(t: StepTimeline) -> Iterator[str]:
  kinds = dict.fromkeys(s.kind for s in t.spans if s.kind != "kernel")
  x = LEFT
  for said, fill in (*LEGEND, *((kind.replace("_", "-"), COLORS.get(kind, "#888")) for kind in kinds)):
    yield f'<rect x="{x:.1f}" y="28" width="12" height="12" fill="{fill}"/>'
    yield text_at(x + 16, 38, said)
    x += 30 + 6.6 * len(said)


def lanes(t: StepTimeline, program: StepProgram, c: int, devices: str, top: float) -> Iterator[str]:
  """What a class does, from `top` down."""
  scale = WIDTH / (t.seconds or 1.0)
  yield text_at(LEFT, top + 12, devices)
  yield f'<g class="time" transform="translate({LEFT} 0)">'
  for k, stream in enumerate((KERNELS, MOVES)):
    y = top + 20 + k * (LANE + GAP)
    yield f'<rect x="0" y="{y:.1f}" width="{WIDTH}" height="{LANE}" fill="#f4f4f4"/>'
    for s, start, end, n in as_drawn(t.of(c, stream), scale):
      x, w = start * scale, max((end - start) * scale, 0.1)
      many = f", the longest of {n}" if n > 1 else ""
      moved = f", {size_to_str(s.nbytes)} over {s.level}" if s.level else ""
      said = f"{span_label(program.entries[s.item], s)}: {duration(s.seconds)} from {duration(s.start)}{moved}{many}"
      at = f'x="{x:.2f}" y="{y:.1f}" width="{w:.2f}" height="{LANE}" fill="{color(s)}"'
      yield f"<rect {at}><title>{escape(said)}</title></rect>"
  held, y = held_at_most(t, program)[c], top + 20 + 2 * (LANE + GAP)
  yield from memory_curve(t, program, c, held, y)
  yield "</g>"
  yield text_at(LEFT + 4, y + 14, f"memory in use; the plan takes {size_to_str(held)}")


def memory_curve(t: StepTimeline, program: StepProgram, c: int, held: int, top: float) -> Iterator[str]:
  """The memory in use, under a line at what the plan takes."""
  use, thin = in_use(t, program, c), 'vector-effect="non-scaling-stroke"'
  most, scale = max([held, *(n for _, n in use)], default=0) or 1, WIDTH / (t.seconds or 1.0)
  path, last = [f"M0 {top + CURVE:.2f}"], -1.0
  for second, nbytes in use:
    if (x := second * scale) - last >= NARROW or second >= t.seconds:
      path.append(f"H{x:.2f}V{top + CURVE * (1 - nbytes / most):.2f}")
      last = x
  yield f'<path d="{"".join(path)}H{WIDTH:.2f}V{top + CURVE:.2f}Z" fill="#cfe3cf" stroke="#5a9" {thin}/>'
  y = top + CURVE * (1 - held / most)
  yield f'<path d="M0 {y:.2f}H{WIDTH}" stroke="#484" stroke-dasharray="4 3" {thin}/>'


STYLE = """body{font:14px sans-serif;margin:1.5em}table{border-collapse:collapse}td,th{padding:.2em .8em}
th{border-bottom:1px solid #888;text-align:left}#p{overflow-x:auto;border:1px solid #ccc}"""
SCRIPT = """const p=document.getElementById('p'),s=p.firstElementChild,w=s.viewBox.baseVal.width;
const h=s.viewBox.baseVal.height,left=LEFT,groups=s.querySelectorAll('g.time');let z=1;
p.addEventListener('wheel',e=>{if(!e.ctrlKey)return;e.preventDefault();
const at=e.clientX-p.getBoundingClientRect().left,x=(p.scrollLeft+at-left)/z;
z=Math.min(1000,Math.max(1,z*(e.deltaY<0?1.25:.8)));const wide=2*left+(w-2*left)*z;
s.setAttribute('width',wide);s.setAttribute('viewBox',`0 0 ${wide} ${h}`);
groups.forEach(g=>g.setAttribute('transform',`translate(${left} 0) scale(${z} 1)`));
p.scrollLeft=x*z+left-at;},{passive:false});""".replace("LEFT", str(LEFT))


def html(t: StepTimeline, program: StepProgram) -> str:
  """The page; it needs nothing beside itself."""
  seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
  count, moved = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
  for s in t.spans:
    key = span_label(program.entries[s.item], s), s.level or s.bound
    seconds[key] += s.seconds
    count[key] += 1
    moved[key] += int(s.nbytes)
  rows = [
    f"<tr><td>{escape(what)}</td><td>{escape(by)}</td><td>{count[what, by]}</td><td>{duration(n)}</td>"
    f"<td>{n / (t.seconds or 1):.1%}</td><td>{size_to_str(moved[what, by]) if moved[what, by] else ''}</td></tr>"
    for (what, by), n in sorted(seconds.items(), key=lambda x: -x[1])[:200]
  ]
  said = f"{t.cluster.name}: {duration(t.seconds)}"
  head = "<tr><th>what</th><th>by, or over</th><th>times</th><th>takes</th><th>of the step</th><th>received</th></tr>"
  return "\n".join(
    [
      f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(said)}</title>',
      f"<style>{STYLE}</style></head><body><h1>{escape(said)}</h1>",
      "<p>Ctrl and the wheel zoom into the time; what a rectangle is shows where the pointer rests.</p>",
      f'<div id="p">{svg(t, program)}</div><h2>Where the time goes</h2><table>{head}',
      *rows,
      f"</table><script>{SCRIPT}</script></body></html>\n",
    ]
  )
