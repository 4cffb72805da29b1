"""Receipts: one released number, proved to be in a ledger without the rest of it."""

import hashlib
import json

import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet import InvalidInput
from discreet.app.cli import app
from discreet.curator import Key, entries, receipts
from discreet.curator.entries import canonical
from discreet.curator.receipts import leaf, node, path_of, root_from, root_of
from discreet.mechanisms import noisy_count

# The leaves of the test vectors of Certificate Transparency, and the roots over the first 1, 2, ... of them.
LEAVES = [bytes.fromhex(text) for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657")]
LEAVES.append(bytes.fromhex("606162636465666768696a6b6c6d6e6f"))
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
SQL = "SELECT ward, COUNT(*) AS n FROM stays GROUP BY ward"


def test_roots_are_those_of_certificate_transparency():
    for size, root in enumerate(ROOTS, 1):
        assert root_of([leaf(data) for data in LEAVES[:size]]).hex() == root
    assert root_of([]) == hashlib.sha256(b"").digest()


def level_by_level(leaves):
    """The root by a second route: pairs of each level, the last one alone carried up as it is."""
    while len(leaves) > 1:
        pairs = [node(*leaves[i : i + 2]) for i in range(0, len(leaves) - 1, 2)]
        leaves = pairs + leaves[len(leaves) // 2 * 2 :]
    return leaves[0]


@pytest.mark.parametrize("size", [*range(1, 20), 64, 65])
def test_a_path_leads_to_the_root_from_its_own_leaf_and_place_alone(size):
    leaves = [leaf(bytes([i])) for i in range(size)]
    root = level_by_level(leaves)
    assert root_of(leaves) == root
    for i, own in enumerate(leaves):
        path = path_of(i, leaves)
        assert root_from(i, size, own, path) == root
        assert root_from(i, size, leaf(b"other"), path) != root
        assert all(root_from(j, size, own, path) != root for j in range(-1, size + 1) if j != i)
        assert root_from(i, size, own, [*path, root]) != root
        assert not path or root_from(i, size, own, path[:-1]) != root


@pytest.fixture
def stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return dp.open(
        {"ward": ["A", "B", "B"] * 100},
        table="stays",
        schema={"ward": dp.Categories(["A", "B"])},
        unit=dp.rows(),
        version="7",
        budget=dp.Budget(epsilon=3, delta=1e-6),
        analysts={"ann": dp.Budget(epsilon=1), "bob": dp.Budget(epsilon=1)},
        ledger="stays.ledger",
    )


@pytest.fixture
def answer(stays):
    stays.as_analyst("bob").sql("SELECT COUNT(*) AS n FROM stays WHERE ward = 'A'", epsilon=0.125)
    return stays.as_analyst("ann").sql(SQL, epsilon=0.5)


@pytest.fixture
def made(stays, answer):
    # as it is read from a file
    return json.loads(json.dumps(stays.receipt(answer)))


def key_of(stays):
    return stays.ledger.key.public


def test_a_receipt_has_the_number_its_price_and_error_and_is_checked_without_the_ledger(stays, answer, made):
    assert receipts.verify(made) == receipts.verify(made, key_of(stays)) == []
    number = made["number"]
    assert number["question"] == SQL
    assert number["value"] == {
        "columns": ["ward", "n"],
        "rows": [["A", answer["n"][0]], ["B", answer["n"][1]]],
    }
    assert number["plus_minus"] == answer.error(0.95)
    assert number["epsilon"] == pytest.approx(0.5, rel=1e-9)
    assert number["delta"] == 0
    assert made["entries"] == stays.ledger.anchor.seq
    shown = receipts.text(made)
    for words in (
        SQL,
        f"{answer['n'][0]} ± ",
        "epsilon 0.5, protecting one row of stays, version 7",
        "by constr",
    ):
        assert words in shown


def test_receipts_of_one_ledger_have_one_root_and_charge_or_release_name_the_same(stays, answer):
    stays.ask(noisy_count(stays.public, epsilon=0.25))
    charges = {
        entry.seq: entry.body["text"] for entry in stays.ledger.entries(kind="charge") if "text" in entry.body
    }
    made = [receipts.receipt(stays.ledger, seq) for seq in charges]
    assert [one["number"]["question"] for one in made] == list(charges.values())
    assert len({one["root"] for one in made}) == 1
    released = made[0]["release"]["shows"]["entry"]
    assert receipts.receipt(stays.ledger, released) == made[0]


def test_a_number_that_is_no_answer_has_its_error_from_the_mechanism(stays):
    release = stays.ask(noisy_count(stays.public, epsilon=0.25))
    made = stays.receipt(release)
    assert made["number"]["value"] == release.value
    assert made["number"]["plus_minus"] == release.error(0.95)
    assert f"{release.value} ± {float(release.error(0.95))}" in receipts.text(made)
    assert receipts.verify(made, key_of(stays)) == []


def digit(made):
    made["number"]["value"]["rows"][0][1] += 1


def other_entry(made):
    made["release"]["shows"]["entry"] -= 1


def truncated(made):
    made["release"]["path"].pop()


def less_epsilon(made):
    made["number"]["epsilon"] = 0.01


def more_entries(made):
    made["entries"] += 1


def other_question(made):
    made["number"]["question"] = "SELECT COUNT(*) AS n FROM stays"


def other_error(made):
    made["number"]["plus_minus"]["n"][0] = 0.5


def other_charge(made):
    made["release"]["shows"]["charge"] = 1


CHANGES = [
    digit,
    other_entry,
    truncated,
    less_epsilon,
    more_entries,
    other_question,
    other_error,
    other_charge,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_receipt_is_not_whole(made, change):
    change(made)
    assert receipts.verify(made) == ["it was changed after it was signed, or was not signed by this key"]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_found_even_if_the_key_signs_it(stays, made, change):
    change(made)
    made["signature"] = stays.ledger.key.sign(receipts._message(made)).hex()
    wrong = receipts.verify(made, key_of(stays))
    words = {
        digit: "its value is not the released one",
        less_epsilon: "its epsilon 0.01 is below that of its noise",
        other_question: "its question is not the one",
        other_error: "its error is not that of its noise",
        more_entries: "is not in the ledger",
    }
    assert any(words.get(change, "its release is not in the ledger") in line for line in wrong), wrong


def test_the_path_of_another_entry_does_not_fit(stays, made):
    other = receipts.receipt(stays.ledger, 3)
    assert other["release"]["shows"]["entry"] != made["release"]["shows"]["entry"]
    made["release"] = other["release"]
    made["signature"] = stays.ledger.key.sign(receipts._message(made)).hex()
    assert "its value is that of another question" in receipts.verify(made)


def test_another_key_is_not_believed(stays, made, tmp_path):
    forger = Key.create(tmp_path / "forged.key")
    digit(made)
    made["key"] = forger.public.hex()
    made["signature"] = forger.sign(receipts._message(made)).hex()
    assert "not by the one you trust" in receipts.verify(made, key_of(stays))[0]
    # without the steward's key it is found by the tree, which the forger could have made anew
    assert receipts.verify(made)


def test_a_body_that_cannot_be_read_is_a_problem_and_no_crash(stays, made):
    made["charge"]["shows"]["event"] = {"type": "accounting.Gaussian"}
    made["signature"] = stays.ledger.key.sign(receipts._message(made)).hex()
    assert receipts.verify(made) == ["it cannot be read as a receipt (DescriptionError)"]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "is not JSON"),
        ("[1]", "no receipt"),
        ('{"format": 1, "format": 2}', "a name is repeated"),
        ('{"format": NaN}', "NaN is no number"),
        ('{"format": -Infinity}', "-Infinity is no number"),
        ("[" * 100_000, "is not JSON"),
        ("1" * 10_000, "is not JSON"),
        ("\0", "is not JSON"),
    ],
)
def test_what_is_no_receipt_is_refused(tmp_path, text, match):
    path = tmp_path / "receipt.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=match):
        receipts.load(path)


