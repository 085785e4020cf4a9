SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
# Without the paths of this directory in them, results of builds serve every clone.
export GOFLAGS ?= -buildvcs=false -trimpath
TALLY := go run ./test/tally
# Both modules: tests that have dependencies of their own are in test/, whose go.work joins the two.
export GOWORK := $(CURDIR)/test/go.work
ALL := ./... ./test/...
# The packages of test/ whose tests take longest begin first, so that none of them is left alone at the end; those that wait for servers
# take turns with those that calculate.
LONGEST := ./test/system/security ./test/system/plugin ./test/system/cli ./test/system/secretsync ./test/system/conformance ./test/system/replication ./test/system/migration ./test/chaos ./test/system/hostile ./test/upgrade ./test/system/cloud
# What servers with the race detector are too slow for: clients that must not notice a restart, a node that is killed among thousands
# of writes, and losses of power.
UNRACED := TestRollingRestart|TestKilledWhileSyncing|TestPowerLoss|TestFailedSyncs|TestSyncsAreNeeded
# Servers with the race detector, which `make test` has no time for: it has the detector for the tests beside the code only.
RACED := COFFER_CHAOS=long GORACE=atexit_sleep_ms=0 COFFER_TEST_BINARY=$(CURDIR)/bin/coffer-race go test -count=1 -timeout=80m -skip '^($(UNRACED))$$' -json
# The race detector needs a C compiler; where there is none, the tests run without it.
RACE := $(if $(filter 1,$(shell go env CGO_ENABLED)),-race)

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

.PHONY: build
build: ## the binary, ./bin/coffer
	GOWORK=off go build -o bin/coffer ./cmd/coffer

.PHONY: plugins
plugins: ## the plugins that come with Coffer, into bin/plugins, where bin/coffer finds them: jwt, oidc, kubernetes, openldap (takes minutes, once)
	.ci/tools/plugins.sh bin/plugins

.PHONY: bin/coffer-race
bin/coffer-race:
	GOWORK=off go build $(RACE) -o bin/coffer-race ./cmd/coffer

.PHONY: check
check: ## in a minute or so: formatting, vet, what may import what, and the tests beside the code without the race detector; results are cached
	@unformatted=$$(git ls-files -co --exclude-standard '*.go' | xargs gofmt -l); test -z "$$unformatted" || { echo "run gofmt -w on:" $$unformatted; exit 1; }
	go vet $(ALL)
	go test -count=1 -vet=off ./test/arch ./test/tally # read files which the cache of results does not know
	COFFER_SIM_SEEDS=$${COFFER_SIM_SEEDS:-50} go test -short -vet=off -json ./... | $(TALLY)

.PHONY: test
test: build ## every test; the tests beside the code of what runs at once have the race detector
	@$(MAKE) --no-print-directory --keep-going -j2 test-plain test-raced

# Both at once, each with as many packages at a time as there are processors: those that start servers mostly wait for them.
TESTED := GOGC=$${GOGC:-1200} COFFER_SIM_SEEDS=$${COFFER_SIM_SEEDS:-50} COFFER_TEST_BINARY=$(CURDIR)/bin/coffer GORACE=$${GORACE:-atexit_sleep_ms=0} go test -vet=off -shuffle=on -timeout=10m -json
.PHONY: test-plain test-raced
test-plain: build
	$(TESTED) $(LONGEST) ./test/... $$(.ci/tools/alone.sh alone) | $(TALLY)
test-raced: build
	$(TESTED) $(RACE) $$(.ci/tools/alone.sh shared) | $(TALLY)

.PHONY: simulate
simulate: ## replication, and secret sync, by seed: 20,000 of them; COFFER_SIM_SEEDS=n for more, COFFER_SIM_SEED=n for one and its trace
	COFFER_SIM_SEEDS=$${COFFER_SIM_SEEDS:-20000} go test -count=1 -timeout=30m -run '^TestSimulation' -json ./replication ./engines/secretsync | $(TALLY)

.PHONY: race
race: ## the tests beside the code, without those in test/, three times over, with the race detector
	go test $(RACE) -shuffle=on -count=3 -json ./... | $(TALLY)

.PHONY: lint
lint: build ## formatting, both go.mod, NOTICE, the libraries in the binary, vet, and staticcheck if it is installed
	@unformatted=$$(git ls-files -co --exclude-standard '*.go' | xargs gofmt -l); test -z "$$unformatted" || { echo "run gofmt -w on:" $$unformatted; exit 1; }
	GOWORK=off go mod tidy -diff
	cd test && GOWORK=off go mod tidy -diff
	.ci/tools/libraries.sh bin/coffer
	@.ci/tools/notice.sh | cmp - NOTICE || { echo "run .ci/tools/notice.sh >NOTICE"; exit 1; }
	go vet $(ALL)
	go vet -tags=e2e ./test/system/saml ./test/system/cloud ./test/system/kubernetes ./test/system/migration ./test/system/plugin ./test/system/secretsync ./engines/secretsync/repohost ./engines/secretsync/webhost
	@if command -v staticcheck >/dev/null; then staticcheck $(ALL); fi

.PHONY: fuzz
fuzz: ## every fuzz target for 10 s; FUZZTIME=1m for longer
	test/fuzz.sh $${FUZZTIME:-10s}

