"""The browser's client and ours are one: the same bytes give the same report.

Run under node; without it these tests say so and skip.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from discreet import local
from discreet.local import _base
from discreet.sampling import SeededEntropy, exp_neg
from tests.contracts.randomizers import within

from ..contracts.randomizers import DESIGN

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(
    NODE is None, reason="NODE IS MISSING: the JavaScript client is not tested on this machine"
)
SPECS: dict[str, tuple[Any, list[Any]]] = {
    "kary": (local.KaryResponse(epsilon=1, domain=7), [0, 3, 6]),
    "coin": (local.KaryResponse(epsilon=2, domain=2), [0, 1]),
    "sue": (local.SymmetricUnary(epsilon=1, domain=9), [0, 8]),
    "oue": (local.OptimalUnary(epsilon=1, domain=10), [0, 9]),
    "subset": (local.SubsetSelection(epsilon=1, domain=12), [0, 5, 11]),
    "subset of one": (local.SubsetSelection(epsilon=4, domain=5, size=1), [0, 4]),
    "hashing": (local.LocalHashing(epsilon=1, domain=1000), [0, 999]),
    "hashing, huge": (local.LocalHashing(epsilon=3, domain=1 << 48), [0, (1 << 48) - 1, 0x123456789ABC]),
    "hadamard": (local.HadamardResponse(epsilon=1, domain=100, blocks=1), [0, 50, 99]),
    "hadamard, blocks": (local.HadamardResponse(epsilon=3, domain=100, blocks=8), [0, 50, 99]),
    "design": (local.DesignResponse(design=DESIGN), [0, 1, 2]),
    "duchi": (local.DuchiMean(epsilon=1, low=0, high=10), [0, 3.3, 12, -1]),
    "piecewise": (local.PiecewiseMean(epsilon=1, low=0, high=10), [0, 3.3, 12]),
    "hybrid": (local.HybridMean(epsilon=2, low=-1, high=1), [0, 0.77, -1]),
    "long term": (local.LongTermResponse(epsilon=3, first_epsilon=1, domain=5), [0, 4]),
    "laplace": (local.LaplaceMean(epsilon=1, low=0, high=10), [0, 3.3, 12, -1]),
    "laplace, narrow": (local.LaplaceMean(epsilon=5, low=-1, high=1, steps=1), [0.1, -1, 1]),
    "laplace, wide": (local.LaplaceMean(epsilon=1e-9, low=-1, high=1, steps=65536), [0.1, -1, 1]),
    "laplace, long fraction": (
        local.LaplaceMean(epsilon=Fraction(10**30 + 1, 3**70), low=0, high=1),
        [0.1, 1],
    ),
}
VECTORS = Path(__file__).parent / "vectors.json"
FED = 4096


class FedEntropy(SeededEntropy):
    """A stream of given bytes."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.used = raw, 0
        super().__init__(0)

    def _take(self, size: int) -> Any:
        part = self.raw[self.used : self.used + size]
        assert len(part) == size, "the fed bytes are used up"
        self.used += size
        return np.frombuffer(part, np.uint8).copy()


