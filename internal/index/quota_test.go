// SPDX-License-Identifier: Apache-2.0

package index_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/index"
)

// TestQuotaDropsOneUpdateByBytesInSmallSteps: all keys of an update have one
// time, so that their bytes decide; no step handles more than a few of them.
func TestQuotaDropsOneUpdateByBytesInSmallSteps(t *testing.T) {
	const stored, quota, most = 20_000, 3_000, 2_048
	short := index.Keys{Short: spread(1, stored)}
	long := index.Keys{Long: make([][]byte, stored)}
	for i := range long.Long {
		long.Long[i] = binary.BigEndian.AppendUint64([]byte("long"), uint64(i)*0x9e3779b97f4a7c15)
	}
	for name, keys := range map[string]index.Keys{"short keys": short, "long keys": long} {
		t.Run(name, func(t *testing.T) {
			sections := 0
			x := index.New(index.Config{
				DefaultRules: index.TenantRules{Limited: true, MaxKeys: quota},
				Observe: func(op string, _ time.Duration) {
					if op == "quota" {
						sections++
					}
				},
			})
			b := store("p", minute)
			b.Ops[0].Keys = keys
			x.Apply(b)

			all := make([]string, stored)
			for i := range all {
				if keys.Long != nil {
					all[i] = string(keys.Long[i])
				} else {
					all[i] = string(binary.BigEndian.AppendUint64(nil, keys.Short[i]))
				}
			}
			slices.SortFunc(all, func(a, b string) int { return bytes.Compare([]byte(a), []byte(b)) })
			var left []string
			for _, h := range x.Dump() {
				left = append(left, h.Key)
			}
			slices.Sort(left)
			if diff := cmp.Diff(all[stored-quota:], left); diff != "" {
				t.Errorf("other keys are left than the last %d by bytes (-want +got):\n%.500s", quota, diff)
			}
			if least := (stored - quota) / most; sections < least {
				t.Errorf("%d keys went in %d sections, want %d or more", stored-quota, sections, least)
			}
			if err := x.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}
