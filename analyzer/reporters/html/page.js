"use strict";
// Tables marked "sortable" can be sorted by any column and filtered; without this script they are plain tables.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const headers = Array.from(table.tHead.rows[0].cells);

  const key = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
  };
  const compare = (a, b, column) => {
    const [x, y] = [key(a, column), key(b, column)];
    if (x !== null && y !== null) return x - y;
    return a.cells[column].textContent.localeCompare(b.cells[column].textContent);
  };
  // What is not known comes last, whichever way the column is sorted.
  const unknown = (row, column) => ["", "–"].includes(row.cells[column].textContent.trim());

  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => {
      const numbers = rows.some((row) => key(row, column) !== null);
      const now = header.getAttribute("aria-sort");
      const descending = now === null ? numbers : now === "ascending";
      for (const other of headers) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const sorted = Array.from(rows).sort((a, b) => {
        const last = unknown(a, column) - unknown(b, column);
        return last || (descending ? -1 : 1) * compare(a, b, column);
      });
      body.append(...sorted);
    });
  });

  const tools = document.querySelector(`.tools[data-for="${table.id}"]`);
  if (tools === null) continue;
  const labelled = (text, field) => {
    const label = document.createElement("label");
    label.append(text, " ", field);
    return label;
  };
  const words = document.createElement("input");
  words.type = "search";
  words.placeholder = "all_gather bf16";
  const dims = document.createElement("select");
  for (const name of ["all", ...new Set(rows.map((row) => row.dataset.dim))]) {
    dims.append(new Option(name, name === "all" ? "" : name));
  }
  const count = document.createElement("output");
  const show = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !(wanted.every((word) => text.includes(word)) && (!dims.value || row.dataset.dim === dims.value));
      shown += row.hidden ? 0 : 1;
    }
    count.value = `${shown} of ${rows.length} rows`;
  };
  words.addEventListener("input", show);
  dims.addEventListener("change", show);
  tools.append(labelled("Filter", words), labelled("Dimension", dims), count);
  tools.hidden = false;
  show();
}