.PHONY: e2e
e2e: build ## clients in other languages, the web UI in a real browser, real SAML identity providers, cloud credentials and secret sync against an emulator, secret sync against Kubernetes' API server, plugins against an OpenID provider, Kubernetes' API server and OpenLDAP, a move from a populated server (needs Node.js; installs the rest)
	test/e2e/run

.PHONY: terraform
terraform: build plugins ## Terraform with the Vault provider, resource by resource, and docs/terraform.md from that (needs terraform or tofu, and moto_server, which make e2e installs; COFFER_TERRAFORM_PROVIDER=file, the provider's program)
	test/e2e/terraform/run

.PHONY: external-secrets
external-secrets: build plugins ## the External Secrets Operator itself, which it builds, with Kubernetes' own API server
	test/e2e/externalsecrets/run

.PHONY: chaos
chaos: bin/coffer-race ## the long fault tests, where possible on servers with the race detector: 50 killed leaders, partitions, rot, a full disk, 300 losses of power, two clusters, kills at each call at a cloud provider, secrets on their way; COFFER_CHAOS_KILLS=n COFFER_POWER_POINTS=n
	$(MAKE) --no-print-directory --output-sync=target --keep-going -j2 chaos-busy chaos-waiting

.PHONY: chaos-busy
chaos-busy: bin/coffer-race
	@status=0; set -x; \
	COFFER_CHAOS=long go test -count=1 -p=1 -timeout=80m -run '^($(UNRACED))$$' -json ./test/chaos ./test/power ./test/system/secretsync | $(TALLY) || status=1; \
	$(RACED) ./test/chaos | $(TALLY) || status=1; \
	$(RACED) -p=2 ./test/system/replication ./test/system/secretsync ./test/system/plugin ./test/system/saml | $(TALLY) || status=1; \
	$(RACED) -p=2 -run '^(TestHostile|TestHostileForms|TestConformance|TestClients)$$' ./test/system/hostile ./test/system/conformance | $(TALLY) || status=1; \
	exit $$status

# These wait for minutes until what a lost answer may have made must be there; their servers have next to nothing to do.
.PHONY: chaos-waiting
chaos-waiting: bin/coffer-race
	$(RACED) ./test/system/cloud | $(TALLY)

.PHONY: chaos-figures
chaos-figures: ## kill 1,000 leaders, silence 300, and add the figures to docs/faults.md; FAULTS=killed or FAULTS=silent for one of both, COFFER_CHAOS_KILLS=n COFFER_CHAOS_SILENT=n
	COFFER_CHAOS=long COFFER_CHAOS_FIGURES=$(CURDIR)/docs/faults.md go test -count=1 -v -timeout=4h -run '^TestFigures$$/$(FAULTS)' ./test/chaos

.PHONY: power
power: ## lose power at 10,000 points, eight recordings at a time, which takes half an hour; COFFER_POWER_POINTS=100000 for a night (needs root and /dev/fuse)
	COFFER_CHAOS=long COFFER_POWER_POINTS=$${COFFER_POWER_POINTS:-10000} go test -count=1 -v -parallel=8 -timeout=24h -run '^TestPowerLoss$$' ./test/power

.PHONY: demo-replication
demo-replication: build ## two clusters of three nodes, one following the other, to play with until ^C
	COFFER_TEST_BINARY=$(CURDIR)/bin/coffer go run ./test/demo

.PHONY: soak
soak: ## mixed load for 10 minutes; memory and goroutines must not grow; COFFER_SOAK=1h
	COFFER_SOAK=$${COFFER_SOAK:-10m} go test -count=1 -v -timeout=24h ./test/soak

.PHONY: bench
bench: ## measure, and write docs/benchmarks.md; BENCH="-secrets=1000000" for more
	go run ./test/bench -out=docs/benchmarks.md $(BENCH)

.PHONY: bench-smoke
bench-smoke: ## all measurements, too briefly to mean anything
	go run ./test/bench -smoke

.PHONY: calls
calls: ## count the calls of our own functions that a write, a read and a new token make; COFFER_CALLS=all for each function
	COFFER_CALLS=$${COFFER_CALLS:-sum} go test -count=1 -v -run '^TestCalls$$' ./test/calls

.PHONY: release
release: ## binaries, SBOMs, NOTICE and checksums in dist/, each binary built twice; RELEASE=1.2.3 PLATFORMS="linux/amd64"
	.ci/tools/release.sh

.PHONY: site
site: ## docs/ as a site with search, in site/; a link that leads nowhere is an error (needs python3; installs the rest)
	.ci/site/build

.PHONY: vuln
vuln: ## known vulnerabilities of what is linked and called, where their database can be reached
	.ci/tools/vuln.sh

.PHONY: proto
proto: ## regenerate proto/*pb (needs protoc)
	mkdir -p bin && GOBIN=$(CURDIR)/bin go install google.golang.org/protobuf/cmd/protoc-gen-go
	GOBIN=$(CURDIR)/bin go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2
	PATH="$(CURDIR)/bin:$$PATH" protoc --go_out=. --go_opt=module=github.com/coffer-project/coffer --go-grpc_out=. --go-grpc_opt=module=github.com/coffer-project/coffer proto/*/*.proto

.PHONY: ui-check
ui-check: ## server/ui/dist is what server/ui/web builds (needs Node.js)
	.ci/tools/uicheck.sh

.PHONY: ui
ui: ## check and rebuild the web UI, server/ui/dist (needs Node.js)
	cd server/ui/web && npm ci && npm run check && npm run build
