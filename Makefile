# make demo   install into .venv, rebuild and compress a photo, and draw the speeds of its waves
# make test   lint, types and tests
# make prove  one table of all promises, their evidence (slow; on photos if FINOLA_DATA is set) and the verdicts; STORED=1 is fast
# make bench  speed of the recurrence as fractions of GEMM throughput on this machine
# make portability  the tests under other instruction sets, thread counts and orders: results/portability.json
# make docs   build the documentation into site/; a broken link is an error
# make dist   build the source distribution and the wheel into dist/, and check their metadata and sizes
# make coverage  the tests under coverage: results/coverage.json and the table of docs/coverage.md
# make web    build the page that runs the codec in the browser into site/browser/; needs node and npm
# make web-test  build that page and test it in Chromium
# make wheel  build the wheel from the last commit, install it with its core dependencies only, reconstruct and compress a photo
# make lock   refresh constraints.txt
# make clean  remove .venv and everything the other targets wrote

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

export PIP_ROOT_USER_ACTION := ignore

.PHONY: help demo test bench prove portability coverage docs dist web web-test wheel lock clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

demo: $(VENV)/.installed
	@$(BIN)/python -m finola.cli reconstruct skimage:astronaut --side-by-side -o demo/ --force
	@$(BIN)/python -m finola.cli compress skimage:astronaut -o demo/astronaut.finola --force
	@$(BIN)/python -m finola.cli waves tile32 --plot demo/speeds.png --force
	@echo "Written to demo/:" && ls demo | sed 's/^/  /'

# Each pytest worker gets one thread, so that two workers share two cores instead of fighting for them. What is skipped,
# as the page's tests are where there is no browser, is said with its reason.
test: $(VENV)/.installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/pytest -n 2 -rs

bench: $(VENV)/.installed-test
	@$(BIN)/python benchmarks/bench.py propagation --quick

# STORED=1 judges the files in results/ instead of running the benchmarks, which takes hours.
prove: $(VENV)/.installed-test
	@$(BIN)/python benchmarks/prove.py $(if $(STORED),--stored) $(if $(ONLY),--only $(ONLY))

# ONLY names configurations and TESTS tests, as in make portability ONLY="avx2 threads-2" TESTS=tests/wave.
portability: $(VENV)/.installed-test
	@$(BIN)/python benchmarks/portability.py $(if $(ONLY),--only $(ONLY)) $(if $(TESTS),--tests $(TESTS))

# Child processes, such as those of pytest-xdist and the commands that tests start, are measured too (pytest-cov).
coverage: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/pytest -n 2 --cov=finola --cov-report=json:$(VENV)/coverage.json tests
	$(BIN)/python docs/coverage.py $(VENV)/coverage.json

# The strict build checks links between pages, docs/links.py the images and all other files.
docs: $(VENV)/.installed-docs
	$(BIN)/zensical build --clean --strict
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory web; else echo "No npm: the page site/browser is left out"; fi
	$(BIN)/python docs/links.py
	@echo "Open site/index.html"

# What a release publishes. Megabytes are 10⁶ bytes; PyPI accepts files of at most 100 MB.
MEGABYTES := 80
dist: $(VENV)/.python
	@$(PIP) install build twine
	@rm -f dist/finola-*
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/finola-*
	@ls -l dist
	@for file in dist/finola-*; do \
	  [ "$$(wc -c < "$$file")" -le $(MEGABYTES)000000 ] || { echo "$$file is larger than $(MEGABYTES) MB"; exit 1; }; done

# Static files only. npm installs onnxruntime-web and the build tools into web/node_modules, assets.py exports the model.
web: $(VENV)/.installed-web web/node_modules/.installed
	npm --prefix web run --silent check
	$(BIN)/python web/assets.py site/browser/assets
	npm --prefix web run --silent build -- ../site/browser

web-test: web $(VENV)/.installed-test
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/pytest -rs tests/web

web/node_modules/.installed: web/package.json web/package-lock.json
	npm --prefix web ci --silent
	@touch $@

