// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"strconv"
	"strings"
)

// ReplicaFlagSyntax documents ParseReplica.
const ReplicaFlagSyntax = "ID=URL[,runtime=vllm|sglang|tensorrt-llm][,rank=N][,tenant=NAME][,model=ID][,role=single|prefill|decode][,bootstrap-port=N][,max-inflight=N][,uid=TEXT][,protocol=http1|h2c][,caller=TENANT][,cordoned=true|false]"

// ParseReplica reads a replica from one line of text. model and caller may be
// repeated.
func ParseReplica(text string) (Replica, error) {
	parts := strings.Split(text, ",")
	id, url, ok := strings.Cut(parts[0], "=")
	if !ok || id == "" || url == "" {
		return Replica{}, fmt.Errorf("%q: expected %s", parts[0], ReplicaFlagSyntax)
	}
	replica := Replica{ID: id, URL: url}
	for _, option := range parts[1:] {
		key, value, ok := strings.Cut(option, "=")
		if !ok || value == "" {
			return Replica{}, fmt.Errorf("replica %s: %q: expected KEY=VALUE", id, option)
		}
		if err := replica.set(key, value); err != nil {
			return Replica{}, fmt.Errorf("replica %s: %w", id, err)
		}
	}
	return replica, nil
}

func (r *Replica) set(key, value string) error {
	switch key {
	case "runtime":
		r.Runtime = value
	case "tenant":
		r.Tenant = value
	case "model":
		r.Models = append(r.Models, value)
	case "uid":
		r.UID = value
	case "role":
		r.Role = value
	case "protocol":
		r.Protocol = value
	case "caller":
		r.CallerTenants = append(r.CallerTenants, value)
	case "cordoned":
		cordoned, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("cordoned=%.32q: expected true or false", value)
		}
		r.Cordoned = cordoned
	case "rank", "max-inflight", "bootstrap-port":
		number, err := strconv.Atoi(value)
		if err != nil || number < 0 {
			return fmt.Errorf("%s=%s: expected a number from 0", key, value)
		}
		switch key {
		case "rank":
			r.Rank = &number
		case "bootstrap-port":
			r.BootstrapPort = number
		default:
			r.MaxInflight = number
		}
	default:
		return fmt.Errorf("unknown option %q: expected runtime, rank, tenant, model, role, bootstrap-port, max-inflight, uid, protocol, caller or cordoned", key)
	}
	return nil
}
