// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestInjectedFlagsArePublisherFlags holds what is injected into pods against
// the flags that there are.
func TestInjectedFlagsArePublisherFlags(t *testing.T) {
	files, err := filepath.Glob("../../internal/inject/testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	checked := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var pod corev1.Pod
		if err := yaml.Unmarshal(text, &pod); err != nil {
			t.Fatal(err)
		}
		for _, c := range pod.Spec.InitContainers {
			if c.Name != "kvevent-subscriber" {
				continue
			}
			checked++
			options, flags := &publisherOptions{}, pflag.NewFlagSet("publisher", pflag.ContinueOnError)
			options.addFlags(flags)
			if err := flags.Parse(c.Args); err != nil {
				t.Errorf("%s: %v", file, err)
			}
			if err := options.complete(); err != nil {
				t.Errorf("%s: %v", file, err)
			}
			if !options.sidecar.KeepRunning || options.sidecar.Credentials.TokenFile == "" || options.sidecar.Publisher.Events == "" ||
				!options.sidecar.Publisher.Hub.GoneAtEnd {
				t.Errorf("%s: the flags give %+v", file, options.sidecar)
			}
		}
	}
	if checked == 0 {
		t.Error("no golden file has a publisher")
	}
}