# git archive takes what is committed and nothing else, so a file that git does not know cannot hide in the wheel.
wheel: $(VENV)/.python
	@set -e; work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; mkdir "$$work/source"; \
	git archive HEAD | tar -x -C "$$work/source"; \
	echo "Building the wheel"; $(PIP) wheel --no-deps -w dist "$$work/source"; \
	echo "Installing it into an empty environment; this takes minutes, mostly PyTorch"; \
	$(BIN)/python -m venv "$$work/venv"; \
	"$$work/venv/bin/python" -m pip --disable-pip-version-check -qq install -c constraints.txt \
	  "$$(ls -t dist/finola-*.whl | head -n 1)"; \
	cd "$$work"; venv/bin/python -c "import finola; print('finola is imported from', finola.__file__)"; \
	venv/bin/python -m pip --disable-pip-version-check check; \
	venv/bin/finola reconstruct source/docs/images/growing.jpg -o rebuilt/; \
	venv/bin/finola compress source/docs/images/growing.jpg -o growing.finola; \
	venv/bin/finola decompress growing.finola -o decoded.png; \
	ls -l rebuilt growing.finola decoded.png

# Asks pip what a fresh install of .[test] would choose today, and keeps names and versions only.
lock: $(VENV)/.python
	@echo "Resolving the newest versions that fit pyproject.toml"
	@$(PIP) install --dry-run --ignore-installed --report $(VENV)/report.json '.[test]'
	@$(BIN)/python -c "$$PINS" < $(VENV)/report.json > $(VENV)/constraints.txt
	@mv $(VENV)/constraints.txt constraints.txt
	@echo "Wrote constraints.txt: $$(grep -c == constraints.txt) packages"

define PINS
import json, sys
print("# Exact versions for .[test]; make lock writes this file.")
found = (item["metadata"] for item in json.load(sys.stdin)["install"])
pins = {item["name"].lower().replace("_", "-"): item["version"].split("+")[0] for item in found}
print(*(f"{name}=={version}" for name, version in sorted(pins.items()) if name != "finola"), sep="\n")
endef
export PINS

clean:
	rm -rf $(VENV) demo build dist site web/node_modules .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis

define CHECK
import sys
if sys.version_info < (3, 11):
    sys.exit("finola needs Python 3.11 or newer, and $(PYTHON) is %d.%d: name a newer one, as in "
             "make PYTHON=python3.12 $(or $(firstword $(MAKECMDGOALS)),demo)." % sys.version_info[:2])
try:
    import ensurepip, venv
except ImportError:
    sys.exit("$(PYTHON) cannot make a virtual environment: install its venv module (Debian: apt install python3-venv).")
endef
export CHECK

# Keeps a virtual environment that is already there and whole.
$(VENV)/.python:
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { $(PYTHON) -c "$$CHECK" && $(PYTHON) -m venv --clear $(VENV); }
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/.python
	@echo "Installing finola and its libraries into $(VENV); the first time takes minutes, mostly PyTorch"
	@$(PIP) install -c constraints.txt -e '.[demo]'
	@touch $@

# Installs everything that $(VENV)/.installed does, so it stamps both.
$(VENV)/.installed-test: pyproject.toml constraints.txt | $(VENV)/.python
	@echo "Installing finola, its libraries and its test tools into $(VENV); the first time takes minutes, mostly PyTorch"
	@$(PIP) install -c constraints.txt -e '.[test]'
	@touch $(VENV)/.installed $@

$(VENV)/.installed-docs: pyproject.toml constraints.txt | $(VENV)/.python
	@echo "Installing finola, its libraries and its documentation tools into $(VENV); the first time takes minutes, mostly PyTorch"
	@$(PIP) install -c constraints.txt -e '.[demo,docs]'
	@touch $(VENV)/.installed $@

$(VENV)/.installed-web: pyproject.toml constraints.txt | $(VENV)/.python
	@echo "Installing finola, its libraries and the ONNX exporter into $(VENV); the first time takes minutes, mostly PyTorch"
	@$(PIP) install -c constraints.txt -e '.[web]'
	@touch $(VENV)/.installed $@
