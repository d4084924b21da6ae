// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/webhookcert"
)

// Listeners that serve with the webhooks' certificate.
const (
	listenerWebhooks = "webhooks"
	listenerMetrics  = "metrics"
)

// certificateEnd shows until when the certificate in use is valid. Without one
// there is no series.
type certificateEnd struct {
	certs     webhookcert.Certificates
	listeners []string
	desc      *prometheus.Desc
}

func newCertificateEnd(certs webhookcert.Certificates, listeners ...string) *certificateEnd {
	return &certificateEnd{certs, listeners, prometheus.NewDesc(
		"inferencecache_tls_not_after_timestamp_seconds", "End of the certificate's validity.", []string{"listener"}, nil)}
}

// Describe implements prometheus.Collector.
func (c *certificateEnd) Describe(to chan<- *prometheus.Desc) { to <- c.desc }

// Collect implements prometheus.Collector.
func (c *certificateEnd) Collect(to chan<- prometheus.Metric) {
	pair, err := c.certs.GetCertificate(nil)
	if err != nil {
		return
	}
	for _, listener := range c.listeners {
		to <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(pair.Leaf.NotAfter.Unix()), listener)
	}
}
