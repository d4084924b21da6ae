// SPDX-License-Identifier: Apache-2.0

package finding_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/finding"
)

func TestList(t *testing.T) {
	var list finding.List
	if open := list.Open(); open == nil || len(open) != 0 {
		t.Errorf("an empty list holds %v", open)
	}
	first, second := time.Unix(1, 0), time.Unix(2, 0)
	f := finding.Finding{Code: finding.ParityFailed, Where: "b", What: "w", Action: "a"}
	if !list.Raise(f, first) || list.Raise(f, second) {
		t.Error("a finding is new once")
	}
	list.Raise(finding.Finding{Code: finding.ParityFailed, Where: "a"}, second)
	want := []finding.Finding{
		{Code: finding.ParityFailed, Where: "a", Since: second, Seen: second, Count: 1},
		{Code: finding.ParityFailed, Where: "b", What: "w", Action: "a", Since: first, Seen: second, Count: 2},
	}
	if diff := cmp.Diff(want, list.Open()); diff != "" {
		t.Errorf("open (-want +got):\n%s", diff)
	}
	if !list.Clear(finding.ParityFailed, "b") || list.Clear(finding.ParityFailed, "b") {
		t.Error("a finding is closed once")
	}
	counts := list.Count()
	if len(counts) != len(finding.Codes()) || counts[finding.ParityFailed] != 1 || counts[finding.CountMismatch] != 0 {
		t.Errorf("counts %v", counts)
	}
}

func TestListIsBounded(t *testing.T) {
	var list finding.List
	for i := range 10_000 {
		list.Raise(finding.Finding{Code: finding.EventsMissing, Where: fmt.Sprint(i)}, time.Unix(0, 0))
	}
	if n := len(list.Open()); n != 256 {
		t.Errorf("%d findings are open", n)
	}
}
