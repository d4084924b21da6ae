// SPDX-License-Identifier: Apache-2.0

package nodelocal_test

import (
	"slices"
	"testing"

	"github.com/inferencecache/inference-cache/internal/nodelocal"
)

func TestStorageArgumentsAreTakenAsTheyAre(t *testing.T) {
	s := &nodelocal.Storage{Protocol: "resp", Host: "$(HOST).example", Port: 6379}
	want := []string{"--l2-adapter", `{"host":"$$(HOST).example","port":6379,"type":"resp"}`}
	if got := s.Args(); !slices.Equal(got, want) {
		t.Errorf("arguments %q, want %q", got, want)
	}
	var none *nodelocal.Storage
	if none.Args() != nil || none.Env() != nil {
		t.Errorf("without a storage: %q, %v", none.Args(), none.Env())
	}
}
