// SPDX-License-Identifier: Apache-2.0

package fingerprint_test

import (
	"fmt"

	"github.com/inferencecache/inference-cache/pkg/fingerprint"
)

func tokensUpTo(n uint32) (tokens []uint32) {
	for token := uint32(1); token <= n; token++ {
		tokens = append(tokens, token)
	}
	return tokens
}

// The chain of a prompt of 32 tokens in blocks of 16.
func ExampleAppend() {
	keys := fingerprint.Append(nil, fingerprint.Parent{}, tokensUpTo(32), 16)
	fmt.Printf("%016x\n", keys)
	// Output: [ea06fc71a5ee6e88 ad01835a37dd294c]
}

// A chain can be continued from its last key.
func ExampleChild() {
	tokens := tokensUpTo(32)
	first := fingerprint.Append(nil, fingerprint.Parent{}, tokens[:16], 16)
	rest := fingerprint.Append(nil, fingerprint.Child(first[0]), tokens[16:], 16)
	fmt.Printf("%016x\n", rest)
	// Output: [ad01835a37dd294c]
}

// Requests with different salts share no key.
func ExampleSaltParent() {
	for _, salt := range []string{"", "tenant-a", "tenant-b"} {
		keys := fingerprint.Append(nil, fingerprint.SaltParent(salt), tokensUpTo(16), 16)
		fmt.Printf("%q %016x\n", salt, keys)
	}
	// Output:
	// "" [ea06fc71a5ee6e88]
	// "tenant-a" [9cab6266ec6bd858]
	// "tenant-b" [bf5d430ab21f0ee4]
}

// An image gives the block it touches another parent; the blocks before it
// keep their keys.
func ExampleMultimodalParent() {
	image := []fingerprint.Identifier{{ID: "image-1", Offset: 2}}
	parent := fingerprint.MultimodalParent(fingerprint.Parent{}, image)
	key := fingerprint.Next(parent, fingerprint.Content(tokensUpTo(16)))
	fmt.Printf("%016x\n", key)
	// Output: 6103e78522d17dc3
}

// Wire gives the contract's block_hashes.
func ExampleWire() {
	keys := fingerprint.Append(nil, fingerprint.Parent{}, tokensUpTo(16), 16)
	fmt.Printf("%x\n", fingerprint.Wire(keys))
	// Output: [ea06fc71a5ee6e88]
}
