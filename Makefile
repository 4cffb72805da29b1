# Every target sets up its environment by itself and re-installs only when pyproject.toml or constraints.txt changed:
# .venv has what the tests need, .venv-demo the package alone.
PYTHON ?= python3
VENV := .venv
# where a virtual environment keeps its programs
SCRIPTS := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
BIN := $(VENV)/$(SCRIPTS)
STAMP := $(VENV)/.installed
WORKERS ?= 2

# Each test worker is a process of its own: threads inside numpy and torch would only get in each other's way.
test smoke test-fast test-all test-transformers: export OMP_NUM_THREADS = 1
# Sources and pages are UTF-8, also where the encoding of the system is another one (Windows).
smoke: export PYTHONUTF8 = 1
# Tests start hundreds of Python processes; each would compile the whole package again where nothing is kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test smoke test-fast test-all test-transformers test-newest lint format bench docs wheel docker peers clean

demo: .venv-demo/.installed
	.venv-demo/$(SCRIPTS)/discreet demo

# What `pip install .` brings, and nothing else. Editable, so that the demo shows the sources as they are now: a copy
# would have to be made again whenever a file of src changed. Without --no-compile pip also compiles what is never
# loaded, such as the tests of scipy and numpy: 3 to 6 CPU-seconds and 75 MB more (docs/decisions/0016).
.venv-demo/.installed: pyproject.toml constraints.txt
	test -x .venv-demo/$(SCRIPTS)/python || $(PYTHON) -m venv .venv-demo
	.venv-demo/$(SCRIPTS)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e .
	touch $@

test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow"

# The whole house in less than a minute: the frozen stories, what the sources must keep, and a part of every package.
SMOKE := frozen golden \
	ground/test_import.py ground/test_modules.py ground/test_names.py ground/test_registry.py ground/test_packages.py \
	ground/test_size.py \
	accounting/test_events.py adaptive/test_holdout.py app/test_cli_query.py auditing/test_audit.py core/test_question.py \
	curator/test_ledger.py explaining/test_risk.py inference/test_hierarchy.py learning/test_trainer.py \
	local/test_shares.py mechanisms/test_selection.py query/test_answer.py sampling/test_noise.py \
	session/test_session.py streaming/test_counter.py synthetic/test_copy.py tables/test_columns.py \
	tabular/test_learners.py web/test_client.py
smoke: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow" $(addprefix tests/,$(SMOKE))

# One package while you work on it: make test-fast PACKAGE=query
test-fast: $(STAMP)
	@test -n "$(PACKAGE)" || { echo "say which package: make test-fast PACKAGE=query (one of: $$(ls -d tests/*/ | xargs -n1 basename | grep -v __ | tr '\n' ' '))"; exit 2; }
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow" -x tests/$(PACKAGE)

test-all: $(STAMP) test-transformers
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --devices tests/learning

# Models of Hugging Face, which are no dependency: the tests that are skipped where transformers is missing.
test-transformers: .venv-hf/.installed
	.venv-hf/bin/python -m pytest -n $(WORKERS) --dist worksteal tests/learning/test_hugging_face.py tests/learning/test_transformers_library.py tests/learning/test_transformers_trainer.py
	.venv-hf/bin/python -m pytest tests/examples -k fine_tune

.venv-hf/.installed: pyproject.toml constraints.txt tests/transformers.txt
	test -x .venv-hf/bin/python || $(PYTHON) -m venv .venv-hf
	.venv-hf/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r tests/transformers.txt -e '.[dev]'
	touch $@

# What `pip install` brings today: the newest of every dependency, only torch as constraints.txt has it.
test-newest: .venv-newest/.installed
	OMP_NUM_THREADS=1 .venv-newest/bin/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow"

.venv-newest/.installed: pyproject.toml constraints.txt
	test -x .venv-newest/bin/python || $(PYTHON) -m venv .venv-newest
	grep -E '^(--|torch)' constraints.txt > .venv-newest/torch.txt
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade -c .venv-newest/torch.txt -e '.[dev]'
	touch $@

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) .venv-peers/.installed .venv-tmlt/.installed
	$(BIN)/python -m benchmarks
	$(BIN)/python -m docs.bench_pictures

docs: $(STAMP)
	$(BIN)/python -m docs.build

# Built into dist/, then installed and asked on every Python that is promised and is there.
wheel: $(STAMP)
	$(BIN)/python -m hatchling build -t wheel -d dist
	$(BIN)/python -m pytest tests/ground/test_wheel.py

# The image of `discreet serve`; compose.yaml runs it behind Caddy (docs/server.md).
docker:
	docker build --tag discreet .

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# The rivals that benchmarks compare with; never a dependency of the package.
peers: .venv-peers/.installed
.venv-peers/.installed: pyproject.toml constraints.txt benchmarks/peers.txt
	test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers.txt
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv-tmlt/.installed: benchmarks/tmlt.txt
	test -x .venv-tmlt/bin/python || $(PYTHON) -m venv .venv-tmlt
	.venv-tmlt/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/tmlt.txt
	touch $@

clean:
	rm -rf $(VENV) .venv-demo .venv-peers .venv-tmlt .venv-newest .venv-hf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build dist out
