// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/inferencecache/inference-cache/internal/controller"
	"github.com/inferencecache/inference-cache/internal/policy"
)

// imageReference is what may be the name of an image. The kubelet knows more;
// this tells white space and variables that nothing has expanded.
var imageReference = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@-]*$`)

// validate looks at what a flag says by itself.
func (o *controllerOptions) validate() error {
	x, w := &o.controller, &o.webhooks
	if v := x.WireVersion; v < policy.MinimumVersion || v > policy.CurrentVersion {
		return usagef("--policy-wire-version %d: expected %d to %d", v, policy.MinimumVersion, policy.CurrentVersion)
	}
	switch x.Discovery = controller.ServerDiscovery(o.discovery); x.Discovery {
	case controller.DiscoverURL, controller.DiscoverEndpoints:
	default:
		return usagef("--server-discovery %q: expected url or endpoints", o.discovery)
	}
	if wrong := validation.IsDNS1123Label(x.Namespace); len(wrong) > 0 {
		return usagef("--namespace %q: expected the name of a namespace", x.Namespace)
	}
	if w.image != "" && !imageReference.MatchString(w.image) {
		return usagef("--kvevent-subscriber-image %q: expected the name of an image", w.image)
	}
	if o.serverName != strings.TrimSpace(o.serverName) {
		return usagef("--server-name %q: expected a name without white space around it", o.serverName)
	}
	for _, check := range []func() error{o.validateNumbers, o.validateURLs, o.validateAddresses} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (o *controllerOptions) validateNumbers() error {
	for _, number := range []struct {
		flag  string
		value int
	}{
		{"max-concurrent-reconciles", o.controller.Reconciles},
		{"cacheindex-max-replicas", o.controller.MaxReplicas},
	} {
		if number.value < 1 {
			return usagef("--%s %d: expected at least 1", number.flag, number.value)
		}
	}
	for _, interval := range []struct {
		flag  string
		value time.Duration
	}{
		{"cachepolicy-push-interval", o.controller.PushInterval},
		{"cacheindex-refresh-interval", o.controller.PollInterval},
	} {
		if interval.value <= 0 {
			return usagef("--%s %s: expected more than 0", interval.flag, interval.value)
		}
	}
	return nil
}

func (o *controllerOptions) validateURLs() error {
	for _, u := range []struct {
		flag, value string
		optional    bool
	}{
		{"server-policy-url", o.policyURL, false},
		{"server-snapshot-url", o.snapshotURL, false},
		{"server-probe-url", o.probeURL, true},
	} {
		if u.optional && u.value == "" {
			continue
		}
		parsed, err := url.Parse(u.value)
		if err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Hostname() == "" || parsed.User != nil || !isPort(parsed.Port(), true) {
			return usagef("--%s: expected a URL such as https://HOST:8081/PATH, without a password", u.flag)
		}
	}
	return nil
}

func (o *controllerOptions) validateAddresses() error {
	for _, bind := range []struct{ flag, value string }{
		{"metrics-bind-address", o.controller.Metrics.Address},
		{"health-probe-bind-address", o.controller.HealthAddress},
		{"webhook-bind-address", o.webhooks.address},
	} {
		if bind.value == "" || bind.value == "0" {
			continue
		}
		if _, port, err := net.SplitHostPort(bind.value); err != nil || port != "0" && !isPort(port, false) {
			return usagef("--%s %q: expected host:port, :port, or 0 for none", bind.flag, bind.value)
		}
	}
	if address := o.grpcAddress; address != "" && !isHostPort(address) {
		return usagef("--policy-server-grpc-address %q: expected host:port", address)
	}
	if address := o.webhooks.publisherServer; address != "" && !isHostPort(strings.TrimPrefix(address, "dns:///")) {
		return usagef("--publisher-server-address %q: expected host:port or dns:///host:port", address)
	}
	return nil
}

func isHostPort(address string) bool {
	host, port, err := net.SplitHostPort(address)
	return err == nil && host != "" && !strings.ContainsAny(host, "/ ") && isPort(port, false)
}

// isPort says whether text is the number of a port.
func isPort(text string, orEmpty bool) bool {
	if text == "" {
		return orEmpty
	}
	number, err := strconv.ParseUint(text, 10, 16)
	return err == nil && number > 0
}
