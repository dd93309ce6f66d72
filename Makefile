# The front door: `make help` lists what there is. Needs Python 3.11 or newer, pip, make and git.
PYTHON ?= python3
ARGS ?=
TORCH_ARGS ?=

BIN := .venv/bin
INSTALLED := .venv/.installed
LAB_SETTINGS := .venv/share/jupyter/lab/settings
# Without the plugin for notebooks, which takes seconds to load, and with it.
UNIT := $(BIN)/python -m pytest -p no:nbval --doctest-modules
NBVAL := $(BIN)/python -m pytest --nbval --nbval-current-env --nbval-cell-timeout=120 --nbval-kernel-startup-timeout=120 \
	--nbval-sanitize-with=tests/sanitize.cfg --color=no -p no:cacheprovider

# One thread: two cores gain little from more, and sums come out in the same order everywhere.
test check notebooks exercises site: export OMP_NUM_THREADS = 1

.DEFAULT_GOAL := help
.PHONY: help lab test check bench lint notebooks exercises site browser model doctor clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PYTHON=python3.12        the Python that .venv is made with"
	@echo "  ARGS='--port=9999'       handed on by lab, bench, model, notebooks, exercises"
	@echo "  TORCH_ARGS='--index-url URL'"
	@echo "                           pip options for another build of torch, at the first start"

lab: $(INSTALLED) ## install, fetch the small model, open JupyterLab on the first notebook
	@$(BIN)/softattn model || true
	$(BIN)/jupyter-lab --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb $(ARGS)

test: $(INSTALLED) ## install, then run every test and every notebook
	$(BIN)/softattn model
	$(UNIT) softattn_lib tests
	$(NBVAL) notebooks

check: $(INSTALLED) ## the fast part of the tests, about 4 minutes
	$(UNIT) -m "not slow" softattn_lib tests

bench: $(INSTALLED) ## measure speed and memory beside the peers, about 5 minutes
	$(BIN)/python -m benchmarks $(ARGS)

lint: $(INSTALLED) ## style: ruff check and ruff format
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

notebooks: .venv/.installed-author ## execute the notebooks again, store their outputs, pair the files
	$(BIN)/softattn model
	$(BIN)/python -m tools.notebooks $(ARGS)

exercises: $(INSTALLED) ## execute the solutions again, make the exercises from them
	$(BIN)/python -m tools.exercises $(ARGS)

site: .venv/.installed-site ## build the pages that need no Python to read, build/site/index.html
	$(BIN)/python -m tools.site

browser: .venv/.installed-site .venv/.installed-browser ## install a browser, so that the tests open JupyterLab and the pages in it
	$(BIN)/python -m tools.browser install

model: $(INSTALLED) ## fetch the small language model into your cache, once
	$(BIN)/softattn model $(ARGS)

doctor: $(INSTALLED) ## print versions, device, model and widgets, and how to mend what is wrong
	$(BIN)/softattn doctor

clean: ## remove .venv and every cache in this folder; the model stays in your cache
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist
	find . -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

# The stamp is written last, so an install that broke off is taken up again by the next call.
# The settings file keeps JupyterLab from asking the network for news.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("This needs Python 3.11 or \
	newer and $(PYTHON) is %d.%d: try make PYTHON=python3.11" % sys.version_info[:2])'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --upgrade pip
	$(if $(TORCH_ARGS),$(BIN)/python -m pip install $(TORCH_ARGS) $(shell grep '^torch==' constraints.txt))
	$(BIN)/python -m pip install -c constraints.txt -e '.[lab,test]'
	@mkdir -p $(LAB_SETTINGS)
	@echo '{"@jupyterlab/apputils-extension:notification":' \
		'{"fetchNews": "false", "checkForUpdates": false}}' > $(LAB_SETTINGS)/overrides.json
	@touch $@

.venv/.installed-%: $(INSTALLED)
	$(BIN)/python -m pip install -c constraints.txt -e '.[$*]'
	@touch $@
