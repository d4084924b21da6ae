// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/defaults"
	"github.com/inferencecache/inference-cache/internal/engines"
	"github.com/inferencecache/inference-cache/internal/trace"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// Lookuper answers where a prefix is cached. A call must end soon after its
// context does.
type Lookuper interface {
	LookupRoute(ctx context.Context, request *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error)
}

// BlockSizer tells the tokens of a block as the index learned them from
// publishers; false means that none has told.
type BlockSizer interface {
	BlockSize(tenant, model, scheme string) (tokens int, known bool)
}

// Replica is one engine, or one data-parallel rank of an engine.
type Replica struct {
	// ID is the name publishers report blocks under.
	ID string
	// UID tells apart replicas that follow each other under one ID, such as
	// pods; default empty.
	UID string
	// URL is the engine's base URL: scheme, host and port.
	URL string
	// Runtime is vllm, sglang or tensorrt-llm; default vllm. It is also the
	// hash scheme.
	Runtime string
	// Rank is the data-parallel rank requests are pinned to; default none.
	Rank *int
	// Models are base models it serves; default what its /v1/models lists.
	Models []string
	// Tenant is the tenant of its blocks in the index; default
	// Options.Tenant.
	Tenant string
	// Role is single, prefill or decode; default single. A prefill and a decode
	// replica of one model share a request, see docs/pd-routing.md.
	Role string
	// BootstrapPort is where decode engines meet an SGLang prefill engine;
	// default 8998.
	BootstrapPort int
	// MaxInflight bounds this gateway's requests to it; default no bound.
	MaxInflight int
	// Protocol is http1 or h2c, HTTP/2 without TLS; default http1. With https
	// the engine chooses between HTTP/1.1 and HTTP/2.
	Protocol string
	// Cordoned replicas finish what they have and get nothing new; default
	// false.
	Cordoned bool
	// CallerTenants are the only callers it serves; default all.
	CallerTenants []string
}

// Values of Replica.Protocol.
const (
	ProtocolHTTP1 = "http1"
	ProtocolH2C   = "h2c"
)

// Options of a Gateway. The zero value serves on free ports of the loopback
// and has no replicas.
type Options struct {
	// Listen is the address for clients; default 127.0.0.1:0.
	Listen string
	// AdminListen serves health, metrics and state; default none. See also
	// Gateway.AdminHandler.
	AdminListen string
	Replicas    []Replica
	// Lookuper is the index; default none, every request goes by load.
	Lookuper Lookuper
	// BlockSizer knows block sizes from the index; default none.
	BlockSizer BlockSizer
	// Access says who may call; default everybody, as one caller tenant.
	Access Access
	// Tenant of replicas without one; default "local".
	Tenant string
	// BlockSize in tokens for replicas that do not tell; default unknown.
	BlockSize int
	// Policy is a name of routing.PolicyNames; default hint.
	Policy string
	// Fallback is the policy for requests without a usable hint; default
	// approx: by own placements, then by load.
	Fallback string
	// Tokenizer mode; default TokenizeByEngine.
	Tokenizer  TokenizerMode
	Tokenizing TokenizerOptions
	Parity     ParityOptions
	// ExposeReplica adds x-inference-cache-replica and
	// x-inference-cache-reason to answers; default false.
	ExposeReplica bool
	// ForwardAuthorization sends the client's Authorization header to
	// engines, unless it holds an API key of the gateway; default false.
	ForwardAuthorization bool
	// Retry500 also retries answers 500 and 408; default false.
	Retry500 bool
	// UsageSample asks for the usage of one streamed request in this many, to
	// compare predictions with; default 10, negative = never. Clients do not
	// see a difference.
	UsageSample int
	// MaxBodyBytes bounds a request body; default 10 MiB.
	MaxBodyBytes int64
	// MaxInflight bounds requests under way; default no bound. Others wait.
	MaxInflight int
	// QueueLimit bounds requests that wait for a place; default 100, negative
	// = none waits.
	QueueLimit int
	// ShedTTFT refuses requests that every replica would make wait longer for
	// their first token; default never.
	ShedTTFT time.Duration
	// HedgePercentile of the time to the first byte is when a second attempt is
	// made at another replica; default never.
	HedgePercentile int
	// StickyHeader and StickyField, a member of the body, hold a key whose
	// requests stay on one replica while it has room; default none.
	StickyHeader, StickyField string
	// PDMinUncached is the least number of uncached prompt tokens that a prefill
	// replica computes for a decode replica; default 256, negative = 0.
	PDMinUncached int
	// Warmup sends replicas that are new a share of the requests whose prefix
	// they do not hold; default false.
	Warmup bool
	// MaxConnections bounds client connections; default 10,000.
	MaxConnections int
	Timeouts       Timeouts
	// Registry takes the metrics; default a new one.
	Registry *prometheus.Registry
	// Logger takes the logs; default none.
	Logger *slog.Logger
	// Trace says what becomes of the record of each decision.
	Trace Trace
	// AccessLog takes a line of JSON for each request; default none.
	AccessLog trace.LineSink
	// RequestIDHeaders may carry the id of a request, the first present counts;
	// default x-request-id, x-correlation-id, x-trace-id and request-id.
	RequestIDHeaders []string
	// Profiling serves /debug/pprof/ on the admin address; default false.
	Profiling bool
	// Resolver finds the addresses of replicas' names; default the system's.
	Resolver *net.Resolver
}

