// The console's own script: the CSRF header of htmx, errors shown in their place, the SQL editor.
"use strict";

document.addEventListener("htmx:configRequest", (event) => {
  event.detail.headers["X-CSRF-Token"] = document.body.dataset.csrf || "";
});
// A refusal is an answer, too: show it where the answer would be.
document.addEventListener("htmx:beforeSwap", (event) => {
  const code = event.detail.xhr.status;
  if (code >= 400 && code !== 401) {
    event.detail.shouldSwap = true;
    event.detail.isError = false;
  }
});
document.addEventListener("htmx:sendError", (event) => {
  const target = event.detail.target;
  if (!target) return;
  const line = document.createElement("p");
  line.className = "error";
  line.setAttribute("role", "alert");
  line.textContent = "The server cannot be reached. What was charged stays charged; ask again when it is back: the same question is free then, if it was answered.";
  target.replaceChildren(line);
});

function editor(area) {
  const tables = JSON.parse(area.dataset.hints || "{}");
  const hints = { tables, defaultTable: Object.keys(tables)[0], completeSingle: false };
  const mirror = CodeMirror.fromTextArea(area, {
    mode: "text/x-sql",
    lineNumbers: true,
    lineWrapping: true,
    inputStyle: "contenteditable",
    screenReaderLabel: "Your question, in SQL",
    hintOptions: hints,
    extraKeys: {
      "Ctrl-Space": "autocomplete",
      Tab: false, // leaves the editor, as everywhere on a page
      "Shift-Tab": false,
      "Ctrl-Enter": () => document.getElementById("run").click(),
      "Cmd-Enter": () => document.getElementById("run").click(),
    },
  });
  const form = area.form;
  let waiting;
  mirror.on("change", () => {
    mirror.save();
    keep(form);
    clearTimeout(waiting);
    waiting = setTimeout(() => htmx.trigger(form, "preview"), 350);
  });
  mirror.on("inputRead", (_, change) => {
    if (/^[\w.]$/.test(change.text[0]) && !mirror.state.completionActive) mirror.showHint(hints);
  });
  window.discreetEditor = mirror;
}

// What is typed into a price or a precision is what is meant: its own choice is taken.
document.addEventListener("input", (event) => {
  const field = event.target;
  if (!field.matches?.("#ask input[name=epsilon], #ask input[name=within]")) return;
  const choice = field.form.querySelector(`input[name=by][value=${field.name}]`);
  if (choice && !choice.checked) choice.checked = true;
}, true);

// A question that is being written survives other pages and a new log-in: this tab keeps it, until its writer logs out.
function keep(form) {
  const choice = form.querySelector("input[name=by]:checked");
  const typed = { by: choice ? choice.value : "epsilon" };
  for (const name of ["sql", "epsilon", "within", "rows", "groups"]) typed[name] = form.elements[name]?.value ?? "";
  sessionStorage.setItem(form.dataset.kept, JSON.stringify(typed));
}
function restore(form) {
  const typed = JSON.parse(sessionStorage.getItem(form.dataset.kept) || "null");
  if (!typed || "given" in form.dataset) return false;
  for (const name of ["sql", "epsilon", "within", "rows", "groups"]) if (form.elements[name]) form.elements[name].value = typed[name];
  const choice = form.querySelector(`input[name=by][value="${typed.by === "within" ? "within" : "epsilon"}"]`);
  if (choice) choice.checked = true;
  return true;
}
document.addEventListener("submit", (event) => {
  if (event.target.matches("form[action='/logout']")) sessionStorage.clear();
});

// What was asked for is shown, and focused where it is to be read next.
document.addEventListener("htmx:afterSettle", (event) => {
  const heading = document.getElementById(event.detail.target.dataset?.focus || "");
  if (!heading) return;
  heading.focus({ preventScroll: true });
  const top = heading.getBoundingClientRect().top;
  if (top < 0 || top > innerHeight / 2) heading.scrollIntoView({ block: "start" });
});

document.addEventListener("click", (event) => {
  const limits = event.target.closest?.("button[data-rows]");
  if (limits) {
    const form = document.getElementById("ask");
    form.elements.rows.value = limits.dataset.rows;
    form.elements.groups.value = limits.dataset.groups;
    keep(form);
    htmx.trigger(form, "preview");
  }
  const example = event.target.closest?.("button[data-sql]");
  if (!example) return;
  if (window.discreetEditor) window.discreetEditor.setValue(example.dataset.sql);
  else document.getElementById("sql").value = example.dataset.sql;
});