def test_more_or_fewer_fields_other_types_depth_and_size_are_refused(stays, made, tmp_path, monkeypatch):
    for changes in (
        {"more": 1},
        {"root": None},
        {"entries": True},
        {"release": made["release"] | {"more": 1}},
    ):
        assert receipts.verify(made | changes)[0].startswith("it was changed after it was signed")
    fewer = {name: value for name, value in made.items() if name != "root"}
    # even if the key itself has signed it
    for changed in (fewer, made | {"charge": 1}, made | {"entries": "7"}, made | {"number": {}}):
        signed = changed | {"signature": stays.ledger.key.sign(receipts._message(changed)).hex()}
        assert receipts.verify(signed)[0].startswith("it cannot be read as a receipt")
    deep = []
    for _ in range(100):
        deep = [deep]
    path = tmp_path / "r.json"
    path.write_text(json.dumps(made | {"number": deep}))
    with pytest.raises(dp.DescriptionError, match="nested at most 64 deep"):
        receipts.load(path)
    path.write_text(json.dumps(made))
    assert receipts.load(path) == made
    monkeypatch.setattr(receipts, "_LARGEST", 1000)
    with pytest.raises(InvalidInput, match="more than 1,000 bytes"):
        receipts.load(path)


def guesses_confirmed(made, ledger):
    """The entries whose content a reader of a receipt can confirm, who guesses every other entry right, with its
    hash and view, and tries every way to make a leaf of it without the key."""
    public, confirmed = ledger.genesis.body["public"], []
    known = {made[name]["shows"]["entry"] for name in ("charge", "release")}
    hashes = {step for name in ("charge", "release") for step in made[name]["path"]}
    for entry in ledger.entries():
        view = receipts._view(entry, public)
        blinds = ["", entry.hash.hex(), hashlib.sha256(entry.hash).hexdigest()]
        blinds += [made[name]["blind"] for name in ("charge", "release")]
        leaves = {leaf(receipts._data(view, blind)).hex() for blind in blinds}
        if entry.seq not in known and leaves & hashes:
            confirmed.append(entry.seq)
    return confirmed


