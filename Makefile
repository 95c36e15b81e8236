# `make demo` and `make test` work from a fresh clone: they create .venv, install and run.
#   PYTHON   the interpreter to create .venv with (3.10 to 3.13)
#   TORCH    the torch to install; pip prefers a CPU build (2.13.0+cpu) where one is on offer. Elsewhere point pip at
#            one, e.g. PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make demo
#   ARGS     further arguments for pytest, the demo, the suites or the fuzzer
PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCHVISION ?= torchvision==0.28.0
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Each compile worker, and each process that a test starts, would parse all of mlirc again: 0.25 s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: test demo suites opinfo fuzz numerics lint install clean

test: $(STAMP)
	$(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist worksteal $(ARGS)

demo: $(STAMP)
	$(BIN)/python -m mlirc.benchmarks.demo $(ARGS)

# The model suites, continued where suites.jsonl ends; suites.html is written whatever came out.
suites: $(STAMP)
	$(BIN)/pip install -q torch_geometric
	$(BIN)/python -m mlirc.benchmarks.suites run $(ARGS); code=$$?; \
	$(BIN)/python -m mlirc.benchmarks.suites report suites.jsonl; exit $$code

# PyTorch's OpInfos compiled against eager, and the table of them; an hour on two cores, continues where it was stopped.
opinfo: $(STAMP)
	$(BIN)/python -m mlirc.tests.opinfo $(ARGS)

# 20000 random programs against eager mode, continued where fuzz-results/ ends; what fails becomes a file there.
fuzz: $(STAMP)
	$(BIN)/python -m mlirc.tests.fuzz $(ARGS)

# Measures the errors of the vector math functions again, and writes them to tests/numerics/accuracy.md.
numerics: $(STAMP)
	$(BIN)/python -m mlirc.tests.numerics $(ARGS)

lint: $(STAMP)
	$(BIN)/pip install -q -e .[lint]
	$(BIN)/ruff check .

install: $(STAMP)

$(STAMP): pyproject.toml Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install "$(TORCH)"
	$(BIN)/pip install "$(TORCH)" -e ".[test]"
# torchvision and timm name a torch of their own choice, so theirs is ignored; what they import comes with [test].
	$(BIN)/pip install --no-deps "$(TORCHVISION)" timm
	@$(BIN)/python -c "import torch, sys; torch.__version__.startswith('2.13.') or sys.exit('torch ' + torch.__version__ + ' got installed, 2.13 is needed')"
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
