// Draws the curves of a page, and keeps the page as the server describes it: the server sends the
// sections that have changed, and what is equal in them stays, with its focus and its selection.

const SILENT_SECONDS = 20;
const RETRY_SECONDS = 2;
const FROM_ZERO = { min: { pad: 0, soft: 0, mode: 1 }, max: { pad: 0.1, soft: 0, mode: 0 } };
const charts = new Map();

function duration(seconds) {
  const whole = Math.round(seconds);
  const two = (number) => String(number).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

function options(holder, data) {
  const style = getComputedStyle(holder);
  const axis = { stroke: style.color, grid: { stroke: style.getPropertyValue("--line"), width: 1 } };
  const numbers = (plot, values) => values.map((value) => (value === null ? "" : value.toLocaleString("en")));
  const x = data.isOverTime ? (plot, values) => values.map(duration) : numbers;
  const curves = data.curves.map((curve, index) => ({
    stroke: style.getPropertyValue(`--curve-${index % 8}`),
    width: 2,
    spanGaps: true,
    points: { show: curve.x.length < 50 && !data.isOverTime, size: 4 },
    ...(data.isOverTime && { paths: uPlot.paths.stepped({ align: 1 }) }),
  }));
  return {
    width: holder.clientWidth || 300,
    height: holder.clientHeight || 190,
    legend: { show: false },
    cursor: { y: false },
    scales: { x: { time: false }, y: data.isFromZero ? { range: FROM_ZERO } : {} },
    axes: [{ ...axis, values: x, size: 32 }, { ...axis, values: numbers, size: 70 }],
    series: [{}, ...curves],
  };
}

function draw(holder) {
  if (!holder.isConnected) return;
  const before = charts.get(holder);
  if (before?.text === holder.dataset.chart) return;
  const text = holder.dataset.chart;
  const data = JSON.parse(text);
  const columns = uPlot.join(data.curves.map(({ x, y }) => [x, y]));
  const kind = `${data.isOverTime} ${data.isFromZero} ${data.curves.map(({ x }) => x.length < 50)}`;
  if (before?.kind === kind) {
    before.text = text;
    before.plot.setData(columns);
    return;
  }
  before?.plot.destroy();
  charts.set(holder, { text, kind, plot: new uPlot(options(holder, data), columns, holder) });
  if (!before) resizes.observe(holder);
}

function drawAll() {
  for (const holder of charts.keys()) {
    if (!holder.isConnected) {
      charts.get(holder).plot.destroy();
      resizes.unobserve(holder);
      charts.delete(holder);
    }
  }
  // Each by itself, so that the page answers between them.
  document.querySelectorAll("[data-chart]").forEach((holder) => setTimeout(draw, 0, holder));
}

const resizes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const { plot } = charts.get(target) ?? {};
    if (plot && target.clientWidth && plot.width !== target.clientWidth) {
      plot.setSize({ width: target.clientWidth, height: target.clientHeight });
    }
  }
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of charts.values()) chart.text = chart.kind = "";
  drawAll();
});

function become(old, fresh) {
  if (old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
  } else if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
  } else {
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    if (!old.hasAttribute("data-chart")) childrenBecome(old, fresh);
  }
}

function childrenBecome(old, fresh) {
  const before = [...old.childNodes];
  const after = [...fresh.childNodes];
  after.forEach((child, index) => (index < before.length ? become(before[index], child) : old.append(child)));
  before.slice(after.length).forEach((child) => child.remove());
}

function show({ title, sections }) {
  document.title = title;
  for (const [id, html] of Object.entries(sections)) {
    const fresh = document.createElement("template");
    fresh.innerHTML = html;
    const old = document.getElementById(id);
    if (!old) return location.reload(); // The server is of another version than the page.
    const log = old.querySelector("[data-follow]");
    const isAtEnd = log && log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
    childrenBecome(old, fresh.content);
    if (isAtEnd) log.scrollTop = log.scrollHeight;
  }
  drawAll();
}

function follow(url) {
  const notice = document.getElementById("connection");
  let source, timer;
  const wait = (seconds, next) => {
    clearTimeout(timer);
    timer = setTimeout(next, seconds * 1000);
  };
  const lose = () => {
    source.close();
    notice.textContent ||= `The connection was lost at ${new Date().toLocaleTimeString()}. What is below is older. Trying again ...`;
    wait(RETRY_SECONDS, open);
  };
  const open = () => {
    source = new EventSource(url);
    source.onerror = lose;
    source.onmessage = (message) => {
      wait(SILENT_SECONDS, lose);
      notice.textContent = "";
      show(JSON.parse(message.data));
    };
    wait(SILENT_SECONDS, lose);
  };
  // A browser has six connections to a server for all of its tabs.
  const openIfVisible = () => {
    clearTimeout(timer);
    source?.close();
    if (!document.hidden) open();
  };
  document.addEventListener("visibilitychange", openIfVisible);
  openIfVisible();
}

drawAll();
document.querySelectorAll("[data-follow]").forEach((log) => (log.scrollTop = log.scrollHeight));
if (document.body.dataset.stream) follow(document.body.dataset.stream);
