// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tinylib/msgp/msgp"

	"github.com/inferencecache/inference-cache/pkg/fingerprint"
)

// fields is a map event in a fixed order: name, value, name, value.
type fields []any

func (f fields) with(name string, value any) fields {
	out := slices.Clone(f)
	for i := 0; i < len(out); i += 2 {
		if out[i] == name {
			out[i+1] = value
			return out
		}
	}
	return append(out, name, value)
}

func (f fields) without(name string) fields {
	i := slices.Index(f, any(name))
	return slices.Concat(f[:i], f[i+2:])
}

// goodStore is a store of two blocks of two tokens.
var goodStore = fields{
	"type", "BlockStored", "block_hashes", []any{uint64(11), uint64(12)}, "parent_block_hash", nil,
	"token_ids", []any{1, 2, 3, 4}, "block_size", 2, "lora_id", nil, "medium", "GPU",
}

// raw is msgpack written as it is.
type raw []byte

func appendValue(t testing.TB, b []byte, value any) []byte {
	t.Helper()
	switch v := value.(type) {
	case raw:
		return append(b, v...)
	case fields:
		b = msgp.AppendMapHeader(b, uint32(len(v)/2))
		for _, part := range v {
			b = appendValue(t, b, part)
		}
		return b
	case []any:
		b = msgp.AppendArrayHeader(b, uint32(len(v)))
		for _, part := range v {
			b = appendValue(t, b, part)
		}
		return b
	}
	b, err := msgp.AppendIntf(b, value)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func encodeBatch(t testing.TB, events ...any) []byte {
	t.Helper()
	return appendValue(t, nil, []any{1700000000.5, events, 0})
}

func TestDecodeReasons(t *testing.T) {
	long := strings.Repeat("x", maxTextBytes+1)
	manyKeys := goodStore
	for i := range maxMapKeys {
		manyKeys = manyKeys.with(fmt.Sprintf("key_%d", i), nil)
	}
	manyTokens := raw(binary.BigEndian.AppendUint32([]byte{0xdd}, maxEventTokens+1))
	manyTokens = append(manyTokens, bytes.Repeat([]byte{1}, maxEventTokens+1)...)
	tests := map[string]struct {
		event any
		want  Reason
	}{
		"a good store":                          {event: goodStore},
		"an integer":                            {event: 7, want: ReasonMalformed},
		"an empty array":                        {event: []any{}, want: ReasonMalformed},
		"a tag that is a number":                {event: []any{3}, want: ReasonMalformed},
		"a map without a type":                  {event: fields{"event_type", "stored"}, want: ReasonUnknownType},
		"a type at the end":                     {event: append(goodStore.without("type"), "type", "BlockStored")},
		"a type twice":                          {event: append(slices.Clone(goodStore), "type", "BlockStored"), want: ReasonMalformed},
		"a field twice":                         {event: append(slices.Clone(goodStore), "medium", "CPU"), want: ReasonMalformed},
		"too many keys":                         {event: manyKeys, want: ReasonMalformed},
		"a key that is a number":                {event: append(slices.Clone(goodStore), 5, 5), want: ReasonMalformed},
		"a store without hashes":                {event: goodStore.without("block_hashes"), want: ReasonMalformed},
		"a store without a parent field":        {event: goodStore.without("parent_block_hash"), want: ReasonMalformed},
		"an array cut after the parent":         {event: []any{"BlockStored", []any{1}, nil}},
		"a negative block size":                 {event: goodStore.with("block_size", -2), want: ReasonMalformed},
		"a block size that is a float":          {event: goodStore.with("block_size", 2.0), want: ReasonMalformed},
		"a huge block size":                     {event: goodStore.with("block_size", maxEventTokens+1), want: ReasonMalformed},
		"a medium that is a number":             {event: goodStore.with("medium", 1), want: ReasonMalformed},
		"a medium past the limit":               {event: goodStore.with("medium", long), want: ReasonMalformed},
		"a medium in lower case":                {event: goodStore.with("medium", "cpu_pinned")},
		"a medium nobody knows":                 {event: goodStore.with("medium", "cuda:0"), want: ReasonUnknownMedium},
		"a remote locality":                     {event: goodStore.with("locality", "remote"), want: ReasonNonLocal},
		"a local locality":                      {event: goodStore.with("locality", "LOCAL")},
		"a locality nobody knows":               {event: goodStore.with("locality", "NEARBY"), want: ReasonNonLocal},
		"a group without every token":           {event: goodStore.with("kv_cache_spec_kind", "mamba"), want: ReasonNonMainGroup},
		"a group with every token":              {event: goodStore.with("kv_cache_spec_kind", "mla_attention")},
		"a masked group is not unaligned":       {event: goodStore.with("kv_cache_spec_kind", "sliding_window").with("token_ids", []any{1, 2, 3}), want: ReasonNonMainGroup},
		"a token that is a float":               {event: goodStore.with("token_ids", []any{1, 2, 3, 4.0}), want: ReasonMalformed},
		"a token that is nil":                   {event: goodStore.with("token_ids", []any{1, 2, 3, nil}), want: ReasonMalformed},
		"token pairs":                           {event: goodStore.with("token_ids", []any{[]any{1, 2}, []any{2, 3}, []any{3, 4}, []any{4, 5}})},
		"a token triple":                        {event: goodStore.with("token_ids", []any{1, 2, 3, []any{4, 5, 6}}), want: ReasonMalformed},
		"a string among tokens":                 {event: goodStore.with("token_ids", []any{1, "<img>", 3, 4}), want: ReasonMultimodalTokens},
		"strings in a map type span":            {event: goodStore.with("mm_keys", []any{[]any{fields{"type", "mm_key"}}, nil}), want: ReasonExtraKey},
		"empty multimodal keys":                 {event: goodStore.with("mm_keys", []any{[]any{}, nil})},
		"one token too few":                     {event: goodStore.with("token_ids", []any{1, 2, 3}), want: ReasonUnaligned},
		"no tokens":                             {event: goodStore.with("token_ids", nil)},
		"an adapter id":                         {event: goodStore.with("lora_id", 7)},
		"an adapter id without a name":          {event: goodStore.with("lora_id", 8), want: ReasonUnmappedLoRA},
		"an adapter id with a name":             {event: goodStore.with("lora_id", 8).with("lora_name", "l")},
		"an adapter name that is bytes":         {event: goodStore.with("lora_name", []byte("l")), want: ReasonMalformed},
		"too few extra keys":                    {event: goodStore.with("extra_keys", []any{nil}), want: ReasonExtraKey},
		"extra keys that are a map":             {event: goodStore.with("extra_keys", fields{}), want: ReasonExtraKey},
		"an extra key entry that is a string":   {event: goodStore.with("extra_keys", []any{"x", nil}), want: ReasonExtraKey},
		"a salt":                                {event: goodStore.with("extra_keys", []any{[]any{"salt"}, nil})},
		"two salts":                             {event: goodStore.with("extra_keys", []any{[]any{"salt", "salt"}, nil}), want: ReasonExtraKey},
		"an empty salt":                         {event: goodStore.with("extra_keys", []any{[]any{""}, nil}), want: ReasonExtraKey},
		"a salt below a parent":                 {event: goodStore.with("parent_block_hash", 9).with("extra_keys", []any{[]any{"salt"}, nil}), want: ReasonExtraKey},
		"two different salts":                   {event: goodStore.with("cache_salt", "other").with("extra_keys", []any{[]any{"salt"}, nil}), want: ReasonExtraKey},
		"the same salt twice":                   {event: goodStore.with("cache_salt", "salt").with("extra_keys", []any{[]any{"salt"}, nil})},
		"a salt that is a number":               {event: goodStore.with("cache_salt", 4), want: ReasonMalformed},
		"an adapter that is not first":          {event: goodStore.with("lora_name", "l").with("extra_keys", []any{nil, []any{[]any{"img", 0}, "l"}}), want: ReasonExtraKey},
		"a pair without a number":               {event: goodStore.with("extra_keys", []any{nil, []any{[]any{"img", "0"}}}), want: ReasonExtraKey},
		"a triple":                              {event: goodStore.with("extra_keys", []any{nil, []any{[]any{"img", 0, 0}}}), want: ReasonExtraKey},
		"a nil among extra keys":                {event: goodStore.with("extra_keys", []any{nil, []any{nil}}), want: ReasonExtraKey},
		"a parent of its own":                   {event: goodStore.with("parent_block_hash", uint64(12)), want: ReasonSelfParent},
		"a session id of another type":          {event: goodStore.with("session_id", 12)},
		"a window of another type":              {event: goodStore.with("kv_cache_spec_sliding_window", "wide")},
		"an index 7 that is a number":           {event: []any{"BlockStored", []any{1}, nil, []any{1, 2}, 2, nil, "GPU", 5}, want: ReasonMalformed},
		"an index 7 that is a map of something": {event: []any{"BlockStored", []any{1}, nil, []any{1, 2}, 2, nil, "GPU", fields{"x", 5, "cache_salt", nil}}},
		"a removal without hashes":              {event: []any{"BlockRemoved"}, want: ReasonMalformed},
		"a removal of nothing":                  {event: []any{"BlockRemoved", []any{}}},
		"a removal with an unknown medium":      {event: []any{"BlockRemoved", []any{1}, "TAPE"}, want: ReasonUnknownMedium},
		"a clear with more":                     {event: []any{"AllBlocksCleared", 1, "x"}},
		"an extension value":                    {event: raw{0xd4, 1, 2}, want: ReasonMalformed},
		"more tokens than an event may have":    {event: goodStore.with("token_ids", manyTokens), want: ReasonMalformed},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			decoder := NewDecoder(Options{LoRAIDs: map[int64]string{7: "seven"}})
			batch, err := decoder.Decode(encodeBatch(t, tc.event, []any{"AllBlocksCleared"}))
			if err != nil {
				t.Fatal(err)
			}
			if got := batch.Events[0].Reason; got != tc.want {
				t.Errorf("reason %q, want %q", got, tc.want)
			}
			if got := batch.Events[1]; got.Kind != KindCleared || got.Reason != ReasonNone {
				t.Errorf("the next event is %+v", got)
			}
		})
	}
}