// Timeouts of a Gateway.
type Timeouts struct {
	// Lookup bounds one index lookup; default 5ms.
	Lookup time.Duration
	// Tokenize bounds one call of an engine's tokenizer; default 100ms.
	Tokenize time.Duration
	// HeaderRead bounds a TLS handshake, and reading the headers of a request;
	// default 10s.
	HeaderRead time.Duration
	// BodyRead bounds reading a request body; default 60s.
	BodyRead time.Duration
	// FirstByte bounds the wait for an answer's first byte; default 300s.
	FirstByte time.Duration
	// PDPrefill bounds the prefill of a request with two legs; default 60s.
	PDPrefill time.Duration
	// Idle bounds the time between bytes of an answer, and how long a client
	// may take none; default 120s.
	Idle time.Duration
	// Queue bounds the wait for a place among the requests under way; default
	// 5s.
	Queue time.Duration
	// HealthInterval is the time between health checks; default 5s.
	HealthInterval time.Duration
	// Health bounds one health check; default 2s.
	Health time.Duration
	// Drain is how long requests at a replica that was removed may go on;
	// default 300s.
	Drain time.Duration
	// ShutdownDelay is how long requests are still accepted after Run's
	// context ended and readiness says no; default 0.
	ShutdownDelay time.Duration
	// ShutdownGrace is how long running requests may go on after that;
	// default 3s.
	ShutdownGrace time.Duration
}

// ErrOptions marks options that cannot work.
var ErrOptions = errors.New("gateway options")

func (o Options) withDefaults() Options {
	defaults.Set(&o.Listen, "127.0.0.1:0")
	defaults.Set(&o.Tenant, "local")
	defaults.Set(&o.Tokenizer, TokenizeByEngine)
	defaults.Set(&o.UsageSample, 10)
	defaults.Set(&o.PDMinUncached, 256)
	defaults.Set(&o.MaxBodyBytes, 10<<20)
	defaults.Set(&o.MaxConnections, 10_000)
	defaults.Set(&o.Timeouts.Lookup, 5*time.Millisecond)
	defaults.Set(&o.Timeouts.Tokenize, 100*time.Millisecond)
	defaults.Set(&o.Timeouts.HeaderRead, 10*time.Second)
	defaults.Set(&o.Timeouts.BodyRead, 60*time.Second)
	defaults.Set(&o.Timeouts.FirstByte, 300*time.Second)
	defaults.Set(&o.Timeouts.PDPrefill, 60*time.Second)
	defaults.Set(&o.Timeouts.Idle, 120*time.Second)
	defaults.Set(&o.Timeouts.HealthInterval, 5*time.Second)
	defaults.Set(&o.Timeouts.Health, 2*time.Second)
	defaults.Set(&o.Timeouts.Drain, 300*time.Second)
	defaults.Set(&o.Timeouts.ShutdownGrace, 3*time.Second)
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	replicas := make([]Replica, len(o.Replicas))
	for i, replica := range o.Replicas {
		defaults.Set(&replica.Runtime, engines.VLLM)
		defaults.Set(&replica.Tenant, o.Tenant)
		defaults.Set(&replica.Protocol, ProtocolHTTP1)
		replicas[i] = replica
	}
	o.Replicas = replicas
	return o
}

