# make demo            installs what runs need (packaging/setup run), replays the paper's prototype and a region whose light moves: out/prototype.html, out/moving-light.html
# make demo-training   trains a model on four fabrics: out/training.json, .html, out/gating.npz
# make paper           predicts the MixNet paper's tables: out/paper.json, out/paper.html, docs/paper.md
# make paper-emulated  measures one region of each job on each network with packets, 143 cells: out/paper-emulated.json, .html
# make frontier        predicts cost and speed of fabrics with forwarding, 5 minutes: docs/frontier.md, out/frontier.json
# make frontier-emulated   measures its corner points with packets, 3 minutes: docs/results/forwarding-*.json
# make results         draws blocks and pages from docs/results, and lists results that are older than what they measure
# make picture         runs the prototype, and draws README's picture of its report and its stored result
# make test            installs what it needs, and runs checks and tests, in 10 minutes on two cores
# make test-all        the same with the tests that need PyTorch, Ray, Chromium and Docker, and all commands of the guides
# make quick           tests of what changed since the last commit; SINCE=main for since another
# make check           static checks: ruff, mypy, import-linter; names stored results that are older than what they measure
# make unit | kernel | system   one tier of tests
# make oracle          compares the model with ns-3 and SimGrid, 15 minutes: docs/truth.md, out/oracle.json
# make systems         measures claims of other systems, 30 minutes: docs/systems, out/systems.json
# make reference       writes docs/commands.md and docs/keys.md from the commands and the schemas
# make docs            documentation with the API reference: out/docs/index.html
# make bench           measures the figures of docs/benchmarks.md and asserts their bounds: docs/results/benchmarks.csv
# make sabotage        runs real experiments with deliberate faults and writes docs/sabotage.md
# make conformance     runs Ryu's switch tests and writes docs/conformance.md
# make chaos           random kills, stops, cuts, shortages and limits, 500 of them, in two hours at most; SEED=1 repeats a run
# make soak            changes circuits 10,000 times under traffic with faults, an hour: out/soak.json, .svg
# make fuzz            searches inputs that break a reader, a million each, for hours; INPUTS=1000 for less
# make coverage        branch coverage of the unit tests: out/coverage/index.html
# make mutants         how many wrong changes of planner and simulator the tests notice, for hours; MUTANTS=NAMES for less
# make lock            renews packaging/requirements.lock: versions and hashes of all Python packages
# make audit           lists all packages in out/sbom.json and looks up known vulnerabilities
# make wheel           builds the packages of moefabric and its studies, the same bits each time: out/wheels
# make base-image      builds debian:bookworm-slim from Debian's archive where no image registry is reachable
# make format          runs ruff's formatter
# make clean           removes what these targets made in this folder
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.NOTPARALLEL:
.DEFAULT_GOAL := test

bin := .venv/bin
.PHONY: demo demo-training picture reference paper paper-emulated frontier frontier-emulated results test test-all quick check unit kernel system systems docs bench sabotage conformance fuzz chaos soak coverage mutants lock audit wheel base-image format clean setup-run setup-training setup-test setup-all

demo: setup-run
	mkdir -p out
	worst=0; for name in prototype moving-light; do \
		status=0; $(bin)/moefabric run examples/$$name.yaml --json out/$$name.json --report out/$$name.html || status=$$?; \
		if [ $$status -gt 3 ]; then exit $$status; fi; \
		if [ $$status = 3 ]; then echo "out/$$name.html says why the run is invalid, and what to do" >&2; fi; \
		case $$worst,$$status in 0,*|3,[12]) worst=$$status;; esac; \
	done; exit $$worst

demo-training: setup-training
	mkdir -p out
	$(bin)/moefabric train examples/train/prototype.yaml \
		--json out/training.json --report out/training.html --gating out/gating.npz

paper: setup-run
	mkdir -p out
	$(bin)/moefabric paper examples/paper --json out/paper.json --report out/paper.html --document docs/paper.md

