# make demo   real decisions from a real model, on a machine with Python 3.11 and nothing else
# make test   every test, those on the real model too
# make check  lint, format, types, floors and sizes
# make clean  away with the virtual environment and all caches
#
# Settings: PYTHON, VENV, WORKERS (test processes), and TORCH, what pip is told to install. The
# version is named so that pip takes a small build where there is one; name another to get it.

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
WORKERS ?= 2
MODEL := smollm2-135m

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help demo test check clean
.DELETE_ON_ERROR:

help:
	@sed -n '/^# make/s/^# //p' Makefile

demo: $(VENV)/demo.stamp
	$(BIN)/branchwise models pull $(MODEL)
	$(BIN)/branchwise decide --model $(MODEL) --preset support_triage

# Torch starts a thread per core in every process: one each, so that two processes fill two cores.
test: $(VENV)/dev.stamp
	$(BIN)/branchwise models pull $(MODEL)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile

check: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/check_floors.py
	$(BIN)/python scripts/check_sizes.py

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Torch first, and alone: asked for by an extra, it would be the newest, with libraries for a GPU.
$(VENV)/torch.stamp: | $(VENV)/bin/python
	@echo "installing $(TORCH); this takes a while, once"
	$(PIP) $(TORCH)
	@touch $@

$(VENV)/demo.stamp: pyproject.toml $(VENV)/torch.stamp
	$(PIP) --editable '.[torch]'
	@touch $@

$(VENV)/dev.stamp: pyproject.toml $(VENV)/torch.stamp
	$(PIP) --editable '.[torch,dev]'
	@touch $@ $(VENV)/demo.stamp
