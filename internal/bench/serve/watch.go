// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/inferencecache/inference-cache/internal/bench"
)

// watcher reads a server's HTTP.
type watcher struct {
	client *http.Client
	base   string
}

func watch(s Instance) *watcher {
	return &watcher{client: &http.Client{Transport: &http.Transport{}, Timeout: 5 * time.Second}, base: "http://" + s.HTTP()}
}

func (w *watcher) close() { w.client.CloseIdleConnections() }

func (w *watcher) get(ctx context.Context, path string) (status int, body string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.base+path, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := w.client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// metric returns the sum of a family's series, 0 when it cannot be read.
func (w *watcher) metric(ctx context.Context, family string) (sum float64) {
	_, body, err := w.get(ctx, "/metrics")
	if err != nil {
		return 0
	}
	lines := bufio.NewScanner(strings.NewReader(body))
	for lines.Scan() {
		rest, ours := strings.CutPrefix(lines.Text(), family)
		if !ours || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		value, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err == nil {
			sum += value
		}
	}
	return sum
}

// readiness is what /readyz?verbose says.
type readiness struct {
	ready                bool
	live, snapshot, lost int
	received, expected   int64
}

func (w *watcher) readiness(ctx context.Context) (r readiness, err error) {
	status, body, err := w.get(ctx, "/readyz?verbose")
	if err != nil {
		return r, err
	}
	r.ready = status == http.StatusOK
	_, rest, found := strings.Cut(body, "sessions: ")
	if !found {
		return r, fmt.Errorf("/readyz tells nothing of sessions: %.100q", body)
	}
	_, err = fmt.Sscanf(rest, "%d live, %d in snapshot, %d lost\nblocks received: %d\nblocks expected: %d\n",
		&r.live, &r.snapshot, &r.lost, &r.received, &r.expected)
	return r, err
}

// usage is what server, measuring process and machine have used.
type usage struct {
	at                    time.Time
	server, bench         time.Duration
	machineBusy, stolenBy time.Duration
}

func use(s Instance) usage {
	u := usage{at: time.Now(), bench: bench.ProcessTime()}
	u.machineBusy, u.stolenBy = bench.MachineTime()
	if s.PID() != os.Getpid() {
		u.server = bench.ProcessTimeOf(s.PID())
	}
	return u
}

// shares are parts of one core.
type shares struct{ server, bench, others, stolen float64 }

// since returns the shares used since an earlier look.
func (u usage) since(before usage) shares {
	wall := u.at.Sub(before.at).Seconds()
	share := func(now, then time.Duration) float64 { return (now - then).Seconds() / wall }
	s := shares{server: share(u.server, before.server), bench: share(u.bench, before.bench), stolen: share(u.stolenBy, before.stolenBy)}
	s.others = max(share(u.machineBusy, before.machineBusy)-s.server-s.bench, 0)
	return s
}

// detail adds them to a row. Others and the host belong to nobody measured:
// where they are not small, the row says little.
func (s shares) detail(to map[string]float64) {
	to["server_cores"], to["client_cores"], to["other_cores"], to["stolen_cores"] = s.server, s.bench, s.others, s.stolen
}
