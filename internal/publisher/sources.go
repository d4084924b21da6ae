// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"fmt"
	"net"
	"net/url"
	"strconv"

	"github.com/tinylib/msgp/msgp"

	"github.com/inferencecache/inference-cache/internal/engines"
	"github.com/inferencecache/inference-cache/internal/zmtp"
)

// source is where one rank's events come from.
type source struct {
	rank             int
	endpoint, replay string
	topic            string
}

// sources lists the streams to follow. shared is true when there is one and
// nobody said whose it is: then the batches name their rank.
func (c Config) sources(d engines.Discovery) (list []source, shared bool, err error) {
	count := c.Ranks
	if count == 0 {
		count = max(len(d.Sources), 1)
		shared = count == 1 && c.FirstRank == 0
	}
	if c.Events == "" && len(d.Sources) > 0 {
		for _, s := range d.Sources[:min(count, len(d.Sources))] {
			list = append(list, source{rank: s.Rank, endpoint: s.Endpoint, replay: s.Replay, topic: c.Topic})
		}
		return list, shared, nil
	}
	if c.Events == "" {
		base, err := url.Parse(c.BaseURL)
		if err != nil {
			return nil, false, fmt.Errorf("engine URL: %w", err)
		}
		profile, _ := engines.ProfileOf(c.Scheme)
		c.Events = "tcp://" + net.JoinHostPort(base.Hostname(), strconv.Itoa(profile.EventsPort))
	}
	for rank := c.FirstRank; rank < c.FirstRank+count; rank++ {
		s := source{rank: rank, topic: c.Topic}
		if s.endpoint, err = shifted(c.Events, rank); err != nil {
			return nil, false, fmt.Errorf("events: %w", err)
		}
		if s.replay, err = shifted(c.Replay, rank); err != nil {
			return nil, false, fmt.Errorf("replay: %w", err)
		}
		list = append(list, s)
	}
	return list, shared, nil
}

func shifted(endpoint string, rank int) (string, error) {
	if endpoint == "" {
		return "", nil
	}
	e, err := zmtp.ParseEndpoint(endpoint)
	if err != nil {
		return "", err
	}
	e, err = e.Shift(rank)
	return e.String(), err
}

// rankOf reads the rank a batch names: the third element of its outer array.
func rankOf(payload []byte) (rank int, ok bool) {
	n, b, err := msgp.ReadArrayHeaderBytes(payload)
	if err != nil || n < 3 {
		return 0, false
	}
	for range 2 {
		if b, err = msgp.Skip(b); err != nil {
			return 0, false
		}
	}
	v, _, err := msgp.ReadInt64Bytes(b)
	if err != nil || v < 0 || v >= MaxRanks {
		return 0, false
	}
	return int(v), true
}