def test_a_guess_of_another_entry_cannot_be_confirmed(stays, answer, made, monkeypatch):
    assert guesses_confirmed(made, stays.ledger) == []
    # the search finds what is not blinded
    monkeypatch.setattr(Key, "blind", lambda key, message: message)
    assert guesses_confirmed(stays.receipt(answer), stays.ledger) != []


def test_a_receipt_tells_nothing_of_the_key_of_people_who_asked_of_totals_or_of_other_entries(stays, made):
    text = canonical(made)
    entries = list(stays.ledger.entries())
    secrets = ["ann", "bob", "spent", "first", "WHERE ward", stays.ledger.key.seed.hex()]
    secrets += [entry.hash.hex() for entry in entries] + [entry.signature.hex() for entry in entries]
    # to the second, times tell how long an answer took
    secrets += [entry.time[:19] for entry in entries]
    assert [secret for secret in secrets if secret in text] == []
    assert stays.ledger.key.blind(b"") != stays.ledger.key.seed


def test_analysts_have_receipts_of_their_answers_alone_and_nobody_without_the_key(stays, answer):
    ann = stays.as_analyst("ann")
    assert receipts.verify(ann.receipt(answer)) == []
    with pytest.raises(InvalidInput, match="no release of just this value"):
        ann.receipt(17.5)
    for number in (1, 999):
        with pytest.raises(InvalidInput, match="is no released number"):
            receipts.receipt(stays.ledger, number)
    with pytest.raises(InvalidInput, match="needs the key"):
        receipts.receipt(dp.curator.Ledger(stays.ledger.path), 3)


def test_the_shell_writes_and_checks_receipts_with_the_exit_codes_of_the_docs(stays, answer, tmp_path):
    def run(*words, code):
        result = CliRunner().invoke(app, [str(word) for word in words])
        # a refusal ends with exit code 2 (`cli.main`)
        found = 2 if isinstance(result.exception, dp.DiscreetError) else result.exit_code
        assert found == code, result.output
        return result.output + str(result.exception or "")

    charge = list(stays.ledger.entries(kind="charge"))[-1].seq
    run("ledger", "receipt", "stays.ledger", charge, code=0)
    assert "exists already" in run("ledger", "receipt", "stays.ledger", charge, code=2)
    trusted = key_of(stays).hex()
    shown = run("verify-number", "receipt.json", "--key", trusted, code=0)
    assert f"{answer['n'][0]} ± " in shown
    assert "which you trust" in shown
    assert "Anybody can make a key" in run("verify-number", "receipt.json", code=0)
    assert "not by the one you trust" in run("verify-number", "receipt.json", "--key", "00" * 32, code=1)
    assert "64 hexadecimal digits" in run("verify-number", "receipt.json", "--key", "00", code=2)
    made = json.loads((tmp_path / "receipt.json").read_text())
    digit(made)
    (tmp_path / "changed.json").write_text(json.dumps(made))
    told = json.loads(run("verify-number", "changed.json", "--json", code=1).rpartition("}")[0] + "}")
    assert told["whole"] is False
    assert "number" not in told
    assert "cannot be read" in run("verify-number", "nothing.json", code=2)


@pytest.mark.parametrize("largest", [0, 10**9])
def test_a_value_that_lies_beside_the_chain_is_in_its_receipt(stays, largest, monkeypatch):
    monkeypatch.setattr(entries, "LARGEST_WITHIN", largest)
    answer = stays.sql(SQL, epsilon=0.5)
    made = json.loads(json.dumps(stays.receipt(answer)))
    assert (made["beside"] is None) == (largest > 0)
    assert made["number"]["value"]["rows"] == [["A", answer["n"][0]], ["B", answer["n"][1]]]
    assert receipts.verify(made, key_of(stays)) == []
    assert f"{answer['n'][0]} ± " in receipts.text(made)
    if largest:
        return
    made["beside"]["rows"][0][1] += 1
    digit(made)
    assert "changed after it was signed" in receipts.verify(made)[0]
    made["signature"] = stays.ledger.key.sign(receipts._message(made)).hex()
    assert receipts.verify(made) == ["it cannot be read as a receipt (LedgerError)"]
