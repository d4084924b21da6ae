// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"bytes"
	"encoding/json"

	"github.com/inferencecache/inference-cache/internal/jsonscan"
)

// orderedObject is a JSON object whose members keep their order and text.
type orderedObject struct {
	names  []string
	values map[string][]byte
}

func (o *orderedObject) read(raw []byte) error {
	if len(raw) == 0 || raw[0] != '{' {
		return ErrUnsupported
	}
	return jsonscan.Object(raw, func(name, value []byte) error {
		o.set(string(name), value)
		return nil
	})
}

// get returns nil for an absent member.
func (o *orderedObject) get(name string) []byte { return o.values[name] }

func (o *orderedObject) set(name string, value []byte) {
	if o.values == nil {
		o.values = map[string][]byte{}
	}
	if _, known := o.values[name]; !known {
		o.names = append(o.names, name)
	}
	o.values[name] = value
}

// ordered writes the object with the named members first, null where absent.
func (o *orderedObject) ordered(first ...string) []byte {
	var out bytes.Buffer
	out.WriteByte('{')
	written := map[string]bool{}
	write := func(name string) {
		if written[name] {
			return
		}
		written[name] = true
		if out.Len() > 1 {
			out.WriteByte(',')
		}
		quoted, _ := json.Marshal(name) // strings always encode
		out.Write(quoted)
		out.WriteByte(':')
		if value := o.values[name]; len(value) > 0 {
			out.Write(value)
		} else {
			out.WriteString("null")
		}
	}
	for _, name := range first {
		write(name)
	}
	for _, name := range o.names {
		write(name)
	}
	out.WriteByte('}')
	return out.Bytes()
}

// listWriter writes a JSON array of raw elements.
type listWriter struct{ buffer bytes.Buffer }

func newListWriter() *listWriter {
	w := &listWriter{}
	w.buffer.WriteByte('[')
	return w
}

func (w *listWriter) add(raw []byte) {
	if w.buffer.Len() > 1 {
		w.buffer.WriteByte(',')
	}
	w.buffer.Write(raw)
}

func (w *listWriter) empty() bool { return w.buffer.Len() == 1 }

func (w *listWriter) bytes() []byte { return append(w.buffer.Bytes(), ']') }
