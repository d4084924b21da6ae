// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"time"

	"github.com/inferencecache/inference-cache/internal/jsonscan"
)

// callFields returns the members that decide the ids of the first prompt.
func (p *Prompt) callFields() (fields fieldValues, batch bool, err error) {
	fields = p.fields
	if p.Chat {
		fields[fieldPrompt] = nil
		if len(fields[fieldMessages]) == 0 {
			return fields, false, unsupported()
		}
		return fields, false, nil
	}
	fields[fieldMessages] = nil
	fields[fieldPrompt], batch, err = p.firstPrompt()
	return fields, batch, err
}

// callBody returns the body of a call.
func (p *Prompt) callBody(fields *fieldValues) ([]byte, error) {
	model, err := json.Marshal(p.Model)
	if err != nil {
		return nil, unsupported()
	}
	body := append(make([]byte, 0, p.Bytes()+256), `{"model":`...)
	body = append(body, model...)
	for i, field := range fields {
		if len(field) == 0 {
			continue
		}
		body = append(body, ',', '"')
		body = append(body, templateFields[i]...)
		body = append(body, '"', ':')
		body = append(body, field...)
	}
	return append(body, '}'), nil
}

// mergeArguments puts documents and reasoning effort among the template's
// arguments, where completions have them and /tokenize does not.
func mergeArguments(fields *fieldValues) {
	arguments := fields[fieldTemplateArguments]
	for _, i := range []int{fieldDocuments, fieldReasoningEffort} {
		if len(fields[i]) == 0 || len(arguments) > 0 && (arguments[0] != '{' || hasMember(arguments, templateFields[i])) {
			continue
		}
		merged := append([]byte(`{"`+templateFields[i]+`":`), fields[i]...)
		if rest := bytes.TrimSpace(bytes.TrimPrefix(arguments, []byte("{"))); len(rest) > 1 {
			merged = append(append(merged, ','), rest...)
		} else {
			merged = append(merged, '}')
		}
		arguments = merged
	}
	fields[fieldTemplateArguments] = arguments
}

func hasMember(object []byte, name string) bool {
	found := false
	_ = jsonscan.Object(object, func(key, _ []byte) error {
		found = found || string(key) == name
		return nil
	})
	return found
}

// cacheSlot is how long a result may be used: templates may write the date,
// and dates change on the quarter of some time zone's hour.
const cacheSlot = 15 * time.Minute

// cacheKey hashes everything that decides the ids, each part after its length.
func (p *Prompt) cacheKey(fields *fieldValues, now time.Time) cacheKey {
	hash := sha256.New()
	part := func(value []byte) {
		var length [8]byte
		binary.LittleEndian.PutUint64(length[:], uint64(len(value)))
		hash.Write(length[:])
		hash.Write(value)
	}
	part(binary.LittleEndian.AppendUint64(nil, uint64(now.UnixNano()/int64(cacheSlot))))
	part([]byte(p.Revision))
	part([]byte(p.Partition))
	part([]byte(p.Model))
	part([]byte(p.Runtime))
	for _, field := range fields {
		part(field)
	}
	return cacheKey(hash.Sum(nil))
}
