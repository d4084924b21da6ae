// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"hash/maphash"

	"github.com/inferencecache/inference-cache/internal/jsonscan"
)

// maxStickyBytes is the longest value that counts as a sticky key.
const maxStickyBytes = 128

// stickyKey returns the key that ties requests of this caller together, 0 if
// there is none. Only a keyed hash of the client's value is kept.
func (x *exchange) stickyKey() uint64 {
	value := ""
	if name := x.gateway.options.StickyHeader; name != "" && (x.trusted || controlFamily(name) == "") {
		value = x.request.Header.Get(name)
	}
	if value == "" {
		value = x.fields.sticky
	}
	if value == "" || len(value) > maxStickyBytes {
		return 0
	}
	var h maphash.Hash
	h.SetSeed(x.gateway.stickySeed)
	for _, part := range []string{x.caller.Tenant, x.model.name, value} {
		_, _ = h.WriteString(part)
		_ = h.WriteByte(0)
	}
	return max(h.Sum64(), 1)
}

// noteSticky takes the sticky key from a member of the body.
func (x *exchange) noteSticky(key, value []byte) {
	if field := x.gateway.options.StickyField; field != "" && string(key) == field {
		x.fields.sticky, _ = jsonscan.String(value)
	}
}
