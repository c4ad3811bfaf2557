"use strict";
(() => {
  // Plotly's own set of buttons has one that uploads the chart.
  const options = { responsive: true, displaylogo: false, plotlyServerURL: "", toImageButtonOptions: { format: "svg" },
    modeBarButtons: [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "autoScale2d", "resetScale2d"]] };
  const scheme = window.matchMedia("(prefers-color-scheme: dark)");
  const plots = [...document.querySelectorAll("script[data-plot]")].map((held) => {
    const { figure, dark } = JSON.parse(held.textContent);
    return { element: document.getElementById(held.dataset.plot), light: figure, dark: recoloured(figure, dark) };
  });

  function recoloured(figure, differences) {
    const copy = structuredClone(figure);
    for (const [path, value] of differences) {
      const last = path[path.length - 1];
      path.slice(0, -1).reduce((part, key) => part[key], copy)[last] = value;
    }
    return copy;
  }

  function draw(dark, width) {
    for (const plot of plots) {
      const { data, layout } = structuredClone(dark ? plot.dark : plot.light);
      Plotly.react(plot.element, data, { ...layout, ...(width ? { width } : { autosize: true }) }, options);
    }
  }

  draw(scheme.matches);
  scheme.addEventListener("change", () => draw(scheme.matches));

  // Paper is white, and as narrow as page.css makes it.
  window.addEventListener("beforeprint", () => draw(false, 700));
  window.addEventListener("afterprint", () => draw(scheme.matches));
})();
