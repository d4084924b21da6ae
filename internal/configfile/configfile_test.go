// SPDX-License-Identifier: Apache-2.0

package configfile_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/inferencecache/inference-cache/internal/configfile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type settings struct {
	Name    string              `yaml:"name"`
	Size    configfile.ByteSize `yaml:"size"`
	Timeout configfile.Duration `yaml:"timeout"`
	Count   configfile.Count    `yaml:"count"`
}

func (s *settings) check() *configfile.Fault {
	if s.Name == "" {
		return configfile.NewFault("$.name", "expected a name")
	}
	return nil
}

func TestParse(t *testing.T) {
	cases := map[string]struct{ text, wantErr string }{
		"all values":       {text: "name: a\nsize: 2MiB\ntimeout: 5s\ncount: 1_000\n"},
		"a value at fault": {"size: 1\nname: \"\"\n", "f.yaml:2:7: name: expected a name"},
		"an unknown key":   {"name: a\nnames: b\n", "f.yaml:2:1"},
		"no duration":      {"name: a\ntimeout: 5\n", "f.yaml:2:10"},
		"no number":        {"name: a\ncount: many\n", "f.yaml:2:8"},
		"two documents":    {"name: a\n---\nname: b\n", "a second document"},
		"no YAML":          {"name: [", "f.yaml"},
		"nothing":          {"", "f.yaml: the file is empty"},
		"comments alone":   {"# name: a\n\n", "f.yaml: the file is empty"},
		"a missing value":  {"size: 1\n", "f.yaml: name: expected a name"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var s settings
			err := configfile.Parse("f.yaml", []byte(tc.text), &s, s.check)
			if tc.wantErr == "" {
				if err != nil || s != (settings{"a", 2 << 20, configfile.Duration(5 * time.Second), 1000}) {
					t.Errorf("%+v, %v", s, err)
				}
				return
			}
			var fault *configfile.Error
			if !errors.As(err, &fault) || !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("error %v, want one with %q", err, tc.wantErr)
			}
		})
	}
}

// TestWatcher changes a file, breaks it, repairs it, removes it, and asks for a
// reload.
func TestWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "f.yaml")
		put := func(text string) {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		put("name: first")
		var applied []string
		signals := make(chan os.Signal, 1)
		registry := prometheus.NewRegistry()
		watcher := configfile.Watcher{
			Path: path, Signals: signals, Reloads: configfile.NewReloads(registry),
			Apply: func() error {
				var s settings
				if err := configfile.Load(path, &s, s.check); err != nil {
					return err
				}
				applied = append(applied, s.Name)
				return nil
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { watcher.Run(ctx) })
		defer running.Wait()
		defer cancel()
		synctest.Wait()
		check := func(step string, wantApplied string, wantRefused, wantInUse int) {
			t.Helper()
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if got := strings.Join(applied, " "); got != wantApplied {
				t.Errorf("%s: applied %q, want %q", step, got, wantApplied)
			}
			want := strings.NewReader(strings.ReplaceAll(`# HELP inferencecache_config_in_use 1 while the configuration in use is what the file says.
# TYPE inferencecache_config_in_use gauge
inferencecache_config_in_use N
`, " N\n", map[int]string{0: " 0\n", 1: " 1\n"}[wantInUse]))
			if err := testutil.GatherAndCompare(registry, want, "inferencecache_config_in_use"); err != nil {
				t.Errorf("%s: %v", step, err)
			}
			if got := refused(t, registry); got != wantRefused {
				t.Errorf("%s: %d refused, want %d", step, got, wantRefused)
			}
		}
		check("nothing changed", "", 0, 1)
		put("name: second")
		check("changed", "second", 0, 1)
		put("name: [")
		check("broken", "second", 1, 0)
		put("name: third")
		check("repaired", "second third", 1, 1)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		check("removed", "second third", 2, 0)
		put("name: third")
		check("back", "second third third", 2, 1)
		signals <- syscall.SIGHUP
		check("asked", "second third third third", 2, 1)
	})
}

func refused(t *testing.T, registry *prometheus.Registry) int {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetValue() == "refused" {
					return int(m.GetCounter().GetValue())
				}
			}
		}
	}
	return -1
}
