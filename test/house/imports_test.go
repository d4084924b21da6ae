// SPDX-License-Identifier: Apache-2.0

// Package house holds the rules of this repository that a compiler does not
// check: which package may import which, and how files look.
package house

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/inferencecache/inference-cache/"

// layers lists our packages from the bottom up. A package may import packages
// of lower layers only; packages of one layer do not know each other.
var layers = [][]string{
	{"internal/defaults", "internal/livefile", "internal/memlimit"},
	{
		"api/v1alpha1", "pkg/fingerprint", "proto/inferencecache/v1alpha1/gen", "internal/version", "internal/zmtp", "internal/index",
		"internal/ranking", "internal/breaker", "internal/finding", "internal/admission", "internal/configfile", "internal/jsonscan", "internal/gate", "internal/testcluster", "internal/testcert", "internal/imagetar", "internal/webhookcert",
		"internal/trace", "internal/commandline",
	},
	{"internal/nodelocal", "internal/kernelcheck"},
	{"internal/kvevents", "internal/policy", "internal/engines", "internal/auth", "pkg/client", "internal/adapter", "internal/kubetest", "internal/testcluster/node", "internal/testcluster/tool"},
	{"internal/chatform", "internal/lookup", "internal/template", "internal/ingest", "internal/credential", "internal/caller", "internal/publisher", "internal/tokenize", "internal/routing", "internal/sim"},
	{"internal/probe", "internal/propagate", "internal/storage"},
	{"internal/control", "internal/controlclient"},
	{"internal/server", "internal/gateway", "internal/sidecar", "internal/bench", "internal/sim/quality", "internal/controller", "internal/webhook", "internal/inject"},
	{"internal/standalone", "internal/bench/serve"},
	{"internal/sim/demo", "internal/gatewayfile"},
	{"internal/bench/proxy"},
	{"cmd/inferencecache"},
}

// forbidden names packages that others must not import, with the reason.
var forbidden = map[string]map[string]string{
	"internal/index":   {"google.golang.org/grpc": "the index is pure", "log/slog": "the index is pure", "net": "the index is pure"},
	"internal/ranking": {"google.golang.org/grpc": "ranking is arithmetic", "log/slog": "ranking is arithmetic"},
	"pkg/fingerprint":  {"google.golang.org/grpc": "gateways import it alone", "internal": "public packages stand alone"},
	"pkg/client":       {"internal": "public packages stand alone", "k8s.io": "gateways need no Kubernetes", "sigs.k8s.io": "gateways need no Kubernetes"},
}

type listedPackage struct {
	ImportPath string
	Imports    []string
}

func listPackages(t *testing.T) []listedPackage {
	t.Helper()
	command := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	command.Dir = "../.."
	output, err := command.Output()
	if err != nil {
		t.Fatalf("listing packages: %v", err)
	}
	var packages []listedPackage
	decoder := json.NewDecoder(strings.NewReader(string(output)))
	for {
		var p listedPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatalf("reading the package list: %v", err)
		}
		packages = append(packages, p)
	}
}

// layerOf returns the layer of a package by its longest listed prefix.
func layerOf(path string) (layer int, root string, ok bool) {
	for i, names := range layers {
		for _, name := range names {
			if (path == name || strings.HasPrefix(path, name+"/")) && len(name) > len(root) {
				layer, root, ok = i, name, true
			}
		}
	}
	return layer, root, ok
}

func TestImportsPointDownwards(t *testing.T) {
	for _, p := range listPackages(t) {
		path := strings.TrimPrefix(p.ImportPath, module)
		if strings.HasPrefix(path, "test/") || path == strings.TrimSuffix(module, "/") {
			continue
		}
		layer, root, ok := layerOf(path)
		if !ok {
			t.Errorf("%s is in no layer: add it to layers", path)
			continue
		}
		for _, imported := range p.Imports {
			other, ours := strings.CutPrefix(imported, module)
			if !ours {
				continue
			}
			otherLayer, otherRoot, ok := layerOf(other)
			if ok && otherRoot != root && otherLayer >= layer {
				t.Errorf("%s (layer %d) imports %s (layer %d): imports point downwards", path, layer, other, otherLayer)
			}
		}
	}
}

func TestPackagesStayPure(t *testing.T) {
	for _, p := range listPackages(t) {
		path := strings.TrimPrefix(p.ImportPath, module)
		for imported, reason := range forbidden[path] {
			for _, i := range p.Imports {
				if i == imported || strings.HasPrefix(strings.TrimPrefix(i, module), imported+"/") {
					t.Errorf("%s imports %s: %s", path, i, reason)
				}
			}
		}
	}
}
