"use strict";
// Pages work without this: it only asks again for a page whose files have changed, and follows links by keys.
(() => {
  const refetch = async () => {
    const answer = await fetch(location.href, { credentials: "same-origin" });
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = [...document.querySelectorAll("details")].map((one) => one.open);
    document.querySelector("main").replaceWith(page.querySelector("main"));
    document.querySelectorAll("details").forEach((one, at) => { one.open = Boolean(open[at]); });
  };
  const live = document.body.dataset.live;
  if (live) {
    let asked = false;
    new EventSource(live).addEventListener("changed", async () => {
      if (asked || document.hidden) return;
      asked = true;
      try { await refetch(); } finally { asked = false; }
    });
    document.addEventListener("visibilitychange", () => { if (!document.hidden) refetch(); });
  }
  const keys = { j: "next", k: "prev", ArrowRight: "next", ArrowLeft: "prev", u: "up" };
  document.addEventListener("keydown", (event) => {
    const relation = keys[event.key];
    if (!relation || event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input, textarea, pre")) return;
    document.querySelector(`a[rel="${relation}"]`)?.click();
  });
})();
