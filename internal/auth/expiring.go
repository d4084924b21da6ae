// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"container/list"
	"time"
)

// expiring remembers a bounded number of values for a fixed time.
// Invariant: order holds the entries of the map, the one expiring soonest in
// front. It is not safe for concurrent use.
type expiring[K comparable, V any] struct {
	life    time.Duration
	limit   int
	entries map[K]*list.Element // of *expiringEntry[K, V]
	order   *list.List
}

type expiringEntry[K comparable, V any] struct {
	key     K
	value   V
	expires time.Time
}

func newExpiring[K comparable, V any](life time.Duration, limit int) *expiring[K, V] {
	return &expiring[K, V]{life: life, limit: limit, entries: make(map[K]*list.Element), order: list.New()}
}

// get returns a value and how long it is still good.
func (c *expiring[K, V]) get(key K, now time.Time) (value V, left time.Duration, ok bool) {
	element, ok := c.entries[key]
	if !ok {
		return value, 0, false
	}
	entry := element.Value.(*expiringEntry[K, V])
	left = entry.expires.Sub(now)
	return entry.value, left, left > 0
}

// put remembers a value, at the cost of the one expiring soonest when full.
func (c *expiring[K, V]) put(key K, value V, now time.Time) {
	c.remove(key)
	for front := c.order.Front(); front != nil; front = c.order.Front() {
		entry := front.Value.(*expiringEntry[K, V])
		if c.order.Len() < c.limit && entry.expires.After(now) {
			break
		}
		c.remove(entry.key)
	}
	c.entries[key] = c.order.PushBack(&expiringEntry[K, V]{key, value, now.Add(c.life)})
}

func (c *expiring[K, V]) remove(key K) {
	if element, ok := c.entries[key]; ok {
		c.order.Remove(element)
		delete(c.entries, key)
	}
}
