// Draws each figure when it comes near the window. A figure with frames gets a slider of the page
// in place of plotly's own, which neither the keyboard nor a screen reader can reach.
(() => {
  const here = document.currentScript.src.replace(/figures\.js.*$/, "");
  const AT_ONCE = { mode: "immediate", transition: { duration: 0 }, frame: { duration: 0, redraw: true } };
  let loading = null;

  function plotly() {
    loading ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = here + "plotly.js";
      script.onload = () => resolve(window.Plotly);
      script.onerror = reject;
      document.head.append(script);
    });
    return loading;
  }

  async function draw(figure) {
    const { data, layout, frames } = JSON.parse(figure.querySelector("script").textContent);
    const canvas = figure.querySelector(".canvas");
    const [slider] = layout.sliders ?? [];
    delete layout.sliders;
    delete layout.width;
    // A long title does not fit on a phone.
    if (canvas.clientWidth < 420 && layout.title) layout.title.font = { ...layout.title.font, size: 13 };
    const config = { responsive: true, displayModeBar: false };
    const Plotly = await plotly();
    await Plotly.newPlot(canvas, { data, layout: { ...layout, autosize: true }, frames, config });
    if (slider) addSlider(canvas, slider, layout.meta ?? {}, Plotly);
    figure.classList.add("drawn");
  }

  function addSlider(canvas, slider, meta, Plotly) {
    const input = element("input", { type: "range", min: 0, max: slider.steps.length - 1, step: 1 });
    input.value = slider.active ?? 0;
    const value = element("output");
    const label = element("label", { className: "slider" });
    label.append(element("span", { textContent: slider.currentvalue.prefix }), input, value);
    const readOut = element("div", { className: "read-out" });
    const show = () => {
      const step = slider.steps[input.value];
      value.textContent = step.label;
      input.setAttribute("aria-valuetext", step.label);
      readOut.innerHTML = meta.read_outs?.[input.value] ?? "";
    };
    input.addEventListener("input", () => {
      show();
      Plotly.animate(canvas, [slider.steps[input.value].args[0][0]], AT_ONCE)
        .then(() => rescale(canvas, Plotly))
        .then(() => describe(canvas));
    });
    show();
    canvas.before(label);
    canvas.after(readOut);
    if (meta.fixed) readOut.after(element("p", { className: "fixed", textContent: meta.fixed }));
  }

  // A frame leaves even those axes as they are that the figure's data shall set.
  function rescale(canvas, Plotly) {
    const layout = canvas._fullLayout;
    const axes = Object.keys(layout).filter((name) => /^[xy]axis/.test(name) && layout[name].autorange);
    return Plotly.relayout(canvas, Object.fromEntries(axes.map((name) => [`${name}.autorange`, true])));
  }

  // What the figure shows now, for those who do not see it.
  function describe(canvas) {
    const { text = "", subtitle } = canvas.layout.title ?? {};
    const words = new DOMParser().parseFromString(`${text}. ${subtitle?.text ?? ""}`.replaceAll("<br>", " "), "text/html");
    canvas.setAttribute("aria-label", words.body.textContent);
  }

  function element(name, properties = {}) {
    return Object.assign(document.createElement(name), properties);
  }

  const watcher = new IntersectionObserver(
    (entries) => {
      for (const entry of entries.filter((e) => e.isIntersecting)) {
        watcher.unobserve(entry.target);
        draw(entry.target);
      }
    },
    { rootMargin: "800px" },
  );
  document.querySelectorAll("figure.plot").forEach((figure) => watcher.observe(figure));
})();
