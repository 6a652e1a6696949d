# make demo   install into .venv, rebuild and compress a photo, and draw the speeds of its waves
# make test   lint, types and tests
# make prove  the slow proofs, one after the other; with FINOLA_DATA set, those on its photos too
# make bench  speed of the recurrence as fractions of GEMM throughput on this machine
# make portability  the tests under other instruction sets, thread counts and orders: results/portability.json
# make docs   build the documentation into site/; a broken link is an error
# make wheel  build the wheel from the last commit, install it with its core dependencies only, reconstruct and compress a photo
# make lock   refresh constraints.txt
# make clean  remove .venv and everything the other targets wrote

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

export PIP_ROOT_USER_ACTION := ignore

.PHONY: help demo test bench prove portability docs wheel lock clean
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

prove: $(VENV)/.installed-test
	@if command -v chromium >/dev/null; then $(BIN)/python benchmarks/page_speed.py; else echo "No Chromium: the page is not timed"; fi
	@$(call EACH,$(PROOFS))
	@[ -n "$$FINOLA_DATA" ] || { echo "FINOLA_DATA is not set: the proofs on its photos are left out"; exit 0; }; \
	$(call EACH,$(PROOFS_ON_DATA))

EACH = set -e; for proof in $(1); do echo "== $$proof"; $(BIN)/python benchmarks/$$proof; done
PROOFS := fuzz_readers.py memory.py codec_memory.py detection_speed.py
STUDY := runs/study
PROOFS_ON_DATA := wave_start.py "tile_borders.py kodak" "overfit_detection.py detect" "overfit_detection.py segment --rate 5e-4 --clip 1" \
  "study.py --runs $(STUDY)" \
  "compare_detection.py random=$(STUDY)/random-0/probe masked-b=$(STUDY)/masked-b-0/pre-training/model"

# ONLY names configurations and TESTS tests, as in make portability ONLY="avx2 threads-2" TESTS=tests/wave.
portability: $(VENV)/.installed-test
	@$(BIN)/python benchmarks/portability.py $(if $(ONLY),--only $(ONLY)) $(if $(TESTS),--tests $(TESTS))

# The strict build checks links between pages, docs/links.py the images and all other files.
docs: $(VENV)/.installed-docs
	$(BIN)/zensical build --clean --strict
	$(BIN)/python docs/links.py
	@echo "Open site/index.html"

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
	rm -rf $(VENV) demo build dist site .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis

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