paper-emulated: setup-run
	mkdir -p out
	$(bin)/moefabric paper examples/paper --emulated --json out/paper-emulated.json --report out/paper-emulated.html

corners := mixtral-8x22b mixtral-8x7b llama-moe qwen-moe deepseek-r1 16

frontier: setup-run
	mkdir -p out
	$(bin)/moefabric frontier examples/paper --json out/frontier.json --page docs/frontier.md \
		--store docs/results/frontier.csv

frontier-emulated: setup-test
	for experiment in $(corners); do \
		$(bin)/moefabric run examples/forwarding-$$experiment.yaml --store docs/results/forwarding-$$experiment.json || [ $$? = 3 ]; \
	done
	$(MAKE) results

results: setup-test
	$(bin)/python -m tests.stored_results --write

picture: setup-all
	mkdir -p out
	$(bin)/moefabric run examples/prototype.yaml --store docs/results/prototype.json --report out/prototype.html
	chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1300,2690 \
		--screenshot=docs/report.png out/prototype.html
	$(MAKE) results

test: setup-test
	$(bin)/python -m tests

test-all: setup-all
	packaging/engine $(bin)/python -m tests --all

check unit kernel: setup-test
	$(bin)/python -m tests $@

system: setup-all
	packaging/engine $(bin)/python -m tests --all system

# Tests of what differs from a revision: make quick SINCE=main
SINCE := HEAD
quick: setup-test
	$(bin)/python -m tests.quick $(SINCE)

systems: setup-training
	mkdir -p out
	$(bin)/moefabric system $(wildcard examples/systems/*.yaml) --json out/systems.json --pages docs/systems --store docs/results || \
		{ [ $$? = 3 ] && echo "some runs are invalid: the pages in docs/systems name them, with reasons"; }
	$(MAKE) results

reference: setup-test
	$(bin)/python -m tests.reference docs

docs: setup-all
	$(bin)/python -m tests docs

bench: setup-all
	status=0; $(bin)/python -m pytest -s $(wildcard tests/bench studies/tests/bench) \
		--store docs/results/benchmarks.csv || status=$$?; $(MAKE) results; exit $$status

sabotage: setup-test
	$(bin)/python -m pytest -s tests/sabotage

conformance: setup-all
	$(bin)/python -m pytest -s tests/conformance

oracle: setup-run
	packaging/oracle
	mkdir -p out
	$(bin)/moefabric oracle --json out/oracle.json --page docs/truth.md --store docs/results/truth.csv
	$(MAKE) results

RECONFIGURATIONS := 10000
soak: setup-all
	RECONFIGURATIONS=$(RECONFIGURATIONS) $(bin)/python -m pytest -s tests/soak

INPUTS := 1000000
fuzz: setup-all
	$(bin)/python -m tests.fuzz --inputs $(INPUTS)

coverage: setup-all
	$(bin)/python -m pytest -n 2 -p pytest_cov --cov moefabric --cov-branch --cov-report term --cov-report html:out/coverage \
		--ignore tests/unit/agents tests/unit studies/tests/unit tests/golden

MUTANTS :=
mutants: setup-test
	$(bin)/pip install -qq --no-deps --require-hashes -r <(packaging/locked mutation)
	$(bin)/mutmut run $(MUTANTS)
	$(bin)/mutmut export-cicd-stats

lock:
	packaging/lock

audit: setup-run
	packaging/audit

FAULTS := 500
chaos: setup-all
	$(bin)/python -m tests.chaos --faults $(FAULTS) $(if $(SEED),--seed $(SEED))

wheel: setup-run
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(bin)/pip wheel -q --no-deps --no-build-isolation -w out/wheels . ./studies

base-image: setup-all
	packaging/engine packaging/base-image

format: setup-test
	$(bin)/ruff check --fix
	$(bin)/ruff format

clean:
	rm -rf .venv .venv-audit build dist out .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache mutants *.egg-info studies/*.egg-info

setup-run:
	@packaging/setup run

setup-training:
	@packaging/setup training

setup-test:
	@packaging/setup test

setup-all:
	@packaging/setup all
