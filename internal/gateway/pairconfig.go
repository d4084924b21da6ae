// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"fmt"
	"slices"

	"github.com/inferencecache/inference-cache/internal/engines"
	"github.com/inferencecache/inference-cache/internal/routing"
)

// defaultBootstrapPort is that of an SGLang prefill engine.
const defaultBootstrapPort = 8998

// role is the replica's part; validation has refused unknown names.
func (r *Replica) role() routing.Role {
	role, _ := routing.ParseRole(r.Role)
	return role
}

// transport is how the replica passes KV on: each runtime has one way.
func (r *Replica) transport() string {
	if r.role() == routing.RoleSingle {
		return ""
	}
	return r.Runtime
}

func (r *Replica) checkRole() error {
	role, err := routing.ParseRole(r.Role)
	switch {
	case err != nil:
		return err
	case role != routing.RoleSingle && r.Runtime != engines.VLLM && r.Runtime != engines.SGLang:
		return fmt.Errorf("role %s: expected runtime vllm or sglang, not %s", role, r.Runtime)
	case r.BootstrapPort < 0 || r.BootstrapPort > 65535:
		return fmt.Errorf("bootstrap port %d: expected 1 to 65535", r.BootstrapPort)
	case r.BootstrapPort != 0 && (role != routing.RolePrefill || r.Runtime != engines.SGLang):
		return errors.New("bootstrap port: expected only with role prefill and runtime sglang")
	default:
		return nil
	}
}

// checkPairs refuses prefill and decode replicas of one model that cannot pass
// KV on to each other.
func checkPairs(replicas []Replica) error {
	for i := range replicas {
		prefill := &replicas[i]
		if prefill.role() != routing.RolePrefill {
			continue
		}
		for j := range replicas {
			decode := &replicas[j]
			if decode.role() == routing.RoleDecode && decode.Runtime != prefill.Runtime && mayShareModel(prefill, decode) {
				return fmt.Errorf("replica %q: a prefill replica of %s cannot serve decode replica %q of %s: "+
					"expected one runtime, or models that tell them apart", prefill.ID, prefill.Runtime, decode.ID, decode.Runtime)
			}
		}
	}
	return nil
}

// mayShareModel is true unless both say what they serve, and that is different.
func mayShareModel(a, b *Replica) bool {
	if len(a.Models) == 0 || len(b.Models) == 0 {
		return true
	}
	return slices.ContainsFunc(a.Models, func(model string) bool { return slices.Contains(b.Models, model) })
}
