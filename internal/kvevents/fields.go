// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"strconv"
	"strings"

	"github.com/tinylib/msgp/msgp"
)

// eventDepth is the nesting depth of an event inside its batch.
const eventDepth = 3

// field is one part of an event, whatever the form it comes in.
type field uint8

const (
	fieldUnknown field = iota
	fieldHashes
	fieldParent
	fieldTokens
	fieldBlockSize
	fieldLoRAID
	fieldMedium
	fieldLoRAName // SGLang puts a metadata map here
	fieldExtraKeys
	fieldGroup
	fieldSpecKind
	fieldWindow
	fieldLocality
	fieldSession
	fieldSalt
	fieldMultimodalKeys
	fieldType
	fieldIgnored
)

// storedFields and removedFields give the array form after the tag.
var (
	storedFields = []field{
		fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoRAID, fieldMedium,
		fieldLoRAName, fieldExtraKeys, fieldGroup, fieldSpecKind, fieldWindow,
	}
	removedFields = []field{fieldHashes, fieldMedium, fieldGroup}
)

func fieldOf(name []byte) field {
	switch string(name) {
	case "block_hashes":
		return fieldHashes
	case "parent_block_hash":
		return fieldParent
	case "token_ids":
		return fieldTokens
	case "block_size":
		return fieldBlockSize
	case "lora_id":
		return fieldLoRAID
	case "medium":
		return fieldMedium
	case "lora_name":
		return fieldLoRAName
	case "extra_keys":
		return fieldExtraKeys
	case "group_idx":
		return fieldGroup
	case "kv_cache_spec_kind":
		return fieldSpecKind
	case "kv_cache_spec_sliding_window":
		return fieldWindow
	case "locality":
		return fieldLocality
	case "session_id":
		return fieldSession
	case "cache_salt":
		return fieldSalt
	case "mm_keys":
		return fieldMultimodalKeys
	case "type":
		return fieldType
	case "ownership":
		return fieldIgnored
	default:
		return fieldUnknown
	}
}

// draft holds what is needed to judge an event after all its fields are read.
type draft struct {
	seen      uint32
	hasText   bool // a token is a string
	extraKeys []byte
	mmKeys    bool
}

func (d *Decoder) decodeEvent(c *cursor, e *Event) {
	var r draft
	switch c.next() {
	case msgp.ArrayType:
		d.arrayEvent(c, e, &r)
	case msgp.MapType:
		d.mapEvent(c, e, &r)
	default:
		c.fail()
	}
	if !c.bad && (e.Kind == KindStored || e.Kind == KindRemoved) {
		d.judge(c, e, &r)
	}
}

func kindOf(tag []byte) Kind {
	switch string(tag) {
	case "BlockStored":
		return KindStored
	case "BlockRemoved":
		return KindRemoved
	case "AllBlocksCleared":
		return KindCleared
	default:
		return KindUnknown
	}
}

func (d *Decoder) arrayEvent(c *cursor, e *Event, r *draft) {
	n := c.array()
	tag := c.text()
	if c.bad {
		return
	}
	e.Kind = kindOf(tag)
	var layout []field
	switch e.Kind {
	case KindStored:
		layout = storedFields
	case KindRemoved:
		layout = removedFields
	case KindUnknown:
		e.Reason = ReasonUnknownType
	}
	for i := 1; i < n && !c.bad; i++ {
		if i <= len(layout) {
			d.field(c, e, r, layout[i-1])
			continue
		}
		if e.Kind != KindUnknown {
			d.unknownElement(string(e.Kind), i)
		}
		c.skip(eventDepth + 1)
	}
}

func (d *Decoder) mapEvent(c *cursor, e *Event, r *draft) {
	n := c.mapping()
	tag, ok := findTag(*c, n)
	if !ok {
		c.fail()
		return
	}
	e.Kind = kindOf(tag)
	if e.Kind == KindUnknown {
		e.Reason = ReasonUnknownType
	}
	for ; n > 0 && !c.bad; n-- {
		name := c.text()
		f := fieldOf(name)
		switch {
		case e.Kind == KindUnknown && f != fieldType:
			f = fieldIgnored
		case f == fieldUnknown:
			d.unknownField(name)
		}
		d.field(c, e, r, f)
	}
}

// findTag looks for the type of a map event, which may stand anywhere. A map
// without one has the empty tag. ok is false when it is no string, or the map
// cannot be read.
func findTag(c cursor, n int) (tag []byte, ok bool) {
	for ; n > 0 && !c.bad; n-- {
		if string(c.text()) == "type" {
			tag = c.text()
			break
		}
		c.skip(eventDepth + 1)
	}
	return tag, !c.bad
}

