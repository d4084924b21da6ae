// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"testing"

	"github.com/inferencecache/inference-cache/internal/lookup"
	cacheclient "github.com/inferencecache/inference-cache/pkg/client"
)

// The SDK cannot import the server's reason codes, so this holds the two lists
// together. UNKNOWN_ADAPTER is no part of the contract.
func TestClientKnowsEveryReasonOfTheServer(t *testing.T) {
	for _, reason := range lookup.Reasons() {
		if reason != lookup.UnknownAdapter && !slices.Contains(cacheclient.Reasons(), cacheclient.Reason(reason)) {
			t.Errorf("pkg/client does not know %s", reason)
		}
	}
}
