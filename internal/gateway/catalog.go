// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/jsonscan"
	"github.com/inferencecache/inference-cache/internal/routing"
)

const (
	maxModels     = 1024
	maxModelBytes = 512
)

// model is one name a replica serves.
type model struct {
	id string
	// parent is the base model of an adapter, else empty.
	parent string
	// build tells apart what is served under one id, as far as engines tell.
	build string
	// raw is the engine's own description.
	raw []byte
}

// decodeModels reads an answer of /v1/models.
func decodeModels(data []byte) ([]model, error) {
	var list []byte
	err := jsonscan.Object(data, func(key, value []byte) error {
		if string(key) == "data" {
			list = value
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if list == nil {
		return nil, errors.New("no member data")
	}
	var models []model
	err = jsonscan.Array(list, func(element []byte) error {
		if len(models) == maxModels {
			return nil
		}
		m := model{raw: slices.Clone(element)}
		if err := jsonscan.Object(element, m.set); err != nil {
			return err
		}
		if m.id != "" && len(m.id) <= maxModelBytes && len(m.parent) <= maxModelBytes {
			models = append(models, m)
		}
		return nil
	})
	return models, err
}

func (m *model) set(key, value []byte) error {
	switch string(key) {
	case "id":
		m.id, _ = jsonscan.String(value)
	case "parent":
		m.parent, _ = jsonscan.String(value)
	case "root", "max_model_len":
		m.build += string(key) + string(value)
	}
	return nil
}

// staticModels describes models by configuration.
func staticModels(ids []string, now time.Time) []model {
	models := make([]model, 0, len(ids))
	for _, id := range ids {
		raw, _ := json.Marshal(map[string]any{ // strings and numbers always encode
			"id": id, "object": "model", "created": now.Unix(), "owned_by": "inference-cache",
		})
		models = append(models, model{id: id, raw: raw})
	}
	return models
}

// baseModel returns the first name that is no adapter: the one under which
// publishers report the engine's blocks.
func baseModel(models []model) string {
	for _, m := range models {
		if m.parent == "" {
			return m.id
		}
	}
	return ""
}

// serves converts models to what a fleet takes.
func serves(models []model) routing.Serves {
	out := routing.Serves{}
	for _, m := range models {
		if m.parent == "" {
			out[m.id] = slices.Clip(out[m.id])
		} else {
			out[m.parent] = append(out[m.parent], m.id)
		}
	}
	return out
}

// resolved says what a client's model name stands for.
type resolved struct {
	// name is what the client said, base the model, adapter its LoRA adapter
	// or empty.
	name, base, adapter string
}

// catalog knows the models of all replicas, also of those that are not ready
// now. It is safe for concurrent use.
type catalog struct {
	mu sync.RWMutex
	// byReplica and order are guarded by mu; the slices in byReplica never
	// change.
	byReplica map[string][]model
	order     []string
}

func newCatalog() *catalog { return &catalog{byReplica: map[string][]model{}} }

// Set replaces the models of a replica and says whether it serves others now.
// Descriptions may change at each call; engines put the time into them.
func (c *catalog) Set(replica string, models []model) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed = !slices.EqualFunc(c.byReplica[replica], models, sameModel)
	if _, known := c.byReplica[replica]; !known {
		at, _ := slices.BinarySearch(c.order, replica)
		c.order = slices.Insert(c.order, at, replica)
	}
	c.byReplica[replica] = models
	return changed
}

// Remove forgets the models of a replica.
func (c *catalog) Remove(replica string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.byReplica[replica]; !known {
		return
	}
	delete(c.byReplica, replica)
	at, _ := slices.BinarySearch(c.order, replica)
	c.order = slices.Delete(c.order, at, at+1)
}

func sameModel(a, b model) bool { return a.id == b.id && a.parent == b.parent && a.build == b.build }

// Resolve finds a name. The empty name stands for the only base model, if
// there is only one.
func (c *catalog) Resolve(name string) (resolved, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if name == "" {
		return c.onlyLocked()
	}
	for _, replica := range c.order {
		for _, m := range c.byReplica[replica] {
			switch {
			case m.id != name:
			case m.parent == "":
				return resolved{name: name, base: name}, true
			default:
				return resolved{name: name, base: m.parent, adapter: name}, true
			}
		}
	}
	return resolved{}, false
}

func (c *catalog) onlyLocked() (resolved, bool) {
	only := ""
	for _, models := range c.byReplica {
		base := baseModel(models)
		if only != "" && base != "" && base != only {
			return resolved{}, false
		}
		if base != "" {
			only = base
		}
	}
	return resolved{base: only}, only != ""
}

// IndexModel returns the model id a replica's blocks are reported under.
func (c *catalog) IndexModel(replica string) string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return baseModel(c.byReplica[replica])
}

// Models counts distinct base models.
func (c *catalog) Models() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	seen := map[string]bool{}
	for _, models := range c.byReplica {
		for _, m := range models {
			if m.parent == "" {
				seen[m.id] = true
			}
		}
	}
	return len(seen)
}

// List returns the engines' descriptions of the models of the replicas that
// include accepts, each id once.
func (c *catalog) List(include func(replica string) bool) []model {
	c.mu.RLock()
	defer c.mu.RUnlock()
	seen := map[string]bool{}
	var out []model
	for _, replica := range c.order {
		if !include(replica) {
			continue
		}
		for _, m := range c.byReplica[replica] {
			if !seen[m.id] {
				seen[m.id] = true
				out = append(out, m)
			}
		}
	}
	return out
}