func TestDecodeBatchShape(t *testing.T) {
	events := []any{[]any{"AllBlocksCleared"}}
	tooMany := raw(binary.BigEndian.AppendUint32([]byte{0xdd}, maxBatchEvents+1))
	tooMany = append(tooMany, bytes.Repeat([]byte{0xc0}, maxBatchEvents+1)...)
	tests := map[string]struct {
		batch      any
		wantErr    error
		wantMicros int64
		wantRank   int64
		wantFields []FieldCount
	}{
		"no rank":                        {batch: []any{5.5, events}, wantMicros: 5_500_000},
		"a rank":                         {batch: []any{5.5, events, 3}, wantMicros: 5_500_000, wantRank: 3},
		"more elements":                  {batch: []any{5.5, events, nil, "x", 1}, wantMicros: 5_500_000, wantFields: []FieldCount{{"batch_3", 1}, {"batch_4", 1}}},
		"integer seconds":                {batch: []any{1700000000, events, nil}, wantMicros: 1700000000_000000},
		"integer milliseconds":           {batch: []any{1700000000500, events, nil}, wantMicros: 1700000000_500000},
		"a short float":                  {batch: []any{float32(2), events, nil}, wantMicros: 2_000_000},
		"no time":                        {batch: []any{nil, events, nil}},
		"a negative time":                {batch: []any{-1, events, nil}},
		"an infinite time":               {batch: []any{math.Inf(1), events, nil}},
		"a time that is no number":       {batch: []any{math.NaN(), events, nil}},
		"a time that is a string":        {batch: []any{"now", events, nil}, wantErr: ErrMalformedBatch},
		"a rank that is a string":        {batch: []any{1, events, "0"}, wantErr: ErrMalformedBatch},
		"events that are a map":          {batch: []any{1, fields{}, nil}, wantErr: ErrMalformedBatch},
		"too many events":                {batch: []any{1, tooMany, nil}, wantErr: ErrMalformedBatch},
		"a map without a time":           {batch: fields{"events", events}},
		"a map with events twice":        {batch: fields{"events", events, "events", events}, wantErr: ErrMalformedBatch},
		"a map with an unknown field":    {batch: fields{"events", events, "epoch", 4}, wantFields: []FieldCount{{"epoch", 1}}},
		"a scalar":                       {batch: 5, wantErr: ErrMalformedBatch},
		"nothing":                        {batch: raw{}, wantErr: ErrMalformedBatch},
		"an unreadable byte in an array": {batch: []any{1, []any{[]any{"Other", raw{0xc1}}}, nil}, wantErr: ErrMalformedBatch},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			payload := appendValue(t, nil, tc.batch)
			batch, err := NewDecoder(Options{}).Decode(payload)
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("error %v, want %v", err, tc.wantErr)
			}
			if err != nil {
				return
			}
			if batch.TimestampMicros != tc.wantMicros || batch.Rank != tc.wantRank {
				t.Errorf("time %d rank %d, want %d %d", batch.TimestampMicros, batch.Rank, tc.wantMicros, tc.wantRank)
			}
			if diff := cmp.Diff(tc.wantFields, batch.UnknownFields); diff != "" {
				t.Errorf("unknown fields (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeDepth(t *testing.T) {
	nested := func(depth int) raw {
		b := bytes.Repeat([]byte{0x91}, depth)
		return append(b, 0xc0)
	}
	// An event is at depth 3, a field's container at 4.
	for depth, wantErr := range map[int]error{maxDepth - eventDepth: nil, maxDepth - eventDepth + 1: ErrMalformedBatch} {
		payload := encodeBatch(t, goodStore.with("later", nested(depth)))
		if _, err := NewDecoder(Options{}).Decode(payload); !errors.Is(err, wantErr) {
			t.Errorf("%d arrays in a field: error %v, want %v", depth, err, wantErr)
		}
	}
}

func TestDecodeOversizedPayload(t *testing.T) {
	if _, err := NewDecoder(Options{}).Decode(make([]byte, maxPayloadBytes+1)); !errors.Is(err, ErrMalformedBatch) {
		t.Errorf("error %v, want %v", err, ErrMalformedBatch)
	}
}

// integers lists every encoding that msgpack has for a value.
func integers(value int64) map[string]raw {
	out := map[string]raw{}
	if value >= -32 && value < 128 {
		out["fix"] = raw{byte(value)}
	}
	if value >= math.MinInt8 && value <= math.MaxInt8 {
		out["int8"] = raw{0xd0, byte(value)}
	}
	if value >= math.MinInt16 && value <= math.MaxInt16 {
		out["int16"] = binary.BigEndian.AppendUint16(raw{0xd1}, uint16(value))
	}
	if value >= math.MinInt32 && value <= math.MaxInt32 {
		out["int32"] = binary.BigEndian.AppendUint32(raw{0xd2}, uint32(value))
	}
	out["int64"] = binary.BigEndian.AppendUint64(raw{0xd3}, uint64(value))
	if value < 0 {
		return out
	}
	if value <= math.MaxUint8 {
		out["uint8"] = raw{0xcc, byte(value)}
	}
	if value <= math.MaxUint16 {
		out["uint16"] = binary.BigEndian.AppendUint16(raw{0xcd}, uint16(value))
	}
	if value <= math.MaxUint32 {
		out["uint32"] = binary.BigEndian.AppendUint32(raw{0xce}, uint32(value))
	}
	out["uint64"] = binary.BigEndian.AppendUint64(raw{0xcf}, uint64(value))
	return out
}

func TestDecodeIntegerWidths(t *testing.T) {
	forms := map[string]func(hash, token, size, group, parent any) any{
		"array": func(hash, token, size, group, parent any) any {
			return []any{"BlockStored", []any{hash}, parent, []any{token, token}, size, nil, "GPU", nil, nil, group}
		},
		"map": func(hash, token, size, group, parent any) any {
			return fields{
				"type", "BlockStored", "block_hashes", []any{hash}, "parent_block_hash", parent,
				"token_ids", []any{token, token}, "block_size", size, "group_idx", group,
			}
		},
	}
	for form, build := range forms {
		for _, hash := range []int64{-1, -33, -129, -70000, math.MinInt64, 5, 200, 70000, 1 << 40, math.MaxInt64} {
			for width, encoded := range integers(hash) {
				batch, err := NewDecoder(Options{}).Decode(encodeBatch(t, build(encoded, 1, 2, 0, nil)))
				if err != nil || batch.Events[0].Reason != ReasonNone {
					t.Fatalf("%s, hash %d as %s: %v", form, hash, width, err)
				}
				if got := batch.Events[0].Hashes[0]; got != uint64(hash) {
					t.Errorf("%s, hash %d as %s: %x", form, hash, width, got)
				}
			}
		}
		for _, small := range []int64{2, 100} {
			for width, encoded := range integers(small) {
				event := build(1, encoded, 2, encoded, encoded)
				batch, err := NewDecoder(Options{}).Decode(encodeBatch(t, event))
				if err != nil {
					t.Fatal(err)
				}
				got := batch.Events[0]
				if got.Reason != ReasonNone || got.Tokens[0] != uint32(small) || got.Group != small || got.Parent != uint64(small) {
					t.Errorf("%s, %d as %s: %+v", form, small, width, got)
				}
			}
		}
		for width, encoded := range integers(2) {
			batch, err := NewDecoder(Options{}).Decode(encodeBatch(t, build(1, 9, encoded, 0, nil)))
			if err != nil || batch.Events[0].BlockSize != 2 {
				t.Errorf("%s, block size as %s: %v", form, width, err)
			}
		}
	}
}

func TestDecodeHashForms(t *testing.T) {
	digest := bytes.Repeat([]byte{0xab}, 32)
	copy(digest[24:], []byte{1, 2, 3, 4, 5, 6, 7, 8})
	const want = 0x0102030405060708
	for name, hash := range map[string]any{
		"32 bytes": digest, "16 bytes": digest[16:], "8 bytes": digest[24:],
		"a string": string(digest), "an integer": uint64(want),
	} {
		for form, event := range map[string]any{
			"array": []any{"BlockStored", []any{hash}, hash, []any{}, 0},
			"map":   fields{"block_hashes", []any{hash}, "parent_block_hash", hash, "type", "BlockStored"},
		} {
			batch, err := NewDecoder(Options{}).Decode(encodeBatch(t, event))
			if err != nil || batch.Events[0].Reason != ReasonNone {
				t.Fatalf("%s, %s: %v", name, form, err)
			}
			got := batch.Events[0]
			if got.Hashes[0] != want || got.Parent != want || got.HashBytes != (name != "an integer") {
				t.Errorf("%s, %s: %x", name, form, got.Hashes)
			}
		}
	}
}

func TestDecodeExtraKeys(t *testing.T) {
	event := goodStore.with("lora_name", "l").with("extra_keys", []any{
		[]any{"l", []any{"img-1", -3}, []any{"img-2", 0}, "salt", []byte("embed")},
		[]any{"l", []any{"img-1", -5}},
	})
	batch, err := NewDecoder(Options{}).Decode(encodeBatch(t, event))
	if err != nil {
		t.Fatal(err)
	}
	got := batch.Events[0]
	if got.Adapter != "l" || got.Salt != "salt" || got.SaltStated {
		t.Errorf("adapter %q salt %q stated %v", got.Adapter, got.Salt, got.SaltStated)
	}
	want := [][]fingerprint.Identifier{
		{{ID: "img-1", Offset: -3}, {ID: "img-2"}, {ID: "embed", Offset: math.MinInt64}},
		{{ID: "img-1", Offset: -5}},
	}
	if diff := cmp.Diff(want, got.Multimodal); diff != "" {
		t.Errorf("identifiers (-want +got):\n%s", diff)
	}
}

func TestDecodeUnknownFieldsAreBounded(t *testing.T) {
	event := goodStore.with("two words", 1).with(strings.Repeat("n", 65), 1)
	for i := range 30 {
		event = event.with(fmt.Sprintf("field_%d", i), []any{fields{"x", 1}})
	}
	surplus := make([]any, 200)
	surplus[0], surplus[1] = "BlockRemoved", []any{}
	batch, err := NewDecoder(Options{}).Decode(encodeBatch(t, event, surplus))
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, field := range batch.UnknownFields {
		total += field.Count
		if len(field.Name) > maxUnknownNameBytes || strings.Contains(field.Name, " ") {
			t.Errorf("name %q", field.Name)
		}
	}
	// 32 map fields, and the array elements after the known three fields.
	if want := 32 + 196; total != want || len(batch.UnknownFields) > maxUnknownFields+1 {
		t.Errorf("%d fields under %d names, want %d", total, len(batch.UnknownFields), want)
	}
}

func TestRank(t *testing.T) {
	tests := map[string]struct {
		payload  []byte
		wantRank int64
		wantOK   bool
	}{
		"a rank":       {payload: appendValue(t, nil, []any{1.5, []any{goodStore}, 3}), wantRank: 3, wantOK: true},
		"a nil rank":   {payload: appendValue(t, nil, []any{1.5, []any{}, nil})},
		"two elements": {payload: appendValue(t, nil, []any{1.5, []any{}})},
		"no batch":     {payload: []byte{0xc1}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if rank, ok := Rank(tc.payload); rank != tc.wantRank || ok != tc.wantOK {
				t.Errorf("rank %d %v, want %d %v", rank, ok, tc.wantRank, tc.wantOK)
			}
		})
	}
}
