// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

const (
	chart     = root + "/deploy/helm/inference-cache"
	installed = "inference-cache-system"
	// serverName is in the certificate of installed servers.
	serverName = "inference-cache-server." + installed + ".svc"
)

// sharedValues are those of the release that tests share: whoever may get
// lookups in a namespace reads its tenant, see readLookups.
var sharedValues = []string{"--set=server.tenantAuthz=rbac"}

// shareRelease installs the chart with sharedValues, unless another test has
// left it for the next. A test that changes the release puts it back as it was;
// one that fails has it removed.
func (e *env) shareRelease() {
	e.t.Helper()
	e.t.Cleanup(func() {
		if e.t.Failed() {
			e.keep(e.namespace) // with its resources, which end with their definitions
			e.keep(installed)
			e.removeRelease()
		}
	})
	if !shared.released {
		e.helmInstall(sharedValues...)
		shared.released = true
	}
}

// installChart runs helm install in a restricted namespace, with flags such as
// --set=server.replicas=1, and waits until everything is ready. It is
// uninstalled when the test ends, resource definitions included.
func (e *env) installChart(flags ...string) {
	e.t.Helper()
	e.withoutRelease()
	e.helmInstall(flags...)
}

// withoutRelease leaves the cluster without one, and removes what the test
// installs when it ends.
func (e *env) withoutRelease() {
	e.t.Helper()
	if shared.released {
		e.removeRelease()
	}
	e.t.Cleanup(func() {
		if e.t.Failed() {
			e.keep(installed)
		}
		e.removeRelease()
	})
}

func (e *env) helmInstall(flags ...string) {
	e.t.Helper()
	if _, err := e.node.Helm(e.t.Context(), "status", "inference-cache", "-n", installed); err == nil {
		e.removeRelease() // an earlier run left it in a cluster that is kept
	}
	e.createNamespace(installed, restricted)
	args := append([]string{"install", "inference-cache", chart, "-n", installed, "--wait", "--timeout=3m"}, flags...)
	if _, err := e.node.Helm(e.t.Context(), args...); err != nil {
		e.t.Fatal(err)
	}
}

// removeRelease uninstalls what is installed with Helm, and removes definitions
// and namespace.
func (e *env) removeRelease() {
	shared.released = false
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.t.Context()), patience)
	defer cancel()
	if _, err := e.node.Helm(ctx, "uninstall", "inference-cache", "-n", installed, "--ignore-not-found", "--wait"); err != nil {
		e.t.Log(err)
	}
	e.removeDefinitions()
	e.afterwards("delete", "namespace", installed, "--wait=true", "--ignore-not-found", "--timeout=90s")
}

// removeDefinitions removes what an uninstallation keeps on purpose.
func (e *env) removeDefinitions() {
	names := e.afterwards("get", "crd", "-o", "name")
	for name := range strings.FieldsSeq(names) {
		if strings.HasSuffix(name, ".inferencecache.io") {
			e.afterwards("delete", name, "--wait=true", "--timeout=60s")
		}
	}
}

// trustServers puts the installed servers' authority where pods of the test's
// namespace find it, unless the controller has, as it does for a backend.
func (e *env) trustServers() {
	e.t.Helper()
	if _, err := e.try("", "get", "configmap", "inference-cache-server-ca"); err == nil {
		return
	}
	e.eventually("the servers' authority", func() error {
		encoded, err := e.try("", "-n", installed, "get", "secret", "inference-cache-server-tls", "-o", `jsonpath={.data.ca\.crt}`)
		if err != nil {
			return err
		}
		authority, err := base64.StdEncoding.DecodeString(encoded)
		if err == nil && len(authority) == 0 {
			err = errors.New("the secret has no ca.crt")
		}
		if err != nil {
			return err
		}
		return e.configMap("inference-cache-server-ca", "ca.crt", string(authority))
	})
}

func (e *env) configMap(name, key, value string) error {
	objects, err := e.try("", "create", "configmap", name, "--from-literal="+key+"="+value, "--dry-run=client", "-o", "yaml")
	if err != nil {
		return err
	}
	_, err = e.try(objects, "apply", "-f", "-")
	return err
}

func TestChartInstallsAndAnswersLookups(t *testing.T) {
	e := newEnv(t, restricted)
	caller := "system:serviceaccount:" + e.namespace + ":default"
	e.installChart("--set-json=server.tenantReaders=" + `[{"caller":"` + caller + `","tenants":["` + e.namespace + `"]}]`)
	e.trustServers()
	e.startTool("client")

	var answer *pb.LookupRouteResponse
	e.eventually("an answer of the servers", func() (err error) {
		answer, err = e.lookup("client", "--tenant="+e.namespace, "--model=sim", "--bytes="+strings.Repeat("a", 64))
		return err
	})
	if len(answer.ReplicaScores) > 0 || answer.ReasonCode == "" {
		t.Errorf("without engines: %v", answer)
	}
	others, err := e.lookup("client", "--tenant=of-others", "--model=sim", "--bytes=a")
	if err != nil || len(others.ReplicaScores) > 0 || others.ReasonCode == "" {
		t.Errorf("the tenant of others, which answers like an absent one: %v, %v", others, err)
	}
	_, err = e.tool("client", "lookup", "--server="+serverName+":9090", "--ca-file="+lookupCA, "--tenant="+e.namespace, "--model=sim", "--bytes=a")
	if err == nil || !strings.Contains(err.Error(), "Unauthenticated") {
		t.Errorf("a caller without a token: %v", err)
	}
}
