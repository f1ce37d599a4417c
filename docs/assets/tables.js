// Names the column in each cell of a wide table, so that its rows can be stacked on a phone (tables.css).
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
    const titles = Array.from(table.querySelectorAll("thead th"), (cell) => cell.textContent.trim());
    if (titles.length < 3) continue;
    table.dataset.stacked = "";
    for (const row of table.tBodies[0].rows) {
      Array.from(row.cells).forEach((cell, column) => (cell.dataset.title = titles[column] ?? ""));
    }
  }
});
