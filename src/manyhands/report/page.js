"use strict";
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const th = button.closest("th"), table = th.closest("table"), body = table.tBodies[0];
    const column = th.cellIndex;
    const sign = th.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const value = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent.trim();
    const compare = (a, b) => {
      const x = value(a), y = value(b);
      if (x === "" || y === "") return (x === "") - (y === "");
      const p = Number(x), q = Number(y);
      return sign * (isNaN(p) || isNaN(q) ? x.localeCompare(y, undefined, { numeric: true }) : p - q);
    };
    for (const other of table.tHead.querySelectorAll("th")) other.removeAttribute("aria-sort");
    th.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
    body.append(...[...body.rows].sort(compare));
  });
}
for (const button of document.querySelectorAll(".more")) {
  button.addEventListener("click", () => {
    const full = document.getElementById(button.getAttribute("aria-controls")).classList.toggle("full");
    button.setAttribute("aria-expanded", full);
    button.textContent = full ? "Show fewer columns" : "Show all columns";
  });
}
const tip = document.getElementById("tip");
let lit = null;
const hide = () => { tip.style.visibility = "hidden"; lit?.classList.remove("on"); lit = null; };
const show = (hit) => {
  if (lit !== hit) {
    lit?.classList.remove("on");
    lit = hit;
    hit.classList.add("on");
    tip.textContent = hit.dataset.tip;
  }
  const box = hit.getBoundingClientRect(), own = tip.getBoundingClientRect();
  const middle = Math.min(Math.max(box.left + box.width / 2 - own.width / 2, 6), innerWidth - own.width - 6);
  const above = box.top - own.height - 8;
  tip.style.transform = `translate(${middle}px, ${above > 4 ? above : box.bottom + 8}px)`;
  tip.style.visibility = "visible";
};
for (const svg of document.querySelectorAll("svg.chart")) {
  const hits = [...svg.querySelectorAll(".hits > *")];
  for (const hit of hits) {
    hit.dataset.tip = hit.textContent;
    hit.firstChild.remove();
  }
  const far = (hit, x, y) => {
    const box = hit.getBoundingClientRect();
    return Math.hypot(Math.max(box.left - x, 0, x - box.right), Math.max(box.top - y, 0, y - box.bottom));
  };
  const seek = (event) => {
    let best = null, least = 26;
    for (const hit of hits) {
      const distance = far(hit, event.clientX, event.clientY);
      if (distance < least) { least = distance; best = hit; }
    }
    if (best) show(best); else hide();
  };
  svg.addEventListener("pointermove", seek);
  svg.addEventListener("pointerdown", seek);
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") hide();
    if (!step || !hits.length) return;
    event.preventDefault();
    const at = hits.indexOf(lit);
    show(hits[at < 0 ? 0 : (at + step + hits.length) % hits.length]);
  });
}
addEventListener("scroll", hide, { passive: true });