// field reads one field into e. A field that comes twice is an error.
func (d *Decoder) field(c *cursor, e *Event, r *draft, f field) {
	if f == fieldUnknown || f == fieldIgnored {
		c.skip(eventDepth + 1)
		return
	}
	if r.seen&(1<<f) != 0 {
		c.fail()
		return
	}
	r.seen |= 1 << f
	if f == fieldType {
		c.skip(eventDepth + 1)
		return
	}
	if f == fieldHashes {
		first := len(d.hashes)
		d.hashes, e.HashBytes = c.hashes(d.hashes)
		e.Hashes = d.hashes[first:len(d.hashes):len(d.hashes)]
		return
	}
	if c.takeNil() {
		return
	}
	switch f {
	case fieldParent:
		e.Parent, _ = c.hash()
		e.HasParent = true
	case fieldTokens:
		first := len(d.tokens)
		d.tokens, r.hasText = c.tokens(d.tokens)
		e.Tokens = d.tokens[first:len(d.tokens):len(d.tokens)]
	case fieldBlockSize:
		e.BlockSize = c.blockSize()
	case fieldLoRAID:
		e.LoRAID, e.HasLoRAID = c.signed(), true
	case fieldMedium:
		e.Medium = d.text(c.text())
	case fieldLoRAName:
		d.loRANameOrMetadata(c, e)
	case fieldExtraKeys:
		start := c.rest
		c.skip(eventDepth + 1)
		r.extraKeys = start[:len(start)-len(c.rest)]
	case fieldGroup:
		e.Group, e.HasGroup = c.signed(), true
	case fieldSpecKind:
		e.SpecKind = d.text(c.text())
	case fieldLocality:
		e.Locality = d.text(c.text())
	case fieldSalt:
		d.salt(c, e)
	case fieldMultimodalKeys:
		r.mmKeys = c.anyEntry()
	case fieldWindow, fieldSession:
		d.informational(c, e, f)
	}
}

// informational reads fields nothing depends on: another type is passed over.
func (d *Decoder) informational(c *cursor, e *Event, f field) {
	kind := c.next()
	switch {
	case f == fieldWindow && (kind == msgp.IntType || kind == msgp.UintType):
		e.Window = c.signed()
	case f == fieldSession && kind == msgp.StrType:
		e.SessionID = c.text()
	default:
		c.skip(eventDepth + 1)
	}
}

func (d *Decoder) loRANameOrMetadata(c *cursor, e *Event) {
	if c.next() != msgp.MapType {
		e.LoRAName = d.text(c.text())
		return
	}
	for n := c.mapping(); n > 0 && !c.bad; n-- {
		if string(c.text()) != "cache_salt" {
			c.skip(eventDepth + 2)
			continue
		}
		if !c.takeNil() {
			d.salt(c, e)
		}
	}
}

func (d *Decoder) salt(c *cursor, e *Event) {
	salt := d.text(c.text())
	if e.SaltStated && salt != e.Salt {
		c.fail()
		return
	}
	e.Salt, e.SaltStated = salt, salt != ""
}

func (c *cursor) blockSize() int {
	value, negative := c.integer()
	if negative || value > maxEventTokens {
		c.fail()
		return 0
	}
	return int(value)
}

// anyEntry passes over a list of lists and reports whether any has an entry.
func (c *cursor) anyEntry() bool {
	found := false
	for n := c.array(); n > 0 && !c.bad; n-- {
		if c.takeNil() {
			continue
		}
		for m := c.array(); m > 0 && !c.bad; m-- {
			c.skip(eventDepth + 3)
			found = true
		}
	}
	return found
}

const (
	maxUnknownFields    = 16
	maxUnknownNameBytes = 64
)

func (d *Decoder) unknownElement(of string, index int) {
	if len(d.batch.UnknownFields) >= maxUnknownFields {
		d.unknownField(nil)
		return
	}
	d.unknownField([]byte(of + "_" + strconv.Itoa(index)))
}

// unknownField counts a field by name. Names past a bound in number, or that
// do not look like names, share OtherField.
func (d *Decoder) unknownField(name []byte) {
	if d.countUnknown(name) {
		return
	}
	label := OtherField
	if len(d.batch.UnknownFields) < maxUnknownFields && isFieldName(name) {
		label = d.text(name)
	} else if d.countUnknown([]byte(OtherField)) {
		return
	}
	d.batch.UnknownFields = append(d.batch.UnknownFields, FieldCount{Name: label, Count: 1})
}

func (d *Decoder) countUnknown(name []byte) bool {
	for i := range d.batch.UnknownFields {
		if d.batch.UnknownFields[i].Name == string(name) {
			d.batch.UnknownFields[i].Count++
			return true
		}
	}
	return false
}

func isFieldName(name []byte) bool {
	return len(name) > 0 && len(name) <= maxUnknownNameBytes && strings.Trim(string(name),
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == ""
}
