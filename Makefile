# Every target does its own set-up first: a virtual environment in $(VENV), the packages of
# requirements.txt and the native core. When nothing has changed that takes no time.
#
#   make VENV=/path          another environment        make PYTHON=python3.12   another Python
#   make PIP_FLAGS="..."     flags for pip install, for example an index that serves CPU wheels
#   make test TESTS=tests/x  some of the tests          make test JOBS=4         more processes

PYTHON    ?= python3
VENV      ?= .venv
PIP_FLAGS ?=
JOBS      ?= 2
TESTS     ?= tests
ARGS      ?=

RUN   := $(VENV)/bin/python
SETUP := $(PYTHON) scripts/set_up.py --venv $(VENV) --pip-flags "$(PIP_FLAGS)"

.DEFAULT_GOAL := help
.PHONY: help setup build test lint conformance fuzz demo losses sentences bench soak clean distclean

help:
	@echo "make demo       train a small GPT on the device: progress, sample, table of speeds, plot"
	@echo "make test       checks (ruff, mypy) and all tests; CI runs this"
	@echo "make conformance  PyTorch's operator databases on the device: hours; ARGS=\"--dtypes float32\" for a part"
	@echo "make build      environment, packages, native core"
	@echo "make lint       ruff and mypy"
	@echo "make bench      the speed table (ARGS=\"--rows gpt-tiny --rounds 5\")"
	@echo "make fuzz       10,000 damaged files in the compile cache: each is a miss (ARGS=\"--seed 7\")"
	@echo "make soak       2,000 steps: memory stays flat, nothing compiles after warm-up"
	@echo "make losses     the demo's losses on CPU and in each mode of the device"
	@echo "make sentences  a pretrained MiniLM embeds sentences on the device"
	@echo "make clean      remove what was built (distclean: the environment too)"

setup build:
	@$(SETUP)

test: lint
	OMP_NUM_THREADS=1 $(RUN) -m pytest -n $(JOBS) $(ARGS) $(TESTS)

lint: setup
	$(RUN) -m ruff check .
	$(RUN) -m mypy

# Appends to build/conformance.jsonl and goes on where it was ended; ARGS=--fresh starts anew.
conformance: setup
	OMP_NUM_THREADS=1 $(RUN) -m conformance --samples 4 --workers $(JOBS) --report $(ARGS)

demo: setup
	@$(RUN) examples/train_gpt.py $(ARGS)

losses: setup
	$(RUN) examples/compare_losses.py $(ARGS)

sentences:
	@$(SETUP) --examples
	$(RUN) examples/sentences.py $(ARGS)

bench: setup
	$(RUN) -m benchmarks.run $(ARGS)

soak: setup
	$(RUN) -m benchmarks.soak $(ARGS)

fuzz: setup
	$(RUN) scripts/fuzz_cache.py $(ARGS)

clean:
	rm -rf build *.egg-info torchtpu/_C*.so .pytest_cache .mypy_cache .ruff_cache

distclean: clean
	rm -rf $(VENV)
