// SPDX-License-Identifier: Apache-2.0

package publisher_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/tinylib/msgp/msgp"

	"github.com/inferencecache/inference-cache/internal/kvevents"
	"github.com/inferencecache/inference-cache/internal/publisher"
)

func TestMetricsStartComplete(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	config := quick(publisher.Config{Events: "tcp://127.0.0.1:1"})
	if _, err := publisher.New(config, nil, publisher.Deps{Registerer: registry}); err != nil {
		t.Fatal(err)
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	// Series per rank and per unknown field come with their first value.
	want := map[string]int{
		"streams": 1, "streams_expected": 1, "view": 3, "batches_total": 1, "events_total": len(kvevents.Kinds()),
		"events_skipped_total": len(kvevents.Reasons()), "parked_blocks": 1, "resets_total": len(publisher.ResetCauses()),
		"replays_total": len(publisher.ReplayResults()), "resident_blocks": 3, "queue_frames": 1,
		"queue_overflows_total": 1, "servers": 3, "send_seconds": 1, "snapshots_total": 3,
		"stats_scrapes_total": 4, "load_signal_stale": 1, "engine_running_requests": 1,
		"engine_waiting_requests": 1, "block_size": 1,
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		name := strings.TrimPrefix(f.GetName(), "inferencecache_publisher_")
		if got := len(f.GetMetric()); got != want[name] {
			t.Errorf("%s has %d series, want %d", name, got, want[name])
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

func TestMetricsFollowTheEngine(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	api := startAPI(t, map[string]string{"/metrics": vllmPage(3, 1)})
	e := startEngine(t, engineOptions{})
	w := startPublisher(t, publisher.Config{
		Events: e.events, Replay: e.replay, MetricsURL: api.URL + "/metrics", StatsInterval: 5 * time.Millisecond,
	}, publisher.Deps{Registerer: registry, HTTPClient: api.client})
	e.await(1)
	eventually(t, "end of the first replay", func() bool { return w.session().LastReplay == publisher.ReplayOK })
	e.publish(storeBatch(0, 0, 1, 0, 3))
	e.publish(removeBatch(0, 0, 1, 2))
	e.keep(storeBatch(0, 0, 2, 0, 1))
	e.publish([]byte{0xC1})
	w.awaitMatch(testReplica, 2, 1)
	eventually(t, "everything", func() bool {
		s := w.session()
		return !s.ReplayPending && s.Skipped[kvevents.ReasonMalformedBatch] > 0 && w.publisher.Status().Load.Running == 3 &&
			w.publisher.Status().Ready()
	})
	for name, want := range map[string]string{
		"engine_connected":        `{rank="0"} 1`,
		"streams":                 ` 1`,
		"streams_expected":        ` 1`,
		"gaps_total":              `{rank="0"} 1`,
		"missed_batches_total":    `{rank="0"} 0`,
		"replays_total":           `{result="ok"} 2`,
		"events_total":            `{type="stored"} 2`,
		"events_skipped_total":    `{reason="malformed_batch"} 1`,
		"resident_blocks":         `{tier="t1"} 3`,
		"servers":                 `{state="live"} 1`,
		"snapshots_total":         `{result="applied"} 1`,
		"block_size":              ` 4`,
		"engine_running_requests": ` 3`,
		"engine_waiting_requests": ` 1`,
		"view":                    `{state="incomplete"} 1`,
	} {
		if page := exposition(t, registry); !strings.Contains(page, "inferencecache_publisher_"+name+want+"\n") {
			t.Errorf("no line %s%s in\n%s", name, want, page)
		}
	}
}

func exposition(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var page strings.Builder
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			set := ""
			if len(labels) > 0 {
				set = "{" + strings.Join(labels, ",") + "}"
			}
			fmt.Fprintf(&page, "%s%s %v\n", f.GetName(), set, m.GetGauge().GetValue()+m.GetCounter().GetValue())
		}
	}
	return page.String()
}

// strangeBatch announces nothing, in an event with one unknown field.
func strangeBatch(field string) []byte {
	b := batchHeader(1)
	b = msgp.AppendMapHeader(b, 3)
	b = msgp.AppendString(b, "type")
	b = msgp.AppendString(b, "BlockRemoved")
	b = msgp.AppendString(b, "block_hashes")
	b = msgp.AppendArrayHeader(b, 0)
	b = msgp.AppendString(b, field)
	b = msgp.AppendNil(b)
	return appendRank(b, noRank)
}

func TestHostileLabelsAreBounded(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	e := startEngine(t, engineOptions{})
	w := startPublisher(t, publisher.Config{Events: e.events}, publisher.Deps{Registerer: registry})
	e.await(1)
	const names = 300
	e.publish(strangeBatch("bad\xff\nname"))
	e.publish(strangeBatch(strings.Repeat("x", 1000)))
	for i := range names - 2 {
		e.publish(strangeBatch(fmt.Sprint("field", i)))
	}
	eventually(t, "the last batch", func() bool { return len(w.publisher.Status().Ranks) == 1 && w.session().Batches == names })
	total := 0.0
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "inferencecache_publisher_unknown_fields_total" {
			continue
		}
		if got := len(f.GetMetric()); got > 17 {
			t.Errorf("%d series, want at most 16 names and other", got)
		}
		for _, m := range f.GetMetric() {
			total += m.GetCounter().GetValue()
			if got := len(m.GetLabel()[0].GetValue()); got > 64 {
				t.Errorf("a label of %d bytes", got)
			}
		}
	}
	if total != names {
		t.Errorf("%v unknown fields counted, want %d", total, names)
	}
}
