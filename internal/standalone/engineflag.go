// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"fmt"
	"strconv"
	"strings"
)

// EngineFlagSyntax documents ParseEngine.
const EngineFlagSyntax = "URL[,events=tcp://HOST:PORT][,replay=tcp://HOST:PORT][,topic=PREFIX][,runtime=vllm|sglang|tensorrt-llm][,model=ID][,replica=ID][,ranks=N][,role=single|prefill|decode][,bootstrap-port=N]"

// ParseEngine reads the value of an --engine flag.
func ParseEngine(text string) (Engine, error) {
	url, rest, _ := strings.Cut(text, ",")
	engine := Engine{URL: url}
	seen := map[string]bool{}
	for rest != "" {
		var option string
		option, rest, _ = strings.Cut(rest, ",")
		key, value, ok := strings.Cut(option, "=")
		if !ok || value == "" {
			return Engine{}, fmt.Errorf("engine %s: %q: expected KEY=VALUE", url, option)
		}
		if seen[key] {
			return Engine{}, fmt.Errorf("engine %s: %s is given twice", url, key)
		}
		seen[key] = true
		if err := engine.set(key, value); err != nil {
			return Engine{}, fmt.Errorf("engine %s: %w", url, err)
		}
	}
	if f := engine.check("$.engine"); f != nil {
		return Engine{}, f
	}
	return engine, nil
}

func (e *Engine) set(key, value string) error {
	switch key {
	case "events":
		e.Events = value
	case "replay":
		e.Replay = value
	case "topic":
		e.Topic = value
	case "runtime":
		e.Runtime = value
	case "model":
		e.Model = value
	case "replica":
		e.Replica = value
	case "role":
		e.Role = value
	case "bootstrap-port":
		port, err := strconv.Atoi(value)
		if err != nil {
			return fmt.Errorf("bootstrap-port=%s: expected a number from 1 to 65535", value)
		}
		e.BootstrapPort = Count(port)
	case "ranks":
		ranks, err := strconv.Atoi(value)
		if err != nil || ranks < 1 {
			return fmt.Errorf("ranks=%s: expected a number from 1 to %d", value, maxRanks)
		}
		e.Ranks = Count(ranks)
	default:
		return fmt.Errorf("unknown option %q: expected events, replay, topic, runtime, model, replica, ranks, role or bootstrap-port", key)
	}
	return nil
}