// A form for each column of a schema that is being declared. The text stays what is sent: the form reads and writes it.
const KINDS = { "": "left out", number: "number", categories: "a few values", date: "date", boolean: "true or false", text: "any text" };
const toml = (text) => (/^-?\d+(\.\d+)?(e[-+]?\d+)?$/i.test(text) ? text : JSON.stringify(text));
function element(tag, facts, ...parts) {
  const made = Object.assign(document.createElement(tag), facts);
  made.append(...parts);
  return made;
}
function sections(text) {
  const found = [];
  for (const match of text.matchAll(/^(# )?\[columns\.(.+)\]\n((?:.+\n?)*)/gm)) {
    const entry = (name) => match[3].match(new RegExp(`^${match[1] ? "#? ?" : ""}${name} =(.*)$`, "m"))?.[1].trim() ?? "";
    const plain = (value) => value.replace(/\s+#.*$/, "").replace(/^"(.*)"$/, "$1");
    const name = match[2].startsWith('"') ? JSON.parse(match[2]) : match[2];
    const values = entry("values").replace(/^\[|\]$/g, "").replace(/"/g, "");
    const hint = text.slice(0, match.index).match(/For example, ([^.]*)\.\s*$/)?.[1] ?? "";
    found.push({ name, key: match[2], whole: match[0], rest: match[3], used: !match[1], hint, kind: plain(entry("type")), lower: plain(entry("lower")), upper: plain(entry("upper")), values });
  }
  return found;
}
function declared(column, row) {
  const kind = row.kind.value;
  const rest = column.rest.split("\n").filter((line) => !/^#? ?(type|lower|upper|values) ?=/.test(line)).join("\n");
  if (!kind) return `# [columns.${column.key}]\n# type = "text"\n${rest}`;
  const lines = [`[columns.${column.key}]`, `type = "${kind}"`];
  if (kind === "number" || kind === "date") for (const end of ["lower", "upper"]) if (row[end].value.trim()) lines.push(`${end} = ${toml(row[end].value.trim())}`);
  if (kind === "categories") lines.push(`values = [${row.values.value.split(",").map((one) => one.trim()).filter(Boolean).map(toml).join(", ")}]`);
  return lines.join("\n") + "\n" + rest;
}
function columnForms(area, place) {
  const UNIT = /^#? ?unit =.*$/m, BLOCK = /^#? ?\[unit\][^\n]*\n#? ?column =.*\n#? ?rows =.*\n#? ?groups =.*$/m;
  function draw() {
    place.replaceChildren();
    const columns = sections(area.value);
    if (!columns.length) return;
    if (UNIT.test(area.value) && BLOCK.test(area.value)) place.append(unit(columns));
    const body = element("tbody", {});
    for (const column of columns) {
      const field = (name, size) => element("input", { value: column[name], className: size, ariaLabel: `${name} of ${column.name}`, placeholder: name });
      const row = { kind: element("select", { ariaLabel: `what ${column.name} holds` }), lower: field("lower", "short"), upper: field("upper", "short"), values: field("values", "") };
      for (const [kind, words] of Object.entries(KINDS)) row.kind.append(element("option", { value: kind, textContent: words, selected: kind === (column.used ? column.kind : "") }));
      row.values.placeholder = "a, b, c";
      const show = () => {
        row.lower.hidden = row.upper.hidden = !["number", "date"].includes(row.kind.value);
        row.values.hidden = row.kind.value !== "categories";
      };
      const change = () => {
        show();
        const text = declared(column, row);
        area.value = area.value.replace(column.whole, () => text);
        Object.assign(column, sections(area.value).find((one) => one.key === column.key));
      };
      for (const input of Object.values(row)) input.addEventListener("input", change);
      show();
      const hint = column.hint ? [element("span", { className: "dim", textContent: ` such as ${column.hint}` })] : [];
      body.append(element("tr", {}, element("td", {}, element("code", { textContent: column.name })), element("td", {}, row.kind), element("td", {}, row.lower, " ", row.upper, row.values, ...hint)));
    }
    const heads = ["column", "holds", "from what to what"].map((text) => element("th", { scope: "col", textContent: text }));
    place.append(element("div", { className: "scroll" }, element("table", { className: "fields" }, element("thead", {}, element("tr", {}, ...heads)), body)));
  }
  function unit(columns) {
    const now = area.value.match(BLOCK)[0];
    const value = (name) => (now.startsWith("[") ? now.match(new RegExp(`^${name} = "?([^"\n]*)"?`, "m"))?.[1] ?? "" : "");
    const who = element("select", { id: "unit" }, element("option", { value: "", textContent: "choose …" }), element("option", { value: "row", textContent: "one row: nobody has two", selected: /^unit = "row"/m.test(area.value) }));
    for (const { name } of columns) who.append(element("option", { value: `=${name}`, textContent: `all rows with one value of ${name}`, selected: value("column") === name }));
    const rows = element("input", { type: "number", min: 1, className: "short", value: value("rows") || 10, id: "unit-rows" });
    const groups = element("input", { type: "number", min: 1, className: "short", value: value("groups") || 3, id: "unit-groups" });
    const limits = element("p", {}, element("label", { htmlFor: "unit-rows", className: "inline", textContent: "of whom at most" }), rows, element("label", { htmlFor: "unit-groups", className: "inline", textContent: " rows count in a group, in at most" }), groups, " groups");
    const change = () => {
      const column = who.value.startsWith("=") ? who.value.slice(1) : null;
      limits.hidden = column === null;
      area.value = area.value.replace(UNIT, () => (who.value === "row" ? 'unit = "row"' : '# unit = "row"'));
      const lines = ["[unit]", `column = ${JSON.stringify(column ?? "")}`, `rows = ${rows.value}`, `groups = ${groups.value}`];
      area.value = area.value.replace(BLOCK, () => lines.map((line) => (column === null ? `# ${line}` : line)).join("\n"));
    };
    for (const input of [who, rows, groups]) input.addEventListener("input", change);
    limits.hidden = !value("column");
    return element("div", {}, element("label", { htmlFor: "unit", textContent: "Who is protected" }), who, limits);
  }
  area.addEventListener("input", draw);
  draw();
  area.closest("details").open = !place.childElementCount;
}

document.addEventListener("DOMContentLoaded", () => {
  const asking = document.querySelector("form[data-kept]");
  const restored = asking && restore(asking);
  if (asking) {
    asking.addEventListener("input", () => keep(asking));
  }
  const place = document.getElementById("columns");
  if (place) columnForms(document.getElementById("schema"), place);
  const area = document.querySelector("textarea[data-hints]");
  if (area && window.CodeMirror) editor(area);
  // the price that htmx has asked for is that of the first example
  if (restored) htmx.trigger(asking, "preview");
});
