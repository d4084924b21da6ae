// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"errors"
	"fmt"
	"strings"

	"github.com/inferencecache/inference-cache/internal/configfile"
)

// Reloads counts what became of a configuration file that is followed.
func (s *Standalone) Reloads() *configfile.Reloads { return s.metrics.reloads }

// Reload goes on with other engines and another routing policy. All other
// values need a restart; which of them changed is logged. On an error nothing
// changes. It must not be called at the same time as itself.
func (s *Standalone) Reload(config Config) error {
	if err := config.Validate(); err != nil {
		return err
	}
	next := config.withDefaults()
	s.warnOfRestart(next)
	// What the running roles were built from stays.
	running := s.current
	running.Engines, running.Routing.Policy = next.Engines, next.Routing.Policy
	if err := s.gateway.Apply(s.gatewayOptions(running)); err != nil {
		return fmt.Errorf("routing: %w", err)
	}
	if err := s.follow(running.Engines); err != nil {
		// Requests need no events, so the engines that cannot be followed stay.
		return errors.Join(err, s.gateway.Apply(s.gatewayOptions(s.current)))
	}
	s.current = running
	return nil
}

// warnOfRestart names the values that differ from those in use and stay so.
func (s *Standalone) warnOfRestart(next Config) {
	c := s.current
	next.Routing.Policy = c.Routing.Policy
	var names []string
	for name, differs := range map[string]bool{
		"listen": next.Listen != c.Listen, "admin": next.Admin != c.Admin, "grpc": next.GRPC != c.GRPC,
		"tenant": next.Tenant != c.Tenant, "access": next.Access != c.Access, "routing": next.Routing != c.Routing, "index": next.Index != c.Index,
		"tokenizer": fmt.Sprint(next.Tokenizer) != fmt.Sprint(c.Tokenizer), "log": next.Log != c.Log,
	} {
		if differs {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		s.logger.Warn("some of the new configuration needs a restart; only engines and routing.policy apply now",
			"keys", strings.Join(names, ", "))
	}
}
