// SPDX-License-Identifier: Apache-2.0

package configfile

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/defaults"
)

// Results of a reload.
const (
	reloadApplied = "applied"
	reloadRefused = "refused"
)

// Watcher applies a configuration file again whenever it changes or a signal
// asks for it. What cannot be applied is logged and counted, and the old
// configuration stays in use.
type Watcher struct {
	// Path of the file.
	Path string
	// Apply reads and applies it.
	Apply func() error
	// Signals ask for a reload whether the file changed or not. Default none.
	Signals <-chan os.Signal
	// Interval is the time between looks at the file. Default 2 s.
	Interval time.Duration
	// Reloads counts what became of the file. Default: nobody sees it.
	Reloads *Reloads
	// Logger takes the logs. Default none.
	Logger *slog.Logger
}

// Run watches until ctx ends. The file as it is when Run begins counts as
// applied.
func (w Watcher) Run(ctx context.Context) {
	defaults.Positive(&w.Interval, 2*time.Second)
	if w.Logger == nil {
		w.Logger = slog.New(slog.DiscardHandler)
	}
	if w.Reloads == nil {
		w.Reloads = NewReloads(nil)
	}
	last, _ := os.ReadFile(w.Path) // unreadable counts as empty
	ticker := time.NewTicker(w.Interval)
	defer ticker.Stop()
	for {
		asked := false
		select {
		case <-ctx.Done():
			return
		case <-w.Signals:
			asked = true
		case <-ticker.C:
		}
		data, err := os.ReadFile(w.Path)
		if !asked && err == nil && bytes.Equal(data, last) || !asked && err != nil && last == nil {
			continue
		}
		if last = data; err != nil {
			last = nil
		}
		w.reload()
	}
}

func (w *Watcher) reload() {
	m := w.Reloads
	if err := w.Apply(); err != nil {
		m.total.WithLabelValues(reloadRefused).Inc()
		m.ok.Set(0)
		w.Logger.Error("configuration is refused; the one before stays in use", "file", w.Path, "error", err)
		return
	}
	m.total.WithLabelValues(reloadApplied).Inc()
	m.ok.Set(1)
	w.Logger.Info("configuration is applied", "file", w.Path)
}

// Reloads are the metrics of a file that is followed.
type Reloads struct {
	total *prometheus.CounterVec // result
	ok    prometheus.Gauge
}

// NewReloads makes the metrics and registers them, if registerer is not nil.
func NewReloads(registerer prometheus.Registerer) *Reloads {
	m := &Reloads{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "inferencecache_config_reloads_total", Help: "Configuration files read again, by what became of them.",
		}, []string{"result"}),
		ok: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "inferencecache_config_in_use", Help: "1 while the configuration in use is what the file says.",
		}),
	}
	m.ok.Set(1)
	for _, result := range []string{reloadApplied, reloadRefused} {
		m.total.WithLabelValues(result)
	}
	if registerer != nil {
		registerer.MustRegister(m.total, m.ok)
	}
	return m
}
