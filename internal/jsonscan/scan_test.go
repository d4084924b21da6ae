// SPDX-License-Identifier: Apache-2.0

package jsonscan

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestObject(t *testing.T) {
	tests := map[string]struct {
		data    string
		want    []string
		wantErr error
	}{
		"members come in order with their raw values": {
			data: ` { "a" : 1 , "b":[1, {"c":"}"}],"d":"x\"y" } `,
			want: []string{"a=1", `b=[1, {"c":"}"}]`, `d="x\"y"`},
		},
		"repeated keys are all visited": {data: `{"a":1,"a":2}`, want: []string{"a=1", "a=2"}},
		"escaped keys are unescaped":    {data: `{"\u006dodel":"m"}`, want: []string{`model="m"`}},
		"an empty object has no member": {data: `{}`},
		"an array is not an object":     {data: `[1]`, wantErr: ErrNotObject},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			err := Object([]byte(tc.data), func(key, value []byte) error {
				got = append(got, string(key)+"="+string(value))
				return nil
			})
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("Object: %v, want %v", err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("members (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSyntaxErrors(t *testing.T) {
	for _, data := range []string{
		"", "{", `{"a"`, `{"a":}`, `{"a":1,}`, `{"a":1} x`, `{a:1}`, `{"a":01}`, `{"a":1.}`,
		`{"a":1e}`, `{"a":"\x"}`, `{"a":"\u12g4"}`, "{\"a\":\"\n\"}", `{"a":tru}`, `{"a":[1,]}`,
		`{"a":` + strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth) + `}`,
	} {
		var syntax *SyntaxError
		if err := Object([]byte(data), nil); !errors.As(err, &syntax) {
			t.Errorf("Object(%.20q) = %v, want a SyntaxError", data, err)
		}
	}
}

func TestUint32s(t *testing.T) {
	tests := map[string]struct {
		data string
		want []uint32
		ok   bool
	}{
		"plain":        {data: "[1, 2,4294967295]", want: []uint32{1, 2, 4294967295}, ok: true},
		"empty":        {data: "[]", ok: true},
		"compact":      {data: "[0,10,4294967295]", want: []uint32{0, 10, 4294967295}, ok: true},
		"wide":         {data: " [1 ,\n2,  3 ] ", want: []uint32{1, 2, 3}, ok: true},
		"too large":    {data: "[4294967296]"},
		"far too long": {data: "[1,00000000001]"},
		"leading zero": {data: "[1,01,2]"},
		"no element":   {data: "[1,,2]"},
		"a last comma": {data: "[1,2,]"},
		"more after":   {data: "[1,2]]"},
		"negative":     {data: "[-1]"},
		"fraction":     {data: "[1.0]"},
		"string":       {data: `["1"]`},
		"not an array": {data: `{"a":1}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Uint32s(nil, []byte(tc.data))
			if (err == nil) != tc.ok {
				t.Fatalf("error %v, want ok %v", err, tc.ok)
			}
			if diff := cmp.Diff(tc.want, got); tc.ok && diff != "" {
				t.Errorf("numbers (-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzObject compares with encoding/json on validity and on the last value of
// each key.
func FuzzObject(f *testing.F) {
	for _, seed := range []string{`{}`, `{"a":1}`, `{"a":{"b":[1,2e3,"\ud83d\ude00"]}}`, `[]`, `{"a":nul}`, `{"a":-0}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.Count(data, []byte("["))+bytes.Count(data, []byte("{")) > MaxDepth {
			return
		}
		got := map[string]string{}
		err := Object(data, func(key, value []byte) error {
			got[string(key)] = string(value)
			return nil
		})
		var syntax *SyntaxError
		if valid := json.Valid(data); valid == errors.As(err, &syntax) {
			t.Fatalf("valid %v, error %v", valid, err)
		}
		if err != nil || !utf8.Valid(data) {
			return
		}
		want := map[string]json.RawMessage{}
		if err := json.Unmarshal(data, &want); err != nil {
			t.Fatal(err)
		}
		for key, value := range want {
			if got[key] != string(value) {
				t.Fatalf("value of a key is %q, want %q", got[key], value)
			}
		}
	})
}

// FuzzUint32s compares with encoding/json, which takes null for a number.
func FuzzUint32s(f *testing.F) {
	for _, seed := range []string{`[1,2,3]`, `[1, 2]`, `[]`, `[01]`, `[4294967296]`, `[1,]`, `[1]]`, ` [ 1 , 2 ] `, `[1.0]`, `[99999999999,1]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.Contains(data, []byte("null")) {
			return
		}
		got, err := Uint32s(nil, data)
		var want []uint32
		if wantErr := json.Unmarshal(data, &want); (err == nil) != (wantErr == nil) {
			t.Fatalf("error %v, want %v", err, wantErr)
		}
		if err == nil && !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
	})
}

func BenchmarkUint32sOfObject(b *testing.B) {
	data := []byte(`{"tokens":[` + strings.Repeat("1234,", 1<<16) + `1]}`)
	b.SetBytes(int64(len(data)))
	var tokens []uint32
	for b.Loop() {
		err := Object(data, func(_, value []byte) (err error) {
			tokens, err = Uint32s(tokens[:0], value)
			return err
		})
		if err != nil || len(tokens) != 1<<16+1 {
			b.Fatal(err)
		}
	}
}
