// What links and forms cannot do: charts, live lists that stay short, and polls that rest while nobody looks.
"use strict";

const MOST_LIVE_ROWS = 500;
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// --- charts: <figure class="chart" data-chart="URL" data-every="MS">; the URL gives {times, series: [{label, values}], note, from_zero}

function options(data, width) {
  const axis = { stroke: color("--faint"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 } };
  const lines = data.series.map((each, index) => ({
    label: each.label, stroke: color(`--series-${(index % 4) + 1}`), width: 2, spanGaps: false,
    points: { show: data.times.length < 60 },
  }));
  return {
    width, height: 240, tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    series: [{ label: "UTC" }, ...lines], axes: [axis, { ...axis, size: 70 }], cursor: { drag: { x: true, y: false } },
    scales: data.from_zero ? { y: { range: (_, __, high) => uPlot.rangeNum(0, high > 0 ? high : 1, 0.1, true) } } : {},
  };
}

const charts = new Map();

async function draw(figure) {
  const answer = await fetch(figure.dataset.chart, { headers: { accept: "application/json" } });
  if (!answer.ok) {
    figure.querySelector("figcaption").textContent = `The figures did not come: ${answer.status}`;
    return;
  }
  const data = await answer.json();
  const columns = [data.times.map((ms) => ms / 1000), ...data.series.map((each) => each.values)];
  figure.querySelector("figcaption").textContent = data.note;
  const place = figure.querySelector(".plot");
  const known = charts.get(figure);
  if (known && known.series.length === data.series.length + 1) {
    known.setData(columns);
  } else {
    place.replaceChildren();
    charts.set(figure, new uPlot(options(data, place.clientWidth), columns, place));
  }
  figure.dataset.points = String(data.times.length);
}

function start(figure) {
  if (figure.dataset.started || typeof uPlot === "undefined") return;
  figure.dataset.started = "yes";
  const again = () => {
    if (!figure.isConnected) { charts.delete(figure); return; }
    (document.hidden ? Promise.resolve() : draw(figure).catch(() => {})).finally(() => {
      if (figure.dataset.every) setTimeout(again, Number(figure.dataset.every));
    });
  };
  again();
}

const startAll = () => document.querySelectorAll("figure[data-chart]").forEach(start);
addEventListener("resize", () => charts.forEach((chart, figure) => chart.setSize({ width: figure.querySelector(".plot").clientWidth, height: 240 })));

// --- htmx

document.addEventListener("DOMContentLoaded", startAll);
document.addEventListener("htmx:load", startAll);
document.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden && event.target.hasAttribute("data-poll")) event.preventDefault();
});
// An answer that refuses says why: it is shown as well.
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.xhr.status < 400) return;
  const said = document.getElementById("said");
  if (event.detail.xhr.getResponseHeader("content-type")?.startsWith("text/html")) {
    event.detail.shouldSwap = true;
    event.detail.isError = false;
    event.detail.target = said;
    event.detail.swapOverride = "innerHTML";
  } else {
    said.textContent = `The console answers ${event.detail.xhr.status}.`;
  }
});
document.addEventListener("htmx:sendError", () => {
  document.getElementById("said").textContent = "The console does not answer; is it running?";
});

// --- a box that ticks all boxes of its table

document.addEventListener("change", (event) => {
  if (!event.target.hasAttribute("data-all")) return;
  event.target.closest("table").querySelectorAll("tbody input[type=checkbox]").forEach((box) => { box.checked = event.target.checked; });
});

// --- live messages

let arrived = 0;
document.addEventListener("htmx:sseMessage", (event) => {
  const list = event.target.closest?.("[data-live]");
  if (!list) return;
  const seen = new Set();
  for (const row of [...list.children].reverse()) { // what a stream repeats after it broke off is dropped
    if (row.id && seen.has(row.id)) row.remove();
    seen.add(row.id);
  }
  while (list.children.length > MOST_LIVE_ROWS) list.lastElementChild.remove();
  arrived += 1;
});
function liveState(text, on) {
  const state = document.querySelector(".live-state");
  if (state && state.textContent !== text) { state.textContent = text; state.classList.toggle("on", on); }
}
document.addEventListener("htmx:sseOpen", () => liveState("live", true));
document.addEventListener("htmx:sseError", () => liveState("not connected; trying again", false));

// --- payloads are fetched when their message is opened

document.addEventListener("toggle", (event) => {
  const details = event.target;
  const inside = details.open && details.querySelector(":scope > .inside[data-from]");
  if (!inside) return;
  const from = inside.dataset.from;
  inside.removeAttribute("data-from");
  htmx.ajax("GET", from, { target: inside, swap: "innerHTML" });
}, true);
