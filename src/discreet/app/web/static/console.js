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

document.addEventListener("click", (event) => {
  const example = event.target.closest?.("button[data-sql]");
  if (!example) return;
  if (window.discreetEditor) window.discreetEditor.setValue(example.dataset.sql);
  else document.getElementById("sql").value = example.dataset.sql;
});

document.addEventListener("DOMContentLoaded", () => {
  const area = document.querySelector("textarea[data-hints]");
  if (area && window.CodeMirror) editor(area);
});
