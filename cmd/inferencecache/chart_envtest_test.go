// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controlclient"
	"github.com/inferencecache/inference-cache/internal/controller"
	"github.com/inferencecache/inference-cache/internal/kubetest"
)

const installNamespace = "inference-cache-system"

// logText collects logs of several goroutines.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// rendered returns the objects of the Helm chart.
func rendered(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	folder := t.TempDir()
	command := exec.Command("go", "test", "-C", "../../deploy/helm/test", "-count=1", "-run", "^TestWriteRendered$", ".", "-write-to", folder)
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("render the chart: %v\n%s", err, output)
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var all []*unstructured.Unstructured
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq("\n"+string(text), "\n---") {
			object := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(document+"\n"), &object.Object); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if object.GetKind() != "" {
				all = append(all, object)
			}
		}
	}
	return all
}

// TestEnvtestChartInstalls applies the chart in a namespace that takes
// restricted pods only, and runs the controller as the chart's account.
func TestEnvtestChartInstalls(t *testing.T) {
	cluster := kubetest.Start(t, "../../deploy/crds")
	cluster.Namespace(t, installNamespace, map[string]string{
		"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted",
	})
	objects := rendered(t)
	if len(objects) < 30 {
		t.Fatalf("the chart renders %d objects", len(objects))
	}
	for _, object := range objects {
		err := cluster.Client.Patch(t.Context(), object, client.Apply, client.FieldOwner("helm"), client.ForceOwnership)
		if err != nil {
			t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
	if warnings := cluster.Warnings(); len(warnings) > 0 {
		t.Errorf("warnings: %v", warnings)
	}

	config := rest.CopyConfig(cluster.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + installNamespace + ":inference-cache-controller-manager",
		Groups:   []string{"system:serviceaccounts", "system:authenticated"},
	}
	logs := &logText{}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- controller.Run(ctx, controller.Options{
			Config: config, LeaderElect: true, Namespace: installNamespace, Discovery: controller.DiscoverEndpoints,
			HealthAddress: "0", WireVersion: 7, MaxReplicas: 10,
			PollInterval: time.Second, PushInterval: time.Second,
			Servers: controlclient.Options{URLs: controlclient.URLs{
				Snapshot: "https://inference-cache-server:8081/snapshot", Policy: "https://inference-cache-server:8081/policy",
			}},
			Logger: slog.New(slog.NewTextHandler(logs, nil)),
		})
	}()
	kubetest.Eventually(t, "lease held and index created", func() error {
		lease := &coordinationv1.Lease{}
		return errors.Join(
			cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: installNamespace, Name: controller.LeaderLock}, lease),
			cluster.Client.Get(t.Context(), client.ObjectKey{Name: "cluster-default"}, &v1alpha1.CacheIndex{}),
		)
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if text := logs.String(); strings.Contains(text, "forbidden") {
		t.Errorf("the account lacks permissions:\n%s", text)
	}
}
