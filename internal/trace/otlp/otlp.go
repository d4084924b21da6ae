// SPDX-License-Identifier: Apache-2.0

// Package otlp sends spans to an OpenTelemetry collector.
package otlp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// Environment variables that turn the export on, as everywhere with
// OpenTelemetry.
const (
	EnvEndpoint       = "OTEL_EXPORTER_OTLP_ENDPOINT"
	EnvTracesEndpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
)

// Options of a Provider.
type Options struct {
	// Endpoint is the collector's base URL, such as http://127.0.0.1:4318; spans
	// go to /v1/traces below it. Default what the environment says.
	Endpoint string
	// Service and Version describe this process.
	Service, Version string
	// Logger is told of failed exports, at most once a minute; default none.
	Logger *slog.Logger
}

// ErrEndpoint marks an endpoint that cannot be one.
var ErrEndpoint = errors.New("OTLP endpoint")

// Provider makes spans and sends them in batches over HTTP. Spans that the
// collector does not take are lost; nothing waits for it.
type Provider struct{ provider *sdktrace.TracerProvider }

// New returns a provider. It does not connect. Which requests become spans is
// up to the caller's span and OTEL_TRACES_SAMPLER. Shutdown must follow.
func New(ctx context.Context, options Options) (*Provider, error) {
	var to []otlptracehttp.Option
	if options.Endpoint != "" {
		u, err := url.Parse(options.Endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
			return nil, fmt.Errorf("%w: expected http://host:port", ErrEndpoint)
		}
		to = append(to, otlptracehttp.WithEndpointURL(u.JoinPath("v1", "traces").String()))
	}
	exporter, err := otlptracehttp.New(ctx, to...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrEndpoint, err)
	}
	logger := options.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Provider{sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(&loggingExporter{SpanExporter: exporter, logger: logger}),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", options.Service), attribute.String("service.version", options.Version),
		)),
	)}, nil
}

// Tracer returns what makes the spans.
func (p *Provider) Tracer() oteltrace.Tracer {
	return p.provider.Tracer("github.com/inferencecache/inference-cache/internal/trace")
}

// Shutdown sends what is left while ctx lasts.
func (p *Provider) Shutdown(ctx context.Context) error {
	if err := p.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("send the last spans: %w", err)
	}
	return nil
}

// loggingExporter reports errors to a logger instead of the process's own
// error handler.
type loggingExporter struct {
	sdktrace.SpanExporter
	logger *slog.Logger
	// warned is the minute of the last warning.
	warned atomic.Int64
}

// ExportSpans implements sdktrace.SpanExporter.
func (e *loggingExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if minute := time.Now().Unix() / 60; err != nil && e.warned.Swap(minute) != minute {
		e.logger.Warn("spans were lost: the collector does not take them", "spans", len(spans), "error", err)
	}
	return nil
}
