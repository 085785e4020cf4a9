SHELL := /bin/bash
export GOFLAGS ?= -buildvcs=false

.PHONY: build
build: ## the binary, ./bin/coffer
	go build -o bin/coffer ./cmd/coffer

.PHONY: proto
proto: ## regenerate proto/*pb (needs protoc)
	mkdir -p bin && GOBIN=$(CURDIR)/bin go install google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
	PATH="$(CURDIR)/bin:$$PATH" protoc --go_out=. --go_opt=module=github.com/coffer-project/coffer --go-grpc_out=. --go-grpc_opt=module=github.com/coffer-project/coffer proto/*/*.proto
