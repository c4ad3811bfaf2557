"use strict";
(() => {
  const wide = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"],
    toImageButtonOptions: { format: "svg" } };
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
      Plotly.react(plot.element, data, { ...layout, ...(width ? { width } : { autosize: true }) }, wide);
    }
  }

  draw(scheme.matches);
  scheme.addEventListener("change", () => draw(scheme.matches));

  // Paper is white and narrow; what is folded on the screen is printed.
  const folded = [...document.querySelectorAll("details.print, .ranking details")];
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = folded.filter((part) => !part.open);
    opened.forEach((part) => { part.open = true; });
    draw(false, 990);
  });
  window.addEventListener("afterprint", () => {
    opened.forEach((part) => { part.open = false; });
    draw(scheme.matches);
  });
})();
