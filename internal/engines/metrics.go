// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Limits on what an engine may answer.
const (
	maxMetricsBytes = 4 << 20
	maxJSONBytes    = 4 << 20
)

var errTooLarge = errors.New("answer is too large")

// Families holds one scrape by family name.
type Families map[string]*dto.MetricFamily

// Scrape fetches and parses a metrics page.
func Scrape(ctx context.Context, client *http.Client, url string) (Families, error) {
	body, err := get(ctx, client, url, "text/plain;version=0.0.4")
	if err != nil {
		return nil, err
	}
	defer body.Close()
	families, err := ParseFamilies(body)
	if err != nil {
		return nil, fmt.Errorf("metrics of %s: %w", url, err)
	}
	return families, nil
}

// ParseFamilies reads the Prometheus text format, at most 4 MiB of it.
func ParseFamilies(r io.Reader) (Families, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	limited := &limitedReader{r: r, left: maxMetricsBytes}
	families, err := parser.TextToMetricFamilies(limited)
	if limited.left < 0 {
		return nil, fmt.Errorf("%w: more than %d bytes", errTooLarge, maxMetricsBytes)
	}
	if err != nil {
		// The parser's own text quotes what the engine sent.
		return nil, errors.New("not in the Prometheus text format")
	}
	return families, nil
}

// limitedReader fails after left bytes; left is negative from then on.
type limitedReader struct {
	r    io.Reader
	left int64
}

func (l *limitedReader) Read(p []byte) (int, error) {
	if l.left < 0 {
		return 0, errTooLarge
	}
	p = p[:min(int64(len(p)), l.left+1)]
	n, err := l.r.Read(p)
	l.left -= int64(n)
	if l.left < 0 {
		return n, errTooLarge
	}
	return n, err
}

// get returns the body of a 200 answer.
func get(ctx context.Context, client *http.Client, url, accept string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", accept)
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return nil, &StatusError{URL: url, Code: resp.StatusCode}
	}
	return resp.Body, nil
}

// StatusError is an HTTP answer other than 200.
type StatusError struct {
	URL  string
	Code int
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("GET %s: status %d", e.URL, e.Code)
}

// selection chooses the series that count.
type selection struct {
	model        string // "" takes every model_name
	rankLabel    string // "" takes every rank
	rank         int
	skipPriority bool
}

func (s selection) takes(m *dto.Metric) bool {
	modelOK, rankOK := s.model == "", s.rankLabel == ""
	for _, l := range m.GetLabel() {
		switch name, value := l.GetName(), l.GetValue(); {
		case name == "model_name" && s.model != "":
			modelOK = value == s.model
		case name == "priority" && s.skipPriority && value != "":
			return false
		case name == s.rankLabel && s.rankLabel != "":
			rankOK = value == strconv.Itoa(s.rank)
		}
	}
	return modelOK && rankOK
}

// values returns the finite values of the series of a family that count.
func (f Families) values(name string, s selection) []float64 {
	var out []float64
	for _, m := range f[name].GetMetric() {
		if v := scalar(m); s.takes(m) && !math.IsNaN(v) && !math.IsInf(v, 0) {
			out = append(out, v)
		}
	}
	return out
}

// counter returns the sum of a counter, whose name may end in _total.
func (f Families) counter(name string, s selection) (sum float64, ok bool) {
	values := f.values(name+"_total", s)
	if len(values) == 0 {
		values = f.values(name, s)
	}
	return total(values), len(values) > 0
}

func scalar(m *dto.Metric) float64 {
	switch {
	case m.GetGauge() != nil:
		return m.GetGauge().GetValue()
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue()
	case m.GetUntyped() != nil:
		return m.GetUntyped().GetValue()
	default:
		return math.NaN()
	}
}

func total(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum
}
