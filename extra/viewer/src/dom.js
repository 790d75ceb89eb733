// Small things for building the page.
import { select } from "d3-selection";

export const element = (parent, tag, look = "", text = "") => {
  const made = parent.append(tag);
  if (look) made.attr("class", look);
  if (text !== "") made.text(text);
  return made;
};

// a table; columns: [heading, cell of a row (text), class]; `act` is called with a row that is clicked
export function table(parent, columns, rows, act, name = "") {
  const t = element(parent, "table", name), head = element(element(t, "thead"), "tr"), body = element(t, "tbody");
  for (const [title, , look] of columns) element(head, "th", look ?? "", title);
  for (const row of rows) {
    const tr = element(body, "tr", act ? "act" : "");
    if (act) tr.attr("tabindex", 0).on("click", () => act(row)).on("keydown", (e) => e.key === "Enter" && act(row));
    for (const [, cell, look] of columns) {
      const td = element(tr, "td", look ?? ""), said = cell(row);
      if (typeof said === "object" && said !== null) td.node().append(said);
      else td.text(said);
    }
  }
  return t;
}

// a user's line with those around it
export function code(parent, recording, line) {
  if (line < 0) return;
  const [file, number, texts] = recording.lines[line], around = recording.around;
  const block = element(parent, "div", "code");
  element(block, "div", "file", `${file}:${number}`);
  texts.forEach((text, i) => {
    const at = number - around + i;
    if (at < 1 || (text === "" && i !== around)) return;
    const row = element(block, "div", i === around ? "line here" : "line");
    element(row, "span", "number", String(at));
    element(row, "span", "", text);
  });
}

export function facts(parent, rows) {
  const list = element(parent, "dl");
  for (const [name, value] of rows) {
    if (value === "" || value === null || value === undefined) continue;
    element(list, "dt", "", name);
    element(list, "dd", "", value);
  }
}

// a canvas that fills its parent, sharp on any screen
export class Surface {
  constructor(parent, draw) {
    this.canvas = parent.append("canvas").node();
    this.context = this.canvas.getContext("2d");
    this.draw = draw;
    this.asked = false;
    new ResizeObserver(() => this.resize()).observe(parent.node());
    this.resize();
  }

  resize() {
    const { clientWidth: w, clientHeight: h } = this.canvas.parentElement, ratio = window.devicePixelRatio || 1;
    if (w === this.width && h === this.height) return;
    Object.assign(this, { width: w, height: h, ratio });
    if (w > 0) this.resized?.();
    this.canvas.width = w * ratio;
    this.canvas.height = h * ratio;
    this.canvas.style.width = `${w}px`;
    this.canvas.style.height = `${h}px`;
    this.paint();
  }

  // once a frame, however often it is asked for
  paint() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      if (this.width > 0) this.now();
    });
  }

  now() {
    this.context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    this.context.clearRect(0, 0, this.width, this.height);
    this.draw(this.context, this.width, this.height);
  }
}

export const root = (id) => select(document.getElementById(id));
