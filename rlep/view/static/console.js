"use strict";
// Pages work without this: it asks again for a page whose files have changed, and follows links by keys.
(() => {
  const main = () => document.querySelector("main");
  const links = "a[href], summary, button, pre, .wide";
  const fields = "input:not([type=hidden]), select";
  const replaced = (page) => {
    const open = [...main().querySelectorAll("details")].map((one) => one.open);
    const scrolled = [...main().querySelectorAll("pre, .wide")].map((one) => [one.scrollLeft, one.scrollTop]);
    const typed = new Map([...main().querySelectorAll(fields)].map((one) => [one.name, one.value]));
    const at = main().contains(document.activeElement) ? document.activeElement : null;
    const like = () => [...main().querySelectorAll(links)].filter((one) => one.getAttribute("href") === at.getAttribute("href"));
    const which = at ? like().indexOf(at) : -1;
    main().replaceWith(page.querySelector("main"));
    main().querySelectorAll("details").forEach((one, number) => { one.open = Boolean(open[number]); });
    main().querySelectorAll(fields).forEach((one) => { if (typed.get(one.name)) one.value = typed.get(one.name); });
    main().querySelectorAll("pre, .wide").forEach((one, number) => { if (scrolled[number]) one.scrollTo(...scrolled[number]); });
    if (which >= 0) like()[which]?.focus({ preventScroll: true });
  };

  const follow = (address) => {
    const away = document.getElementById("away");
    let source = null;
    let failures = 0;
    let stale = false;
    let asked = false;
    const say = (text) => { away.textContent = text; away.hidden = !text; };
    const typing = () => Boolean(document.activeElement?.matches("main input, main select"));
    const refetch = async () => {
      stale = true;
      if (asked || document.hidden || typing()) return;
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
        if (closed) say("The console was started again, or has too many open pages: reload. What it last read is below.");
        else if (failures > 1) say("The console does not answer. What it last read is below; the run does not depend on it.");
      };
    };
    // A browser opens few connections to one address: pages that nobody sees give theirs back.
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) { source?.close(); source = null; } else if (!source) listen();
    });
    document.addEventListener("focusout", () => { if (stale) setTimeout(refetch); });
    if (!document.hidden) listen();
  };
  if (document.body.dataset.live) follow(document.body.dataset.live);

  const keys = { j: "next", k: "prev", ArrowRight: "next", ArrowLeft: "prev", u: "up" };
  document.addEventListener("keydown", (event) => {
    const relation = keys[event.key];
    if (!relation || event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input, textarea, select")) return;
    if (event.key.startsWith("Arrow") && event.target.matches("pre, .wide")) return; // they scroll
    const found = document.querySelectorAll(`a[rel="${relation}"]`);
    found[relation === "up" ? found.length - 1 : 0]?.click();
  });
})();
