// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

func TestEveryResourceDefinitionIsARegisteredType(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../../deploy/crds/*.yaml")
	if err != nil || len(files) != 6 {
		t.Fatalf("found %d resource definitions (%v), want 6", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, after, found := strings.Cut(string(text), "\n    kind: ")
		kind, _, _ := strings.Cut(after, "\n")
		if !found || !scheme.Recognizes(v1alpha1.GroupVersion.WithKind(kind)) || !scheme.Recognizes(v1alpha1.GroupVersion.WithKind(kind+"List")) {
			t.Errorf("%s: kind %q is not registered", file, kind)
		}
	}
}

func TestListsShowWhatIsPushedToServers(t *testing.T) {
	for _, kind := range []string{"cachepolicies", "cachetenants", "pdtopologies", "prompttemplates"} {
		text, err := os.ReadFile("../../deploy/crds/inferencecache.io_" + kind + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "name: Programmed\n") {
			t.Errorf("lists of %s do not show the condition Programmed", kind)
		}
	}
}
