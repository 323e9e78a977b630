# Both commands do all the set-up that is missing and reuse what is there:
#   make demo   train, evaluate, save, load again and use a small Vision Transformer (one to three minutes after set-up)
#   make test   lint and the test suite (three minutes on two cores, longer on older ones)
#   make test-slow   the tests that start many processes or take minutes each
#   make dist   the wheel, the source and an SBOM, a list of all that the wheel installs, in dist/
#   make docs   the documentation as a site, in build/site
#   make fuzz   thousands of damaged files and requests, ten minutes, others every day; prints a table of what came out
# An active virtual environment is used as it is; otherwise one is made in .venv.
VENV   ?= $(if $(VIRTUAL_ENV),$(VIRTUAL_ENV),.venv)
PYTHON ?= python3
BIN    := $(VENV)/bin

.PHONY: demo test test-slow fuzz dist docs
demo: $(VENV)/.vitkit-run
	rm -rf runs/demo
	$(BIN)/vitkit train digits --workdir runs/demo
	$(BIN)/vitkit evaluate runs/demo digits
	$(BIN)/vitkit predict runs/demo digits --limit 32 --sheet runs/demo/predictions.png
	@echo "Open runs/demo/predictions.png and runs/demo/report.html"

test: $(VENV)/.vitkit-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n auto --dist worksteal

test-slow: $(VENV)/.vitkit-dev
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow

fuzz: $(VENV)/.vitkit-dev
	cd tests && $(abspath $(BIN))/python -m fuzzing --seconds 600

docs: $(VENV)/.vitkit-docs
	$(BIN)/python docs/build_site.py
	$(BIN)/zensical build --clean --strict
	$(BIN)/python docs/build_site.py --texts
	$(BIN)/python docs/build_site.py --check
	@echo "The site is in build/site: $(BIN)/python -m http.server --directory build/site"

dist: $(VENV)/.vitkit-release
	rm -rf dist build/wheel
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip install --quiet dist/*.whl
	$(BIN)/cyclonedx-py environment build/wheel --pyproject pyproject.toml --output-reproducible \
		--output-file dist/vitkit.cdx.json

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.vitkit-run: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.vitkit-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.vitkit-run

$(VENV)/.vitkit-release: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet 'build>=1.2' 'cyclonedx-bom>=7'
	touch $@

$(VENV)/.vitkit-docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@ $(VENV)/.vitkit-run
