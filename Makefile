# make demo         sets everything up and replays the paper's prototype: out/prototype.json, out/prototype.html
# make paper        predicts the MixNet paper's tables: out/paper.json, out/paper.html
# make paper-emulated  the same beside a region of each on packets (15 minutes): out/paper-emulated.json, out/paper-emulated.html
# make test         sets everything up and runs every test, those with a Docker Engine last
# make check        the walls: ruff, mypy, import-linter
# make bench        prints this machine's figures and asserts their ratios
# make conformance  judges switches by Ryu's own tests, and writes docs/conformance.md (some minutes)
# make base-image   debian:bookworm-slim from Debian's archive, where no image registry can be reached
# make format       ruff's formatter
# make clean        removes what the above made in this folder
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.NOTPARALLEL:
.DEFAULT_GOAL := test

bin := .venv/bin
code := moefabric emulator controller agents tests

.PHONY: demo paper paper-emulated test check unit kernel system bench conformance base-image format clean setup-run setup-test

demo: setup-run
	mkdir -p out
	$(bin)/moefabric run examples/prototype.yaml --json out/prototype.json --report out/prototype.html

paper: setup-run
	mkdir -p out
	$(bin)/moefabric paper examples/paper --json out/paper.json --report out/paper.html

paper-emulated: setup-run
	mkdir -p out
	$(bin)/moefabric paper examples/paper --emulated --json out/paper-emulated.json --report out/paper-emulated.html

test: check unit kernel system

check: setup-test
	$(bin)/ruff check
	$(bin)/ruff format --check
	$(bin)/mypy --strict
	$(bin)/lint-imports

unit: setup-test
	$(bin)/python -m pytest $(wildcard tests/unit tests/contract tests/golden)

kernel: setup-test
	$(bin)/python -m pytest $(wildcard tests/kernel)

system: setup-test
	packaging/engine $(bin)/python -m pytest tests/system

bench: setup-test
	$(bin)/python -m pytest -s $(wildcard tests/bench)

conformance: setup-test
	$(bin)/python -m pytest -s tests/conformance

base-image: setup-test
	packaging/engine packaging/base-image

format: setup-test
	$(bin)/ruff check --fix
	$(bin)/ruff format

clean:
	rm -rf .venv build dist out .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info

setup-run:
	@packaging/setup run

setup-test:
	@packaging/setup test
