// The survey page: answers are held in variables of this page, randomized here, and only the reports are sent.
import { ClientBudget, epsilonOf } from "/discreet-local.mjs";

async function load() {
  try {
    const reply = await fetch("/survey.json", { credentials: "omit" });
    if (reply.ok) return await reply.json();
  } catch {
    // said below
  }
  const line = document.createElement("p");
  line.className = "error";
  line.setAttribute("role", "alert");
  line.textContent = "The questions cannot be loaded now. Nothing was sent. Load the page again later.";
  document.getElementById("questions").replaceChildren(line);
  throw new Error("no survey");
}

const survey = await load();
const KEY = "discreet-survey:" + JSON.stringify(survey.questions.map((q) => [q.name, q.client]));
const answers = new Map(); // question -> the true answer; never stored, never sent
const place = document.getElementById("questions");
const draw = document.getElementById("draw");
const shown = document.getElementById("sent");

// what the descriptions really cost, computed here and not taken from the server's word
const epsilon = survey.questions.reduce((sum, q) => sum + epsilonOf(q.client), 0);
document.getElementById("protection").textContent = protection(epsilon);

// What reports of an epsilon tell: of two answers that were as likely as each other, the likelier one then.
function protection(epsilon) {
  const bet = 100 / (1 + Math.exp(-epsilon));
  const words = [
    [60, "Nobody, not even whoever runs this survey, can tell from them what you answered"],
    [80, "Whoever sees them, also whoever runs this survey, can only guess what you answered, and is often wrong"],
    [95, "Whoever sees them, also whoever runs this survey, can guess what you answered, and is right more often than not"],
    [100, "Whoever sees them, also whoever runs this survey, can mostly tell what you answered: this protects you little"],
  ].find(([most]) => bet <= most)[1];
  const shown = bet > 99.9 ? "more than 99.9" : bet.toFixed(1).replace(".0", "");
  return `${words}. Who thought two answers of yours equally likely may, after all your reports, bet at most ${shown} of 100 on one of them (epsilon ${+epsilon.toPrecision(3)}).`;
}

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
  element("legend", question.text, field);
  if (question.categories) {
    const choices = question.categories.map((category, code) => [category, code]);
    [...choices, ["I leave this out: nothing is sent", null]].forEach(([said, code]) => {
      const line = element("p", null, field);
      const label = element("label", null, line);
      const input = document.createElement("input");
      input.type = "radio";
      input.name = `question-${number}`;
      input.autocomplete = "off";
      input.addEventListener("change", () => record(question.name, code));
      label.append(input, " " + said);
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
    input.inputMode = "decimal";
    const wrong = element("p", null, field);
    wrong.className = "warn";
    wrong.id = `wrong-${number}`;
    wrong.setAttribute("role", "status");
    input.setAttribute("aria-describedby", wrong.id);
    input.addEventListener("input", () => {
      // a number outside is reported as the nearest bound: left out, it would tell the server that it is outside
      record(question.name, input.value === "" ? null : Number(input.value));
      const [low, high] = question.between;
      const outside = input.value !== "" && (Number(input.value) < low || Number(input.value) > high);
      const counted = outside ? `This counts as ${Number(input.value) < low ? low : high}.` : "";
      wrong.textContent = input.validity.badInput ? "This is no number: it is left out." : counted;
    });
    label.append(input);
  }
  const factor = Math.exp(epsilonOf(question.client)).toPrecision(3);
  element("p", `Its report moves anybody's odds about your answer by at most a factor of ${factor} (epsilon ${question.epsilon}).`, field).className = "dim";
});

// what was drawn in this browser before, in this tab or another: { sent, reports }, or null
function stored() {
  return JSON.parse(localStorage.getItem(KEY) || "null");
}

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
    // another tab may have sent them
    const state = stored();
    if (state && state.sent) {
      already(state);
      return;
    }
    shown.querySelector("#failed")?.remove();
    let taken = false;
    try {
      const reply = await fetch("/reports", {
        method: "POST",
        credentials: "omit",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ reports }),
      });
      taken = reply.ok;
    } catch {
      // no connection: said below
    }
    if (taken) {
      localStorage.setItem(KEY, JSON.stringify({ sent: true, reports }));
      const line = element("p", "Sent. Thank you.", shown);
      line.className = "good";
      line.id = "thanks";
    } else {
      const line = element("p", "The server did not take them, or cannot be reached. Try again later: these same reports are sent then, and nothing else.", shown);
      line.className = "error";
      line.id = "failed";
      line.setAttribute("role", "alert");
      button.disabled = false;
    }
  });
}

function show(reports) {
  shown.replaceChildren();
  const heading = element("h2", "What will be sent, and nothing else", shown);
  heading.tabIndex = -1;
  element("pre", JSON.stringify(reports, null, 1), shown).id = "reports";
  element("p", "These are drawn at random from your answers; what you chose is not in them, and is forgotten with this page.", shown).className = "dim";
  send(reports);
  // what was asked for is further down than a phone shows
  heading.focus();
}

draw.addEventListener("click", async () => {
  // a second click must not draw a second time
  draw.disabled = true;
  const limit = survey.questions.reduce((sum, q) => sum + q.client.microepsilon, 0);
  const budget = new ClientBudget(limit);
  const reports = {};
  for (const question of survey.questions) {
    if (answers.has(question.name)) reports[question.name] = await budget.answer(question.name, question.client, answers.get(question.name));
  }
  answers.clear();
  lock();
  for (const input of place.querySelectorAll("input")) {
    if (input.type === "radio") input.checked = false;
    else input.value = "";
  }
  // drawn once: a page that is loaded again before sending, and another tab that was open before, send the
  // same reports; what was drawn here in vain is forgotten unseen
  const earlier = stored();
  if (earlier) {
    restore(earlier);
    return;
  }
  localStorage.setItem(KEY, JSON.stringify({ sent: false, reports }));
  show(reports);
});

function restore(state) {
  lock();
  if (state.sent) already(state);
  else show(state.reports);
}

if (stored()) restore(stored());