def fed(seed: int) -> bytes:
    """Bytes that anybody can make again: SHA-256 of "seed:counter", one after the other."""
    return b"".join(hashlib.sha256(f"{seed}:{i}".encode()).digest() for i in range(FED // 32))


def cases() -> list[dict[str, Any]]:
    found = []
    for name, (randomizer, values) in SPECS.items():
        for value in values:
            for seed in range(25):
                entropy = FedEntropy(fed(seed))
                report = randomizer.respond(value, entropy=entropy)
                found.append(
                    {
                        "name": name,
                        "value": value,
                        "seed": seed,
                        "report": report,
                        "used": entropy.used,
                    }
                )
    return found


SCRIPT = """
import { respond, FedWords, Words, ClientBudget, epsilonOf } from %(module)s;
import { readFileSync } from "node:fs";
const input = JSON.parse(readFileSync(0, "utf8"));
const out = await (async () => { %(body)s })();
process.stdout.write(JSON.stringify(out));
"""


def node(body: str, data: Any) -> Any:
    script = SCRIPT % {"module": json.dumps(local.SCRIPT.as_uri()), "body": body}
    done = subprocess.run(
        [str(NODE), "--input-type=module", "-e", script],
        input=json.dumps(data),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_node
def test_the_same_bytes_give_the_same_report_in_python_and_in_javascript() -> None:
    data = {
        "specs": {name: randomizer.client() for name, (randomizer, _) in SPECS.items()},
        "fed": {str(seed): list(fed(seed)) for seed in range(25)},
        "cases": (ours := cases()),
    }
    theirs = node(
        """const out = [];
        for (const one of input.cases) {
          const words = new FedWords(input.fed[one.seed]);
          out.push({ report: await respond(input.specs[one.name], one.value, words), used: words.used });
        }
        return out;""",
        data,
    )
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine["report"], mine["used"]) == (other["report"], other["used"]), (
            mine["name"],
            mine["value"],
            mine["seed"],
        )


@needs_node
def test_laplace_noise_is_the_same_where_the_first_bits_leave_it_open() -> None:
    """Prefixes of U next to 0 and to 1, of which more bits are drawn: they come once in 2**80 draws, and here
    by hand."""
    randomizers = [
        local.LaplaceMean(epsilon=epsilon, low=0, high=1, steps=steps)
        for epsilon in (1e-6, 0.7, 1, 20)
        for steps in (1, 7, 1024, 65536)
    ]
    tails = [
        fill + fed(seed)[:256] for seed in range(3) for fill in (b"\xff" * 40, bytes(40), b"\x01" + bytes(39))
    ]
    data, ours = [], []
    for randomizer in randomizers:
        for tail in tails:
            entropy = FedEntropy(bytes(8) + tail)
            ours.append([randomizer.respond(0.5, entropy=entropy), entropy.used])
            data.append({"spec": randomizer.client(), "fed": list(entropy.raw)})
    theirs = node(
        """const out = [];
        for (const one of input) {
          const words = new FedWords(one.fed);
          out.push([await respond(one.spec, 0.5, words), words.used]);
        }
        return out;""",
        data,
    )
    assert theirs == ours
    # 8 bytes of rounding, 11 to 15 of U, 1 of the sign: the others drew more
    assert sum(used > 24 for _, used in ours) >= len(randomizers)


def test_stored_vectors_still_hold() -> None:
    """What a device of an older version reports from given bytes is what this version reports: the wire does
    not change unnoticed."""
    stored = json.loads(VECTORS.read_text())
    assert len(stored) > 40
    for one in stored:
        randomizer = SPECS[one["name"]][0]
        assert randomizer.respond(one["value"], entropy=FedEntropy(fed(one["seed"]))) == one["report"], one[
            "name"
        ]
    assert {one["name"] for one in stored} == set(SPECS)


@needs_node
def test_javascript_reports_from_its_own_randomness_estimate_the_truth() -> None:
    oracle = local.LocalHashing(epsilon=2, domain=4)
    reports = node(
        """const out = [];
        for (let i = 0; i < 3000; i += 1) out.push(await respond(input, i % 4 === 0 ? 1 : 3));
        return out;""",
        oracle.client(),
    )
    release = oracle.estimate(reports)
    assert np.abs(release.value - [0, 0.25, 0, 0.75]).max() <= release.error(1 - 1e-9)


@needs_node
def test_javascript_computes_epsilon_itself_and_refuses_a_description_that_claims_less() -> None:
    specs = {name: randomizer.client() for name, (randomizer, _) in SPECS.items()}
    result = node(
        """const out = {};
        for (const [name, spec] of Object.entries(input)) {
          let refused = false;
          const cheap = { ...spec, microepsilon: Math.floor(spec.microepsilon * 0.99) };
          try { epsilonOf(cheap); } catch (error) { refused = error instanceof RangeError; }
          out[name] = { epsilon: epsilonOf(spec), refused };
        }
        return out;""",
        specs,
    )
    for name, (randomizer, _) in SPECS.items():
        claimed = float(randomizer.epsilon)
        assert result[name]["epsilon"] <= claimed * (1 + 1e-9)
        assert result[name]["refused"], name
        assert result[name]["epsilon"] >= 0.98 * claimed


@needs_node
def test_javascript_refuses_bent_descriptions_before_it_draws() -> None:
    spec = local.HadamardResponse(epsilon=1, domain=100, blocks=1).client()
    bent = [
        {"block": 100},
        {"weights": [1, 2]},
        {"weights": [2.5, 1]},
        {"kind": "toString"},
        {"domain": 1e9},
        {"blocks": 0},
        {"microepsilon": "1000000"},
    ]
    result = node(
        """const words = { next() { throw new Error("drawn"); } };
        const out = [];
        for (const change of input.bent) {
          for (const value of [3, -1, 100, 1.5, "3", null]) {
            try { await respond({ ...input.spec, ...change }, value, words); out.push("no"); } catch (error) { out.push(error.constructor.name); }
          }
        }
        return out;""",
        {"spec": spec, "bent": bent},
    )
    assert result == ["RangeError"] * (6 * len(bent))


# a value, descriptions that lie about what they hold (refused before anything is drawn), and values that are none
# (reported as the fixed public value in OUTSIDE)
BENT: dict[str, tuple[Any, list[dict[str, Any]], list[Any]]] = {
    "laplace": (
        3,
        [
            {"rate": ["1", "1"]},
            {"rate": ["1", "1023"]},
            {"rate": [1, 1024]},
            {"rate": ["0", "1"]},
            {"rate": ["1", "0"]},
            {"rate": ["-1", "1024"]},
            {"rate": ["0x1", "1024"]},
            {"rate": ["1", "1" + "0" * 40]},
            {"rate": ["1", str(2 << 46)]},
            {"rate": ["1"]},
            {"rate": None},
            {"steps": 1025},
            {"steps": 0},
            {"low": 10},
            {"high": None},
        ],
        ["3", None, [3], {}, True],
    ),
    "duchi": (3, [{"weights": [3, 1]}, {"low": 10}], ["3", None, [3]]),
}


@needs_node
@pytest.mark.parametrize("name", BENT)
def test_javascript_refuses_bent_descriptions_and_charges_nothing(name: str) -> None:
    good, bent, wrong = BENT[name]
    spec = SPECS[name][0].client()
    pairs = [[{**spec, **change}, value] for change in bent for value in (good, wrong[0])]
    result = node(
        """const drawn = () => { throw new Error("drawn"); };
        const words = { next: drawn, bytes: drawn };
        const out = [];
        for (const [spec, value] of input) {
          const budget = new ClientBudget(1e9);
          const tries = [() => respond(spec, value, words), () => budget.answer("q", spec, value, words)];
          for (const attempt of tries) {
            try { await attempt(); out.push("no"); } catch (error) { out.push(error.constructor.name); }
          }
          out.push(budget.spent);
        }
        return out;""",
        pairs,
    )
    assert result == ["RangeError", "RangeError", 0] * len(pairs)
    assert node("return await respond(input[0], input[1]);", [spec, good]) is not None


OUTSIDE: dict[str, Any] = {"laplace": 0, "duchi": 0}


@needs_node
def test_javascript_charges_a_wrong_value_and_reports_the_fixed_public_one() -> None:
    data = [
        [SPECS[name][0].client(), OUTSIDE[name], value]
        for name, (_, _, wrong) in BENT.items()
        for value in wrong
    ]
    result = node(
        """const out = [];
        for (const [spec, outside, wrong] of input.data) {
          const reports = [];
          for (const value of [outside, wrong]) {
            const budget = new ClientBudget(spec.microepsilon);
            reports.push(JSON.stringify(await budget.answer("q", spec, value, new FedWords(input.fed))));
            reports.push(budget.remaining);
          }
          out.push(reports[0] === reports[2] && reports[1] === 0 && reports[3] === 0);
        }
        return out;""",
        {"data": data, "fed": list(fed(3))},
    )
    assert result == [True] * len(data)


# no value of most randomizers, or one of few of them; 3.0 and -0.0 are whole numbers in JavaScript, and so they are here
JUNK: list[Any] = [
    None, True, False, "", "0", "x", "\ud800", "a\udc00b", "\ud83d\ude00", "\ude00\ud83d", b"", b"\xff\x00",
    math.nan, math.inf, -math.inf, -1, 0, 1, 2, 3.0, -0.0, 0.5, 1.5, 7, 1000, 1e30, 10**30, -(10**30), 2**53, 2**52 - 1,
    [], {}, [0], [0.5, "0"], [[0]], {0: 0.5}, {"0": 1}, {1.0: None, 2: math.nan}, {True: 1, 3: 1e308},
]  # fmt: skip


def tagged(value: Any) -> Any:
    """A value as JSON, with a tag where JSON has no form of its own."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"$": str(value)}
    if isinstance(value, bytes):
        return {"$": "bytes", "of": list(value)}
    if isinstance(value, dict):
        return {"$": "map", "of": [[tagged(key), tagged(one)] for key, one in value.items()]}
    return [tagged(one) for one in value] if isinstance(value, list | set) else value


def any_value(inside: list[Any], random: Random) -> Any:
    kind = random.randrange(4)
    if kind == 0:
        return random.choice(inside)
    if kind == 1:
        return random.choice(JUNK)
    items = [random.choice([*JUNK, *range(8)]) for _ in range(random.randrange(6))]
    if kind == 2:
        return items
    return {key: random.choice(JUNK) for key in items if not isinstance(key, list | dict)}


@needs_node
def test_both_clients_report_the_same_of_any_value() -> None:
    """Inside, outside and of wrong types, drawn anew in every run: both clients report, and both the same."""
    random, data, ours = Random(), [], []
    for name, (randomizer, inside) in SPECS.items():
        for number in range(40):
            value, seed = any_value(inside, random), number % 5
            entropy = FedEntropy(fed(seed))
            ours.append([randomizer._respond_one(value, entropy), entropy.used])
            data.append([name, tagged(value), seed])
    theirs = node(
        """const special = { nan: NaN, inf: Infinity, "-inf": -Infinity };
        const revive = (value) => {
          if (Array.isArray(value)) return value.map(revive);
          if (typeof value !== "object" || value === null) return value;
          if (value.$ === "bytes") return Uint8Array.from(value.of);
          return value.$ === "map" ? new Map(value.of.map(revive)) : special[value.$];
        };
        const out = [];
        for (const [name, value, seed] of input.data) {
          const words = new FedWords(input.fed[seed]);
          out.push([await respond(input.specs[name], revive(value), words), words.used]);
        }
        return out;""",
        {
            "data": data,
            "specs": {name: randomizer.client() for name, (randomizer, _) in SPECS.items()},
            "fed": [list(fed(seed)) for seed in range(5)],
        },
    )
    for one, mine, other in zip(data, ours, theirs, strict=True):
        assert mine == other, one


@needs_node
def test_a_collector_that_chooses_domains_finds_no_value_in_the_refusals_of_a_page() -> None:
    specs = [local.KaryResponse(epsilon=1e-5, domain=domain).client() for domain in range(2, 129)]
    result = node(
        """const out = [];
        for (const value of [0, 1, 64, 127, 128, -1, NaN, null, "x"]) {
          const budget = new ClientBudget(100 * input[0].microepsilon);
          const found = [];
          for (const spec of input) {
            try { await budget.answer("q", spec, value); } catch (error) { found.push(error.message); }
            found.push(budget.spent);
          }
          out.push(found);
        }
        return out;""",
        specs,
    )
    assert all(found == result[0] for found in result)
    assert len(result[0]) == 127 + 27, "a hundred answers, and then the budget's refusals"


@needs_node
def test_javascript_refuses_exactly_the_descriptions_that_cost_more_than_they_claim() -> None:
    """No tolerance: weights next to exp(epsilon) on either side, against 160 bits in Python. A cost of 1.0005e-6 for
    a claim of 1e-6 was accepted."""
    random, specs, ours = Random(), [], []
    for _ in range(60):
        micro = random.choice([1, 2, 1000, 10**6, random.randrange(1, 8 * 10**6)])
        claim = Fraction(micro, 10**6)
        b = 1 << random.choice([30, 36])
        # the largest integer below b exp(claim), to within one
        a = int(b * Fraction(1 << 160, exp_neg(claim, 160)[1])) + random.randrange(-1, 3)
        share, off = _base.small_share(claim, bits=2), random.randrange(-1, 2)
        coins = [2**32 - share - off, share + off]
        shared = {"microepsilon": micro, "randomizer": ""}
        specs += [
            {"kind": "kary", "domain": 2, "weights": [a, b], **shared},
            {"kind": "table", "ends": [[b, a + b], [a, a + b]], **shared},
            {"kind": "unary", "domain": 3, "thresholds": coins, **shared},
        ]
        ours += [a > b and within(Fraction(a, b), claim), within(Fraction(a, b), claim)]
        ours.append(within(Fraction(coins[0], coins[1]) ** 2, claim))
    specs.append(
        {
            "kind": "kary",
            "domain": 2,
            "weights": [2**50 + 1126462876, 2**50],
            "microepsilon": 1,
            "randomizer": "",
        }
    )
    theirs = node(
        """return input.map((spec) => {
          try { epsilonOf(spec); return true; } catch (error) { return false; }
        });""",
        specs,
    )
    assert theirs == [*ours, False]
    assert set(ours) == {True, False}


@needs_node
def test_javascript_refuses_or_prices_descriptions_with_any_one_part_replaced() -> None:
    """Whatever stands in place of a number or a list: a RangeError before anything is drawn, or a price
    within the claim."""
    data = {name: [randomizer.client(), values[0]] for name, (randomizer, values) in SPECS.items()}
    result = node(
        """const junk = [0, -1, 1.5, 1e300, 2 ** 53, "1", null, undefined, [], {}, true, NaN, Infinity];
        const drawn = () => { throw new Error("drawn"); };
        const out = { wrong: [], refused: 0, priced: 0 };
        const places = (part) => Object.keys(part).flatMap((key) => {
          const inner = typeof part[key] === "object" && part[key] !== null ? places(part[key]) : [];
          return [[key], ...inner.map((path) => [key, ...path])];
        });
        for (const [name, [spec, value]] of Object.entries(input)) {
          for (const path of places(spec).filter((path) => !["microepsilon", "randomizer"].includes(path.at(-1)))) {
            for (const other of junk) {
              const bent = structuredClone(spec);
              path.slice(0, -1).reduce((part, key) => part[key], bent)[path.at(-1)] = other;
              const outcomes = new Set();
              for (const one of [value, null]) {
                try {
                  await respond(bent, one, { next: drawn, bytes: drawn });
                  out.wrong.push([name, path, String(other), "no draw"]);
                } catch (error) {
                  outcomes.add(error.message);
                  if (error instanceof RangeError) out.refused += 1;
                  else if (error.message === "drawn" && epsilonOf(bent) <= spec.microepsilon / 1e6) out.priced += 1;
                  else out.wrong.push([name, path, String(other), error.message]);
                }
              }
              // what is refused goes by the description alone
              if (outcomes.size !== 1) out.wrong.push([name, path, String(other), "by value"]);
            }
          }
        }
        return out;""",
        data,
    )
    assert result["wrong"] == []
    assert result["refused"] > 2000
    assert result["priced"] > 0


@needs_node
def test_javascript_keeps_the_budget_on_the_device() -> None:
    specs = [
        local.KaryResponse(epsilon=1, domain=50).client(),
        local.LongTermResponse(epsilon=1, first_epsilon=0.5, domain=1 << 20).client(),
    ]
    result = node(
        """const budget = new ClientBudget(2000000);
        const first = await budget.answer("color", input[0], 3);
        const again = await ClientBudget.from(JSON.parse(JSON.stringify(budget))).answer("color", input[0], 44);
        const words = new Set();
        for (let i = 0; i < 60; i++) words.add(JSON.stringify(await budget.answer("word", input[1], 7 + i % 2)));
        let refused = false;
        try { await budget.answer("another", input[0], 3); } catch (error) { refused = error.message.includes("costs more"); }
        return { same: first === again, differs: words.size > 1, refused, spent: budget.spent };""",
        specs,
    )
    assert result == {"same": True, "differs": True, "refused": True, "spent": 2000000}


def test_the_script_uses_no_other_randomness_and_no_dependency() -> None:
    text = local.SCRIPT.read_text()
    assert "crypto.getRandomValues" in text
    assert "Math.random" not in text
    assert "import " not in "\n".join(line for line in text.splitlines() if not line.startswith("//"))


def test_randomizers_without_a_twin_say_so() -> None:
    with pytest.raises(ValueError, match="no client for browsers"):
        local.LocalRandomizer.client(local.KaryResponse(epsilon=1, domain=3))
