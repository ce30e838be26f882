// Values under the pointer, in every chart whose horizontal axis counts the same.
const charts = [...document.querySelectorAll("figure")].map(figure => ({
  svg: figure.querySelector("svg"),
  cursor: figure.querySelector(".cursor"),
  output: figure.querySelector("output"),
  ...JSON.parse(figure.querySelector("script").textContent),
}));
const shown = v => v === null ? "–" :
  v !== 0 && Math.abs(v) < 1e-3 ? v.toExponential(2) :
  Math.abs(v) >= 1e4 ? grouped(v) : String(+v.toPrecision(5));
function grouped(v) { return Math.round(v).toLocaleString("en"); }
function nearest(points, step) {
  let low = 0, high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < step) low = middle; else high = middle;
  }
  return step - points[low]?.[0] < points[high]?.[0] - step ? points[low] : points[high];
}
function show(step, shared) {
  for (const chart of charts) {
    const { cursor, output, unit, legend, axis, tokens, curves } = chart;
    if (unit !== shared) continue;
    const [low, high, from, to] = axis;
    const values = curves.filter(({ line, points }) => !line || step <= points.at(-1)?.[0])
      .map(({ name, points }) => [name, nearest(points, step)]).filter(([, point]) => point);
    // A chart with a legend names all its values; the others show one, smoothed where it jitters.
    const named = legend ? values.filter(([name]) => name) : [];
    const texts = named.length
      ? named.map(([name, [, value]]) =>
          name.replace("validation: ", "").replace(/ over .*/, "") + " " + shown(value))
      : values.filter(([name]) => !name).slice(-1).map(([, [, value]]) => shown(value));
    if (legend && tokens.length)
      texts.unshift(grouped(nearest(tokens, step)[1]) + " tokens");
    const place = unit === "step" ? "step " + grouped(step) : grouped(step) + " " + unit;
    output.textContent = [place, ...texts].join(" · ");
    const x = from + (step - low) / (high - low) * (to - from);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    cursor.style.visibility = step < low ? "hidden" : "visible";
  }
}
function hide() {
  for (const { cursor, output } of charts) {
    cursor.style.visibility = "hidden";
    output.textContent = "";
  }
}
for (const { svg, unit, axis: [low, high, from, to], curves } of charts) {
  const end = ({ points }) => points.at(-1)?.[0] ?? 0;
  const longest = curves.reduce((a, b) => end(b) > end(a) ? b : a);
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    const share = Math.min(1, Math.max(0, (x - from) / (to - from)));
    const point = nearest(longest.points, low + share * (high - low));
    if (point) show(point[0], unit);
  });
  svg.addEventListener("pointerleave", hide);
}
