// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// model is the literal description of the pool: every list is a slice that is
// searched from the front.
type model struct {
	keys       []int // 0 means none
	references []int
	freeOrder  []ID
	filled     []ID // cached blocks, oldest first
}

func newModel(capacity int) *model {
	m := &model{keys: make([]int, capacity), references: make([]int, capacity)}
	for id := range capacity {
		m.freeOrder = append(m.freeOrder, ID(id))
	}
	return m
}

func (m *model) oldest(key int) (ID, bool) {
	for _, id := range m.filled {
		if m.keys[id] == key {
			return id, true
		}
	}
	return 0, false
}

func (m *model) run(keys []int) int {
	for i, key := range keys {
		if _, ok := m.oldest(key); !ok {
			return i
		}
	}
	return len(keys)
}

func (m *model) acquire(keys []int, fresh int) (ids []ID, evicted []Eviction[int], ok bool) {
	revived := 0
	for _, key := range keys {
		id, _ := m.oldest(key)
		if m.references[id] == 0 {
			revived++
		}
	}
	if len(m.freeOrder) < revived+fresh {
		return nil, nil, false
	}
	for _, key := range keys {
		id, _ := m.oldest(key)
		m.freeOrder = slices.DeleteFunc(m.freeOrder, func(f ID) bool { return f == id })
		m.references[id]++
		ids = append(ids, id)
	}
	for range fresh {
		id := m.freeOrder[0]
		m.freeOrder = m.freeOrder[1:]
		if key := m.keys[id]; key != 0 {
			m.keys[id] = 0
			m.filled = slices.DeleteFunc(m.filled, func(f ID) bool { return f == id })
			_, more := m.oldest(key)
			evicted = append(evicted, Eviction[int]{Key: key, Last: !more})
		}
		m.references[id] = 1
		ids = append(ids, id)
	}
	return ids, evicted, true
}

func (m *model) fill(id ID, key int) bool {
	_, exists := m.oldest(key)
	m.keys[id] = key
	m.filled = append(m.filled, id)
	return !exists
}

func (m *model) release(ids []ID) {
	for i := len(ids) - 1; i >= 0; i-- {
		m.references[ids[i]]--
		if m.references[ids[i]] == 0 {
			m.freeOrder = append(m.freeOrder, ids[i])
		}
	}
}

func TestPoolEqualsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.IntRange(1, 12).Draw(t, "capacity")
		real, want := New[int](capacity), newModel(capacity)
		var requests [][]ID
		// A key path is a node of a binary tree, so that runs share prefixes.
		path := func(t *rapid.T) []int {
			var keys []int
			node := 1
			for _, right := range rapid.SliceOfN(rapid.Bool(), 0, 5).Draw(t, "path") {
				node *= 2
				if right {
					node++
				}
				keys = append(keys, node)
			}
			return keys
		}
		t.Repeat(map[string]func(*rapid.T){
			"request": func(t *rapid.T) {
				keys := path(t)
				run := real.Run(keys)
				if wantRun := want.run(keys); run != wantRun {
					t.Fatalf("run %d, want %d", run, wantRun)
				}
				hit := min(run, rapid.IntRange(0, run).Draw(t, "hit"))
				ids, evicted, ok := real.Acquire(keys[:hit], len(keys)-hit)
				wantIDs, wantEvicted, wantOK := want.acquire(keys[:hit], len(keys)-hit)
				if ok != wantOK || !slices.Equal(ids, wantIDs) || !slices.Equal(evicted, wantEvicted) {
					t.Fatalf("acquire: got %v %v %v, want %v %v %v", ids, evicted, ok, wantIDs, wantEvicted, wantOK)
				}
				if !ok {
					return
				}
				for i := hit; i < len(keys); i++ {
					if got, wantFirst := real.Fill(ids[i], keys[i]), want.fill(ids[i], keys[i]); got != wantFirst {
						t.Fatalf("fill: first %v, want %v", got, wantFirst)
					}
				}
				requests = append(requests, ids)
			},
			"finish": func(t *rapid.T) {
				if len(requests) == 0 {
					t.Skip("nothing runs")
				}
				i := rapid.IntRange(0, len(requests)-1).Draw(t, "request")
				real.Release(requests[i])
				want.release(requests[i])
				requests = slices.Delete(requests, i, i+1)
			},
			"reset": func(t *rapid.T) {
				if got := real.Reset(); got != (real.Used() == 0) {
					t.Fatalf("reset %v with %d blocks in use", got, real.Used())
				}
				if real.Used() == 0 {
					clear(want.keys)
					want.filled = nil
				}
			},
			"": func(t *rapid.T) {
				if real.Free() != len(want.freeOrder) || real.Cached() != len(want.filled) {
					t.Fatalf("free %d cached %d, want %d %d", real.Free(), real.Cached(), len(want.freeOrder), len(want.filled))
				}
				distinct := map[int]bool{}
				for _, id := range want.filled {
					distinct[want.keys[id]] = true
				}
				if real.Keys() != len(distinct) {
					t.Fatalf("keys %d, want %d", real.Keys(), len(distinct))
				}
			},
		})
	})
}

func TestPool(t *testing.T) {
	type event struct {
		Evicted []Eviction[string]
		OK      bool
	}
	cases := map[string]struct {
		run  func(p *Pool[string]) event
		want event
	}{
		"the tail of a finished request is evicted first": {
			run: func(p *Pool[string]) event {
				store(p, "a", "b", "c", "d")
				_, evicted, ok := p.Acquire(nil, 2)
				return event{evicted, ok}
			},
			want: event{[]Eviction[string]{{"d", true}, {"c", true}}, true},
		},
		"a hit protects a prefix from eviction": {
			run: func(p *Pool[string]) event {
				store(p, "a", "b", "c", "d")
				hit, _, _ := p.Acquire([]string{"a", "b"}, 0)
				_, _, tooMany := p.Acquire(nil, 3)
				p.Release(hit)
				if tooMany {
					return event{nil, false}
				}
				_, evicted, ok := p.Acquire(nil, 3)
				return event{evicted, ok}
			},
			want: event{[]Eviction[string]{{"d", true}, {"c", true}, {"b", true}}, true},
		},
		"the first copy to go is not the last": {
			run: func(p *Pool[string]) event {
				store(p, "a", "b")
				ids, _, _ := p.Acquire([]string{"a"}, 1)
				p.Fill(ids[1], "b")
				p.Release(ids)
				_, evicted, ok := p.Acquire(nil, 3)
				return event{evicted, ok}
			},
			want: event{[]Eviction[string]{{"b", false}, {"b", true}}, true},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.run(New[string](4))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// store runs one finished request over the keys.
func store(p *Pool[string], keys ...string) {
	ids, _, _ := p.Acquire(nil, len(keys))
	for i, key := range keys {
		p.Fill(ids[i], key)
	}
	p.Release(ids)
}
