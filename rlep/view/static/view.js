"use strict";
// Pages work without this: it asks again for a page whose files have changed, follows links by keys, and reads charts.
(() => {
  const main = () => document.querySelector("main");
  const links = "a[href], summary, button, pre, .text, .wide";
  const fields = "input:not([type=hidden]), select";
  const replaced = (page) => {
    const open = [...main().querySelectorAll("details")].map((one) => one.open);
    const scrolled = [...main().querySelectorAll("pre, .text, .wide")].map((one) => [one.scrollLeft, one.scrollTop]);
    const at = main().contains(document.activeElement) ? document.activeElement : null;
    const like = () => [...main().querySelectorAll(links)].filter((one) => one.getAttribute("href") === at.getAttribute("href"));
    const which = at ? like().indexOf(at) : -1;
    main().replaceWith(page.querySelector("main"));
    main().querySelectorAll("details").forEach((one, number) => { if (number in open) one.open = open[number]; });
    main().querySelectorAll("pre, .text, .wide").forEach((one, number) => { if (scrolled[number]) one.scrollTo(...scrolled[number]); });
    if (which >= 0) like()[which]?.focus({ preventScroll: true });
  };

  const follow = (address) => {
    const away = document.getElementById("away");
    let source = null;
    let failures = 0;
    let stale = false;
    let asked = false;
    const say = (text) => { away.textContent = text; away.hidden = !text; };
    const busy = () => Boolean(document.activeElement?.matches("main input, main select")) || Boolean(document.querySelector(".tip"));
    const refetch = async () => {
      stale = true;
      if (asked || document.hidden || busy()) return;
      asked = true;
      try {
        while (stale) {
          stale = false;
          const answer = await fetch(location.href, { credentials: "same-origin" });
          if (answer.ok) replaced(new DOMParser().parseFromString(await answer.text(), "text/html"));
        }
      } catch { stale = true; } finally { asked = false; } // the stream fails, too, and says so
    };
    const listen = () => {
      source = new EventSource(address);
      source.addEventListener("changed", refetch);
      source.onopen = () => { failures = 0; say(""); };
      source.onerror = () => {
        failures += 1;
        const closed = source.readyState === EventSource.CLOSED;
        if (closed) say("The console was started again, or has too many open pages: open the address that it printed. What it last read is below.");
        else if (failures > 1) say("The console does not answer. What it last read is below; the run does not depend on it.");
      };
    };
    // A browser opens few connections to one address: pages that nobody sees give theirs back.
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) { source?.close(); source = null; } else if (!source) listen();
    });
    const again = () => { if (stale) setTimeout(refetch); };
    document.addEventListener("focusout", again);
    document.addEventListener("pointerout", again);
    if (!document.hidden) listen();
  };
  if (document.body.dataset.live) follow(document.body.dataset.live);

  // Charts: a crosshair with the values, and a range by dragging where the page has a form for one.
  const WIDE = 720, LEFT = 66, RIGHT = 706, TOP = 12, BOTTOM = 274;
  const make = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const place = (svg, event) => {
    const box = svg.getBoundingClientRect();
    return Math.min(RIGHT, Math.max(LEFT, ((event.clientX - box.left) / box.width) * WIDE));
  };
  const cleared = (figure) => figure.querySelectorAll(".tip, .cross, .drag, .point").forEach((one) => one.remove());
  const nearest = (points, x) => points.reduce((best, one) => (Math.abs(one[0] - x) < Math.abs(best[0] - x) ? one : best));
  const drawn = (svg, x, from) => {
    const figure = svg.closest("figure");
    cleared(figure);
    const curves = JSON.parse(svg.dataset.hover).filter((one) => one.points.length);
    if (!curves.length) return;
    const all = curves.map((one) => nearest(one.points, x));
    const at = nearest(all, x);
    svg.append(make("line", { class: "cross", x1: at[0], x2: at[0], y1: TOP, y2: BOTTOM }));
    if (from !== null) svg.append(make("rect", { class: "drag", x: Math.min(from, x), width: Math.abs(x - from), y: TOP, height: BOTTOM - TOP }));
    const tip = document.createElement("div");
    tip.className = "tip";
    const line = (text, style) => {
      const one = document.createElement("p");
      one.textContent = text;
      one.className = style;
      tip.append(one);
    };
    line(`${svg.dataset.across} ${at[2]}`, "faint");
    curves.forEach((curve, number) => {
      const point = all[number];
      if (Math.abs(point[0] - at[0]) > 12) return;
      svg.append(make("circle", { class: `point ${curve.style}`, cx: point[0], cy: point[1], r: 4 }));
      line(`${curve.label}: ${point[3]}`, curve.style);
    });
    figure.append(tip);
    const box = svg.getBoundingClientRect(), frame = figure.getBoundingClientRect();
    const cross = box.left - frame.left + (at[0] / WIDE) * box.width;
    tip.style.left = `${cross > frame.width / 2 ? Math.max(0, cross - tip.offsetWidth - 12) : cross + 12}px`;
    tip.style.top = `${box.top - frame.top + 8}px`;
  };
  let dragged = null;
  const chart = (event) => event.target.closest?.("svg[data-hover]");
  const form = () => document.querySelector("form.look");
  const range = (low, high) => {
    const chosen = form();
    chosen.elements.low.value = low;
    chosen.elements.high.value = high;
    chosen.requestSubmit();
  };
  document.addEventListener("pointermove", (event) => {
    const svg = chart(event);
    if (svg) drawn(svg, place(svg, event), dragged && dragged.svg === svg ? dragged.x : null);
    else document.querySelectorAll("figure:has(.tip)").forEach(cleared);
  });
  document.addEventListener("pointerdown", (event) => {
    const svg = chart(event);
    dragged = svg && svg.dataset.zoom && form() ? { svg, x: place(svg, event) } : null;
    if (dragged) event.preventDefault();
  });
  document.addEventListener("pointerup", (event) => {
    const begun = dragged;
    dragged = null;
    const svg = begun && chart(event);
    if (!svg || svg !== begun.svg) return;
    const ends = [begun.x, place(svg, event)].sort((a, b) => a - b);
    if (ends[1] - ends[0] < 8) return;
    const low = Number(svg.dataset.low), high = Number(svg.dataset.high);
    range(...ends.map((one) => Number((low + ((one - LEFT) / (RIGHT - LEFT)) * (high - low)).toPrecision(6))));
  });
  document.addEventListener("dblclick", (event) => { if (chart(event)?.dataset.zoom && form()) range("", ""); });
  document.addEventListener("change", (event) => { if (event.target.closest("form.look")) event.target.form.requestSubmit(); });

  // Light and dark follow the system until somebody chooses.
  const root = document.documentElement;
  const themes = ["", "light", "dark"];
  const themed = (theme) => { if (theme) root.dataset.theme = theme; else delete root.dataset.theme; };
  let theme = "";
  try { theme = localStorage.getItem("rlep-theme") ?? ""; } catch { /* a file may have no storage */ }
  if (themes.includes(theme)) themed(theme);
  const button = document.getElementById("theme");
  if (button) {
    const name = () => { button.textContent = `Theme: ${root.dataset.theme ?? "system"}`; };
    button.hidden = false;
    name();
    button.addEventListener("click", () => {
      const next = themes[(themes.indexOf(root.dataset.theme ?? "") + 1) % themes.length];
      themed(next);
      name();
      try { localStorage.setItem("rlep-theme", next); } catch { /* see above */ }
    });
  }

  const keys = { j: "next", k: "prev", ArrowRight: "next", ArrowLeft: "prev", u: "up" };
  document.addEventListener("keydown", (event) => {
    const relation = keys[event.key];
    if (!relation || event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input, textarea, select")) return;
    if (event.key.startsWith("Arrow") && event.target.matches("pre, .text, .wide")) return; // they scroll
    const found = document.querySelectorAll(`a[rel="${relation}"]`);
    found[relation === "up" ? found.length - 1 : 0]?.click();
  });
})();
