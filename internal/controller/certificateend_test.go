// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/webhookcert"
)

// inUse is a certificate that a test changes; nil is none.
type inUse struct {
	webhookcert.Certificates
	leaf *x509.Certificate
}

func (u *inUse) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if u.leaf == nil {
		return nil, webhookcert.ErrNoCertificate
	}
	return &tls.Certificate{Leaf: u.leaf}, nil
}

func TestMetricsSayWhenTheCertificateInUseEnds(t *testing.T) {
	certs := &inUse{}
	registry := prometheus.NewRegistry()
	registry.MustRegister(newCertificateEnd(certs, listenerWebhooks, listenerMetrics))
	for _, end := range []time.Time{{}, time.Unix(1_800_000_000, 0), time.Unix(1_900_000_000, 0)} {
		want := 0
		if !end.IsZero() {
			certs.leaf, want = &x509.Certificate{NotAfter: end}, 2
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		series := map[string]float64{}
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				series[family.GetName()+" "+metric.GetLabel()[0].GetValue()] = metric.GetGauge().GetValue()
			}
		}
		if len(series) != want {
			t.Errorf("until %s: %v, want %d series", end, series, want)
		}
		for name, got := range series {
			if got != float64(end.Unix()) {
				t.Errorf("%s is %v, want %d", name, got, end.Unix())
			}
		}
	}
}
