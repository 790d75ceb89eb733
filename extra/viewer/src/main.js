import { GraphView } from "./graph.js";
import { Kernels } from "./kernels.js";
import { MemoryView } from "./memory.js";
import { Overview } from "./overview.js";
import { Timeline } from "./timeline.js";
import { element } from "./dom.js";
import { select } from "d3-selection";
import { unpack } from "./recording.js";

const TABS = ["overview", "graph", "kernels", "timeline", "memory"];

class Tip {
  constructor(body) { this.box = element(body, "div", "tip"); }

  show(event, fill) {
    this.box.selectAll("*").remove();
    fill(this.box);
    this.box.style("display", "block");
    const { offsetWidth: w, offsetHeight: h } = this.box.node();
    const x = event.clientX + 14 + w > window.innerWidth ? event.clientX - w - 10 : event.clientX + 14;
    this.box.style("left", `${Math.max(4, x)}px`).style("top", `${Math.max(4, Math.min(event.clientY + 14, window.innerHeight - h - 6))}px`);
  }

  hide() { this.box.style("display", "none"); }
}

class Viewer {
  constructor(recording, only) {
    this.recording = recording;
    const body = select(document.body), head = element(body, "header");
    element(head, "h1", "", recording.program);
    this.tabs = element(head, "nav");
    for (const name of TABS.filter((t) => this.has(t))) element(this.tabs, "button", "tab", name).attr("data-tab", name).on("click", () => this.open(name));
    element(head, "span", "grow");
    element(head, "button", "save", "save the recording").on("click", () => this.save());
    const main = element(body, "main");
    this.views = element(main, "div", "views");
    const side = element(main, "aside");
    this.panel = { clear: () => { side.selectAll("*").remove(); return side; } };
    this.tip = new Tip(body);
    this.made = new Map();
    const wanted = location.hash.slice(1);
    this.open(TABS.includes(wanted) && this.has(wanted) ? wanted : only ?? "overview");
  }

  has(tab) {
    const r = this.recording;
    if (tab === "graph") return r.plans.length > 0;
    if (tab === "kernels") return r.kernels.length > 0;
    if (tab === "timeline") return r.tracks.some((t) => t.events.length);
    return tab === "memory" ? r.memory.rows.length > 0 : true;
  }

  open(name) {
    this.tabs.selectAll("button").classed("on", function () { return this.dataset.tab === name; });
    this.panel.clear();
    this.tip.hide();
    for (const [other, { place }] of this.made) place.style("display", other === name ? null : "none");
    if (!this.made.has(name)) {
      const place = element(this.views, "div", `view ${name}`);
      this.made.set(name, { place, view: this.make(name, place) });
    }
    const { view } = this.made.get(name);
    view.surface?.resize();
    if (name === "timeline") view.summary();
    return view;
  }

  make(name, place) {
    const { recording, panel, tip } = this, made = {
      overview: () => new Overview(place, recording, panel, {
        move: (plan, number) => this.open("graph").focusMove(plan, number),
        kernel: (number) => this.open("kernels").open(number),
        memory: (group) => this.open("memory").tell(group),
        timeline: () => this.open("timeline"),
      }),
      graph: () => new GraphView(place, recording, panel, tip),
      kernels: () => new Kernels(place, recording, panel, tip),
      timeline: () => new Timeline(place, recording, panel, tip),
      memory: () => new MemoryView(place, recording, panel, tip),
    }[name]();
    made.openKernel = (number) => this.open("kernels").open(number);
    made.openItem = (plan, number) => this.open("graph").focusItem(plan, number);
    return made;
  }

  view(name) { return this.made.get(name)?.view; }

  save() {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(this.recording.trace)], { type: "application/json" }));
    link.download = `${this.recording.program.replace(/\.\w+$/, "")}.json`;
    link.click();
    URL.revokeObjectURL(link.href);
  }
}

const embedded = document.getElementById("recording");
unpack(embedded.textContent.trim()).then(
  (recording) => { window.viewer = new Viewer(recording, embedded.dataset.tab); },
  (problem) => { document.body.append(`This page cannot be shown: ${problem.message}. A browser of 2023 or later is needed.`); throw problem; },
);
