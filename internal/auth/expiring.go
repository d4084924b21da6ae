// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"container/list"
	"time"
)

// expiring remembers a bounded number of values by token for a fixed time.
// Invariant: order holds the entries of the map, the one expiring soonest in
// front. It is not safe for concurrent use.
type expiring[V any] struct {
	life    time.Duration
	limit   int
	entries map[tokenSum]*list.Element // of *expiringEntry[V]
	order   *list.List
}

type expiringEntry[V any] struct {
	key     tokenSum
	value   V
	expires time.Time
}

func newExpiring[V any](life time.Duration, limit int) *expiring[V] {
	return &expiring[V]{life: life, limit: limit, entries: make(map[tokenSum]*list.Element), order: list.New()}
}

// get returns a value and how long it is still good.
func (c *expiring[V]) get(key tokenSum, now time.Time) (value V, left time.Duration, ok bool) {
	element, ok := c.entries[key]
	if !ok {
		return value, 0, false
	}
	entry := element.Value.(*expiringEntry[V])
	left = entry.expires.Sub(now)
	return entry.value, left, left > 0
}

// put remembers a value, at the cost of the one expiring soonest when full.
func (c *expiring[V]) put(key tokenSum, value V, now time.Time) {
	c.remove(key)
	for front := c.order.Front(); front != nil; front = c.order.Front() {
		entry := front.Value.(*expiringEntry[V])
		if c.order.Len() < c.limit && entry.expires.After(now) {
			break
		}
		c.remove(entry.key)
	}
	c.entries[key] = c.order.PushBack(&expiringEntry[V]{key, value, now.Add(c.life)})
}

func (c *expiring[V]) remove(key tokenSum) {
	if element, ok := c.entries[key]; ok {
		c.order.Remove(element)
		delete(c.entries, key)
	}
}