func (o *Options) validate() error {
	if err := o.Tokenizing.validate(o.Tokenizer); err != nil {
		return err
	}
	if err := o.Access.validate(o.AdminListen); err != nil {
		return err
	}
	if err := o.Trace.Switches.Validate(); err != nil {
		return err
	}
	return validateReplicas(o.Replicas)
}

// ValidateReplicas says what is wrong with replicas, before any is added.
func ValidateReplicas(replicas []Replica) error {
	return validateReplicas(Options{Replicas: replicas}.withDefaults().Replicas)
}

func validateReplicas(replicas []Replica) error {
	seen := map[string]bool{}
	for _, replica := range replicas {
		if replica.ID == "" || len(replica.ID) > 256 {
			return fmt.Errorf("replica id %.64q: expected 1 to 256 bytes", replica.ID)
		}
		if seen[replica.ID] {
			return fmt.Errorf("replica %q is listed twice", replica.ID)
		}
		seen[replica.ID] = true
		if _, err := parseBaseURL(replica.URL); err != nil {
			return fmt.Errorf("replica %q: %w", replica.ID, err)
		}
		if _, known := engines.ProfileOf(replica.Runtime); !known {
			return fmt.Errorf("replica %q: unknown runtime %q", replica.ID, replica.Runtime)
		}
		if replica.Protocol != ProtocolHTTP1 && replica.Protocol != ProtocolH2C {
			return fmt.Errorf("replica %q: protocol %.32q: expected http1 or h2c", replica.ID, replica.Protocol)
		}
		if replica.Protocol == ProtocolH2C && strings.HasPrefix(replica.URL, "https:") {
			return fmt.Errorf("replica %q: h2c is HTTP/2 without TLS: expected an http URL", replica.ID)
		}
		if err := replica.checkRole(); err != nil {
			return fmt.Errorf("replica %q: %w", replica.ID, err)
		}
	}
	return checkPairs(replicas)
}

// parseBaseURL accepts http://host:port and https://host:port only.
func parseBaseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, errors.New("URL cannot be parsed: expected http://host:port")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.Hostname() == "":
		return nil, fmt.Errorf("URL %.128q: expected http://host:port", u.Redacted())
	case u.User != nil:
		return nil, errors.New("URL with a user name: expected http://host:port")
	case u.Path != "" && u.Path != "/", u.RawQuery != "", u.Fragment != "":
		return nil, fmt.Errorf("URL %.128q: expected no path, query or fragment", u.Redacted())
	}
	if err := checkHost(u.Hostname()); err != nil {
		return nil, fmt.Errorf("URL %.128q: %w", u.Redacted(), err)
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host}, nil
}

// hostPortOf returns the host and port that a base URL is dialled at.
func hostPortOf(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// checkHost refuses addresses no engine can have, and numbers that resolvers
// take for addresses in other notations.
func checkHost(host string) error {
	if _, err := netip.ParseAddr(host); err == nil {
		return checkAddress(net.JoinHostPort(host, "1"))
	}
	last := host[strings.LastIndexByte(strings.TrimSuffix(host, "."), '.')+1:]
	if numericLabel.MatchString(last) {
		return errors.New("a number is no host name: expected a name or an IP address in its usual form")
	}
	return nil
}

// numericLabel is the last label of decimal, octal and hexadecimal addresses.
var numericLabel = regexp.MustCompile(`^(?i:0x[0-9a-f]*|[0-9]+)\.?$`)
