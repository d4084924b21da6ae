// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/http"
	"strings"
)

// Headers the gateway sets or reads.
const (
	headerRequestID = "X-Request-Id"
	headerReplica   = "X-Inference-Cache-Replica"
	headerReason    = "X-Inference-Cache-Reason"
	headerRank      = "X-Data-Parallel-Rank"
)

// forwardedHeaders are the only client headers that engines get.
var forwardedHeaders = [...]string{"Content-Type", "Accept", "Traceparent", "Tracestate"}

// hopByHop headers concern one connection only.
var hopByHop = [...]string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// controlHeaders are families of headers that steer routers or engines. A
// family ends in "*" to stand for all names that begin like it.
var controlHeaders = [...]string{
	"x-inference-cache-*", "x-smg-*", "x-gateway-destination-endpoint*", "x-prefiller-*",
	"x-data-parallel-rank", "x-dynamo-*", "x-session-id",
}

// innerHeaders of engines and of proxies before them tell about the inside:
// traces, ids, addresses and where else to connect.
var innerHeaders = [...]string{
	"traceparent", "tracestate", "baggage", "b3", "x-b3-*", "x-trace-id", "x-correlation-id", "request-id",
	"x-request-*", "uber-trace-id", "uberctx-*", "x-cloud-trace-context", "x-amzn-*", "x-datadog-*", "sentry-trace",
	"x-ot-*", "server-timing", "server", "date", "via", "alt-svc", "location", "content-location", "refresh", "link",
	"x-envoy-*", "x-served-by", "x-backend-*", "x-upstream-*", "x-worker-*", "x-engine-*", "x-replica-*", "x-routed-*",
	"x-vllm-*", "x-sglang-*", "x-forwarded-*", "x-real-ip", "x-powered-by", "x-process-time",
}

// controlFamily returns the family a header belongs to, or "".
func controlFamily(name string) string { return familyOf(name, controlHeaders[:]) }

func familyOf(name string, families []string) string {
	name = strings.ToLower(name)
	for _, family := range families {
		prefix, wild := strings.CutSuffix(family, "*")
		if name == family || wild && strings.HasPrefix(name, prefix) {
			return family
		}
	}
	return ""
}

// countStripped counts the control headers of a request. They go no further
// anyway, because engines get only forwardedHeaders.
func (m *metrics) countStripped(header http.Header) {
	for name := range header {
		if family := controlFamily(name); family != "" {
			m.stripped.WithLabelValues(family).Inc()
		}
	}
}

// engineHeader returns the headers of a request to an engine.
func engineHeader(client http.Header, engineID string, forwardAuthorization bool) http.Header {
	header := make(http.Header, len(forwardedHeaders)+3)
	for _, name := range forwardedHeaders {
		if values := client[name]; len(values) > 0 {
			header[name] = values
		}
	}
	if values := client["Authorization"]; forwardAuthorization && len(values) > 0 {
		header["Authorization"] = values
	}
	header[headerRequestID] = []string{engineID}
	// No value keeps the client library from adding its own.
	header["User-Agent"] = nil
	return header
}

// copyAnswerHeader copies an engine's headers for the client, without those
// that concern the connection, steer routers, or tell about the inside.
func copyAnswerHeader(to, from http.Header) {
	dropped := map[string]bool{}
	for _, name := range hopByHop {
		dropped[name] = true
	}
	for _, value := range from["Connection"] {
		for _, name := range strings.Split(value, ",") {
			dropped[http.CanonicalHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	for name, values := range from {
		if !dropped[name] && controlFamily(name) == "" && familyOf(name, innerHeaders[:]) == "" {
			to[name] = values
		}
	}
}
