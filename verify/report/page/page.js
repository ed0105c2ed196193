"use strict";
(() => {
  const $ = (s, of) => (of || document).querySelector(s);
  const all = (s, of) => Array.from((of || document).querySelectorAll(s));
  const root = document.documentElement;

  // Theme: what the system says, then the other, then back.
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const theme = () => { root.dataset.theme = dark() ? "light" : "dark"; };
  $("#theme").addEventListener("click", theme);

  // Copy: the clipboard where it may be used, else the old way.
  const said = (text) => { const b = $("#copy"); b.textContent = text; setTimeout(() => { b.textContent = "copy for issue"; }, 1500); };
  const copy = () => {
    const area = $("#issue");
    const old = () => {
      area.closest("details").open = true;
      area.focus(); area.select();
      let ok = false;
      try { ok = document.execCommand("copy"); } catch (e) { ok = false; }
      said(ok ? "copied" : "press Ctrl+C");
    };
    if (navigator.clipboard && window.isSecureContext) navigator.clipboard.writeText(area.value).then(() => said("copied"), old); else old();
  };
  $("#copy").addEventListener("click", copy);

  // The grid: a cursor that follows the pointer and the arrow keys.
  const grid = $("svg.map");
  if (grid) {
    const steps = [];
    for (const part of grid.dataset.steps.split(",")) {
      const [a, b] = part.split("-").map(Number);
      for (let s = a; s <= (b === undefined ? a : b); s++) steps.push(s);
    }
    const stages = grid.dataset.stages.split(","), rows = grid.dataset.verdicts.split(",");
    const names = JSON.parse(grid.dataset.names), cursor = $(".at", grid), out = $("#grid-readout");
    let x = Math.max(0, Number(grid.dataset.first)), y = Math.max(0, Number(grid.dataset.row));
    const show = () => {
      cursor.setAttribute("x", x); cursor.setAttribute("y", y); cursor.setAttribute("width", 1);
      out.textContent = "step " + steps[x] + ", " + stages[y] + ": " + (names[rows[y][x]] || "nothing judged");
    };
    grid.addEventListener("pointermove", (e) => {
      const box = grid.getBoundingClientRect();
      x = Math.min(steps.length - 1, Math.max(0, Math.floor((e.clientX - box.left) / box.width * steps.length)));
      y = Math.min(stages.length - 1, Math.max(0, Math.floor((e.clientY - box.top) / box.height * stages.length)));
      show();
    });
    grid.addEventListener("keydown", (e) => {
      const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[e.key];
      if (!by) return;
      e.preventDefault();
      x = Math.min(steps.length - 1, Math.max(0, x + by[0])); y = Math.min(stages.length - 1, Math.max(0, y + by[1]));
      show();
    });
    grid.addEventListener("focus", show);
  }

  // Heat maps: the numbers of a token under the pointer or the cursor.
  for (const map of all(".heat")) {
    const cells = all("i", map), out = $("#" + map.dataset.readout);
    let at = -1;
    const show = (i) => {
      if (at >= 0) cells[at].classList.remove("on");
      at = i;
      const c = cells[i], v = c.dataset.v;
      c.classList.add("on");
      const word = c.textContent.trim() ? " " + c.textContent : "";
      out.textContent = c.parentNode.dataset.row + " " + c.dataset.t + word + ": " + (v || "not judged") + (c.classList.contains("m") ? "; outside the mask" : "");
    };
    map.addEventListener("pointerover", (e) => { if (e.target.tagName === "I") show(cells.indexOf(e.target)); });
    map.addEventListener("focus", () => { if (at < 0) show(Math.max(0, cells.findIndex((c) => c.classList.contains("h5")))); });
    map.addEventListener("keydown", (e) => {
      const rows = all("p", map), here = cells[Math.max(0, at)], row = rows.indexOf(here.parentNode);
      let next = null;
      if (e.key === "ArrowRight") next = cells[at + 1];
      if (e.key === "ArrowLeft") next = cells[at - 1];
      if (e.key === "ArrowDown" && rows[row + 1]) next = $("i", rows[row + 1]);
      if (e.key === "ArrowUp" && rows[row - 1]) next = $("i", rows[row - 1]);
      if (!next) return;
      e.preventDefault();
      show(cells.indexOf(next));
      next.scrollIntoView({ block: "nearest" });
    });
  }

  // Keys of the page.
  const stops = all("[data-stop]");
  let stop = -1;
  const go = (by) => {
    if (!stops.length) return;
    stop = Math.min(stops.length - 1, Math.max(0, stop + by));
    stops[stop].focus();
    stops[stop].scrollIntoView({ block: "start" });
  };
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || /^(TEXTAREA|INPUT)$/.test(e.target.tagName)) return;
    const act = { j: () => go(1), k: () => go(-1), c: copy, t: theme, o: () => { const d = all("details"), open = d.some((x) => !x.open); d.forEach((x) => { x.open = open; }); } }[e.key];
    if (act) { e.preventDefault(); act(); }
  });
})();
