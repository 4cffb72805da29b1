// The survey page: answers are held in variables of this page, randomized here, and only the reports are sent.
import { ClientBudget, epsilonOf } from "/discreet-local.mjs";

const survey = await (await fetch("/survey.json", { credentials: "omit" })).json();
const KEY = "discreet-survey:" + JSON.stringify(survey.questions.map((q) => [q.name, q.client]));
const answers = new Map(); // question -> the true answer; never stored, never sent
const place = document.getElementById("questions");
const draw = document.getElementById("draw");
const shown = document.getElementById("sent");

// what the descriptions really cost, computed here and not taken from the server's word
const epsilon = survey.questions.reduce((sum, q) => sum + epsilonOf(q.client), 0);
document.getElementById("factor").textContent = Math.exp(epsilon).toPrecision(3);

function element(tag, text, parent) {
  const made = document.createElement(tag);
  if (text !== null) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function record(name, value) {
  if (value === null) answers.delete(name);
  else answers.set(name, value);
  draw.disabled = answers.size === 0;
}

survey.questions.forEach((question, number) => {
  const field = element("fieldset", null, place);
  element("legend", `${question.text} (epsilon ${question.epsilon})`, field);
  if (question.categories) {
    question.categories.forEach((category, code) => {
      const line = element("p", null, field);
      const label = element("label", null, line);
      const input = document.createElement("input");
      input.type = "radio";
      input.name = `question-${number}`;
      input.autocomplete = "off";
      input.addEventListener("change", () => record(question.name, code));
      label.append(input, " " + category);
    });
  } else {
    const label = element("label", `A number from ${question.between[0]} to ${question.between[1]} `, field);
    const input = document.createElement("input");
    input.type = "number";
    input.className = "short";
    input.autocomplete = "off";
    input.min = question.between[0];
    input.max = question.between[1];
    input.step = "any";
    input.addEventListener("input", () => record(question.name, input.value === "" || !input.checkValidity() ? null : Number(input.value)));
    label.append(input);
  }
});

function lock() {
  for (const input of place.querySelectorAll("input")) input.disabled = true;
  draw.disabled = true;
}

function already(state) {
  lock();
  shown.replaceChildren();
  element("p", "This browser has sent its reports to this survey:", shown);
  element("pre", JSON.stringify(state.reports, null, 1), shown);
  element("p", "Answering again would give away the same amount again.", shown).className = "dim";
}

function send(reports) {
  const button = element("button", "Send these reports", shown);
  button.type = "button";
  button.id = "send";
  button.addEventListener("click", async () => {
    button.disabled = true;
    const reply = await fetch("/reports", {
      method: "POST",
      credentials: "omit",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ reports }),
    });
    if (reply.ok) {
      localStorage.setItem(KEY, JSON.stringify({ sent: true, reports }));
      const line = element("p", "Sent. Thank you.", shown);
      line.className = "good";
      line.id = "thanks";
    } else {
      element("p", "The server did not take them. Nothing else was sent.", shown).className = "error";
      button.disabled = false;
    }
  });
}

function show(reports) {
  shown.replaceChildren();
  element("h2", "What will be sent, and nothing else", shown);
  element("pre", JSON.stringify(reports, null, 1), shown).id = "reports";
  element("p", "These are drawn at random from your answers; what you chose is not in them, and is forgotten with this page.", shown).className = "dim";
  send(reports);
}

draw.addEventListener("click", async () => {
  const limit = survey.questions.reduce((sum, q) => sum + q.client.microepsilon, 0);
  const budget = new ClientBudget(limit);
  const reports = {};
  for (const question of survey.questions) {
    if (answers.has(question.name)) reports[question.name] = await budget.answer(question.name, question.client, answers.get(question.name));
  }
  answers.clear();
  lock();
  // drawn once: a page that is loaded again before sending sends the same reports
  localStorage.setItem(KEY, JSON.stringify({ sent: false, reports }));
  for (const input of place.querySelectorAll("input")) {
    if (input.type === "radio") input.checked = false;
    else input.value = "";
  }
  show(reports);
});

const before = JSON.parse(localStorage.getItem(KEY) || "null");
if (before && before.sent) already(before);
else if (before) {
  lock();
  show(before.reports);
}
