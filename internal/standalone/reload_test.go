// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"strings"
	"testing"
	"time"
)

// replicas lists those of the gateway that are ready.
func (f *fleet) replicas() string {
	var ids []string
	for _, r := range f.up.gateway.State().Replicas {
		if r.Ready && !r.Draining {
			ids = append(ids, r.ID)
		}
	}
	return strings.Join(ids, " ")
}

// TestReload adds an engine to a running `up`, takes another away, and sends
// prompts after each.
func TestReload(t *testing.T) {
	first, second := startEngine(t, fastEngine()), startEngine(t, fastEngine())
	f := startFleet(t, first)
	name := func(e Engine) string { return e.withDefaults().Replica }
	a, b := engineConfig(first), engineConfig(second)
	reload := func(change func(*Config)) error {
		config := f.up.current
		change(&config)
		return f.up.Reload(config)
	}

	if err := reload(func(c *Config) { c.Engines = []Engine{a, b} }); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the new engine is ready", func() bool { return len(strings.Fields(f.replicas())) == 2 })
	f.awaitReady()
	prompt := text("a prompt for either", 320)
	holder := f.complete(prompt, nil).replica
	f.awaitKeys(20)
	if got := f.complete(prompt, nil); got.replica != holder || got.cachedTokens == 0 {
		t.Errorf("went to %s with %d tokens cached, %s holds it", got.replica, got.cachedTokens, holder)
	}

	if err := reload(func(c *Config) { c.Engines = []Engine{b} }); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "only the new engine is left", func() bool { return f.replicas() == name(b) })
	if got := f.complete(prompt, nil); got.status != 200 || got.replica != name(b) {
		t.Errorf("%d from %s", got.status, got.replica)
	}
	if n := len(f.up.followers.publishers()); n != 1 {
		t.Errorf("%d engines are followed, want 1", n)
	}

	if err := reload(func(c *Config) { c.Engines = []Engine{a, b}; c.Routing.Policy = "random" }); err != nil {
		t.Fatal("an engine that comes back:", err)
	}
	if got := f.up.gateway.State().Policy; got != "random" {
		t.Errorf("policy %s", got)
	}
	f.awaitReady()

	for what, change := range map[string]func(*Config){
		"an engine twice":  func(c *Config) { c.Engines = []Engine{a, a} },
		"a policy":         func(c *Config) { c.Routing.Policy = "best" },
		"an engine's type": func(c *Config) { c.Engines = []Engine{{URL: a.URL, Runtime: "other"}} },
	} {
		if err := reload(change); err == nil {
			t.Errorf("%s that cannot be was taken", what)
		}
	}
	if got := len(strings.Fields(f.replicas())); got != 2 {
		t.Errorf("%d engines after configurations that were refused", got)
	}
	if err := reload(func(c *Config) { c.Tenant = "other" }); err != nil || !strings.Contains(f.logs.String(), "needs a restart") {
		t.Errorf("a value that needs a restart: %v", err)
	}
}
