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

const SPACE = 16, HEAD = 22, LINE = 15;
const broken = (text, most) => text.split(/\s+/).reduce((lines, word) => {
  const last = lines[lines.length - 1];
  if (last && last.length + 1 + word.length <= most) lines[lines.length - 1] = `${last} ${word}`;
  else if (word) lines.push(word);
  return lines;
}, []);
const made = (name) => document.createElementNS(document.querySelector("svg.chart").namespaceURI, name);
const written = (text, x, y, style) => {
  const line = made("text");
  line.setAttribute("x", x);
  line.setAttribute("y", y);
  line.setAttribute("style", style);
  line.textContent = text;
  return line;
};
// The picture as a file of its own: its title and the setting above it, colours as they are now.
const alone = (figure) => {
  const chart = figure.querySelector("svg.chart"), [, , width, height] = chart.getAttribute("viewBox").split(" ").map(Number);
  const title = broken(figure.querySelector("h3").textContent, width / 9);
  const setting = broken(document.querySelector("main").dataset.setting, width / 5.6);
  const top = SPACE + HEAD * title.length + LINE * setting.length, colours = getComputedStyle(document.documentElement);
  const svg = made("svg");
  const [full, tall] = [width + 2 * SPACE, top + height + 2 * SPACE];
  for (const [name, value] of Object.entries({ viewBox: `0 0 ${full} ${tall}`, width: full, height: tall, "font-family": "system-ui, sans-serif" })) svg.setAttribute(name, value);
  const paper = made("rect");
  for (const [name, value] of Object.entries({ width: full, height: tall, style: "fill: var(--paper)" })) paper.setAttribute(name, value);
  svg.append(paper);
  title.forEach((line, i) => svg.append(written(line, SPACE, SPACE + HEAD * (i + 0.7), "font-size: 17px; font-weight: 600; fill: var(--ink)")));
  setting.forEach((line, i) => svg.append(written(line, SPACE, SPACE + HEAD * title.length + LINE * (i + 0.7), "font-size: 11px; fill: var(--muted)")));
  const inner = chart.cloneNode(true);
  inner.querySelector(".hits")?.remove();
  for (const name of ["class", "tabindex", "role"]) inner.removeAttribute(name);
  for (const [name, value] of Object.entries({ x: SPACE, y: top + SPACE, width, height, overflow: "visible" })) inner.setAttribute(name, value);
  svg.append(inner);
  const text = new XMLSerializer().serializeToString(svg);
  return { text: text.replace(/var\((--[\w-]+)\)/g, (_, name) => colours.getPropertyValue(name).trim()), full, tall };
};
const handOver = (blob, name) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};
for (const button of document.querySelectorAll("[data-save]")) {
  button.addEventListener("click", () => {
    const figure = button.closest("figure"), { text, full, tall } = alone(figure);
    if (button.dataset.save === "svg") {
      handOver(new Blob([text], { type: "image/svg+xml" }), `${figure.id}.svg`);
      return;
    }
    const image = new Image();
    image.addEventListener("load", () => {
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [2 * full, 2 * tall];
      canvas.getContext("2d").drawImage(image, 0, 0, 2 * full, 2 * tall);
      canvas.toBlob((blob) => handOver(blob, `${figure.id}.png`), "image/png");
    });
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  });
}
addEventListener("beforeprint", () => { for (const rest of document.querySelectorAll(".rest")) rest.open = true; });
addEventListener("afterprint", () => { for (const rest of document.querySelectorAll(".rest")) rest.open = false; });
