// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/json"
	"errors"
	"testing"
	"time"
)

func TestTransferIsFoundOrRefused(t *testing.T) {
	now := time.Unix(2e9, 0)
	for name, tc := range map[string]struct {
		answer, object string
		want           error
	}{
		"an object stays as it is":        {`{"a":1,"kv_transfer_params": {"x" : [1, 2]} }`, `{"x" : [1, 2]}`, nil},
		"no object":                       {`{"a":1}`, "", errNoTransfer},
		"null":                            {`{"kv_transfer_params":null}`, "", errNoTransfer},
		"a text in its place":             {`{"kv_transfer_params":"x"}`, "", errNoTransfer},
		"an expiry in the past":           {`{"kv_transfer_params":{"remote_blocks_expiry_time":1999999999.9}}`, "", errExpired},
		"an expiry now":                   {`{"kv_transfer_params":{"remote_blocks_expiry_time":2e9}}`, "", errExpired},
		"an expiry to come":               {`{"kv_transfer_params":{"remote_blocks_expiry_time":2000000001}}`, `{"remote_blocks_expiry_time":2000000001}`, nil},
		"an expiry on a clock of its own": {`{"kv_transfer_params":{"remote_blocks_expiry_time":500}}`, `{"remote_blocks_expiry_time":500}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			object, err := transferOf([]byte(tc.answer), now)
			if !errors.Is(err, tc.want) || err == nil && string(object) != tc.object {
				t.Errorf("%s, %v; want %s, %v", object, err, tc.object, tc.want)
			}
		})
	}
	if _, err := transferOf([]byte(`{"kv_transfer_params":{`), now); err == nil {
		t.Error("an answer that ends early is accepted")
	}
}

// FuzzTransfer reads answers of engines and rewrites requests of clients.
func FuzzTransfer(f *testing.F) {
	f.Add([]byte(`{"kv_transfer_params":{"remote_blocks_expiry_time":2e9},"max_tokens":3,"prompt":["a",[1]],"n":2}`))
	f.Add([]byte(`data: {"error":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if object, err := transferOf(data, time.Unix(0, 0)); err == nil && !json.Valid(object) {
			t.Errorf("%q is passed on from %q", object, data)
		}
		isErrorEvent(data)
		if s := shapeOf(data); s.prompts < 0 {
			t.Errorf("%d prompts", s.prompts)
		}
		body, err := prefillBody(data)
		if err == nil && !json.Valid(body) {
			t.Errorf("%q becomes %q", data, body)
		}
	})
}
