// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/inferencecache/inference-cache/internal/jsonscan"
)

// askTransfer has a vLLM engine keep what it computes for another engine.
const askTransfer = `"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,` +
	`"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

// prefillBody is a request that computes the prompt and one token. All other
// members keep their bytes and order.
func prefillBody(body []byte) ([]byte, error) {
	out := make([]byte, 0, len(body)+len(askTransfer)+64)
	out = append(out, '{')
	add := func(key string, value []byte) error {
		name, err := json.Marshal(key)
		out = append(append(append(append(out, name...), ':'), value...), ',')
		return err
	}
	err := jsonscan.Object(body, func(key, value []byte) error {
		switch name := string(key); name {
		case "max_tokens", "stream", "stream_options", "min_tokens", "kv_transfer_params":
			return nil
		case "max_completion_tokens":
			return add(name, []byte("1"))
		default:
			return add(name, value)
		}
	})
	if err != nil {
		return nil, err
	}
	return append(append(append(out, `"max_tokens":1,"stream":false,`...), askTransfer...), '}'), nil
}

var (
	errNoTransfer = errors.New("the prefill engine has nothing to pass on")
	errExpired    = errors.New("the prefill engine's blocks have expired")
)

// transferOf finds the object that a decode engine needs in the answer of a
// prefill engine. It is opaque but for its expiry.
func transferOf(answer []byte, now time.Time) (object []byte, err error) {
	err = jsonscan.Object(answer, func(key, value []byte) error {
		if string(key) == "kv_transfer_params" {
			object = value
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case len(object) == 0 || object[0] != '{':
		return nil, errNoTransfer
	}
	return object, checkExpiry(object, now)
}

// unixSince is the least number of seconds that is taken for a time of day.
// Smaller ones count from an engine's start, which nobody else knows.
const unixSince = 1e9

func checkExpiry(object []byte, now time.Time) error {
	return jsonscan.Object(object, func(key, value []byte) error {
		if string(key) != "remote_blocks_expiry_time" {
			return nil
		}
		seconds, err := strconv.ParseFloat(string(value), 64)
		if err != nil || seconds < unixSince {
			return nil
		}
		if float64(now.UnixMilli())/1000 >= seconds {
			return errExpired
		}
		return nil
	})
}

// isErrorEvent says whether a stream begins with an error.
func isErrorEvent(first []byte) bool {
	payload, isData := bytes.CutPrefix(bytes.TrimLeft(first, "\r\n"), dataField)
	return isData && bytes.HasPrefix(bytes.TrimLeft(payload, " "), []byte(`{"error"`))
}

// shape is what of a request bears on splitting it.
type shape struct {
	// prompts are listed ones; 0 for a single prompt.
	prompts int
	// several answers are asked for.
	several bool
}

// shapeOf reads a body that was parsed before.
func shapeOf(body []byte) (s shape) {
	_ = jsonscan.Object(body, func(key, value []byte) error { // parseBody reports errors
		switch string(key) {
		case "n", "best_of":
			n, err := strconv.ParseFloat(string(value), 64)
			s.several = s.several || err == nil && n > 1
		case "use_beam_search":
			s.several = s.several || string(value) == "true"
		case "prompt":
			s.prompts = promptsIn(value)
		}
		return nil
	})
	return s
}

// promptsIn counts the prompts of a list; token ids are one prompt.
func promptsIn(value []byte) (count int) {
	_ = jsonscan.Array(value, func(element []byte) error {
		if len(element) > 0 && (element[0] == '"' || element[0] == '[') {
			count++
		}
		return nil
	})
	return count
}

// bootstrap is where the two legs of an SGLang request meet.
type bootstrap struct {
	host string
	port int
	// rooms has one element for each prompt.
	rooms []int64
	// batch has lists sent, even of one element.
	batch bool
	// prefillRank is nil without data-parallel ranks.
	prefillRank *int
}

// body adds the members that both legs need.
func (b *bootstrap) body(body []byte) []byte {
	var members strings.Builder
	list := func(name string, value func(i int) string) {
		if members.Len() > 0 {
			members.WriteByte(',')
		}
		members.WriteString(`"` + name + `":`)
		if !b.batch {
			members.WriteString(value(0))
			return
		}
		values := make([]string, len(b.rooms))
		for i := range values {
			values[i] = value(i)
		}
		members.WriteString("[" + strings.Join(values, ",") + "]")
	}
	host, _ := json.Marshal(b.host) // strings always encode
	list("bootstrap_host", func(int) string { return string(host) })
	list("bootstrap_port", func(int) string { return strconv.Itoa(b.port) })
	list("bootstrap_room", func(i int) string { return strconv.FormatInt(b.rooms[i], 10) })
	return withMember(body, members.String())
}

// decodeBody also tells the decode engine of the prefill engine's rank.
func (b *bootstrap) decodeBody(body []byte) []byte {
	body = b.body(body)
	if b.prefillRank == nil {
		return body
	}
	return withMember(body, `"disagg_prefill_dp_rank":`+strconv.Itoa(*b.prefillRank))
}
