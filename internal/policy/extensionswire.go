// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
)

// ExtensionsVersion is the schema version of an ExtensionSet's wire form.
const ExtensionsVersion = 1

// maxRevisionBytes bounds the revision a sender gives its extensions.
const maxRevisionBytes = 64

// maxSeedBlocks bounds how many blocks an affinity seed may be limited to.
const maxSeedBlocks = 4096

// DecodeExtensions reads the wire form of extensions as strictly as
// DecodeSnapshot does, with the same kinds of errors.
func DecodeExtensions(body []byte) (*ExtensionSet, error) {
	set := &ExtensionSet{Origin: Origin{Bytes: len(body)}}
	if err := value(body).object(set.set); err != nil {
		return nil, fmt.Errorf("decode policy extensions: %w", err)
	}
	if set.Version != ExtensionsVersion {
		return nil, versionError(fmt.Sprintf("unsupported policy extensions version %d: expected %d", set.Version, ExtensionsVersion))
	}
	set.Templates = lastOfEach(set.Templates, func(t Template) [2]string { return [2]string{t.Namespace, t.Name} })
	set.Topologies = lastOfEach(set.Topologies, func(t PDTopology) [2]string { return [2]string{t.Namespace, t.Name} })
	return set, nil
}

// lastOfEach keeps the last of the elements with equal keys, and none whose
// key is incomplete.
func lastOfEach[T any](all []T, key func(T) [2]string) []T {
	last := make(map[[2]string]int, len(all))
	for i, element := range all {
		last[key(element)] = i
	}
	kept := all[:0]
	for i, element := range all {
		if k := key(element); k[0] != "" && k[1] != "" && last[k] == i {
			kept = append(kept, element)
		}
	}
	return kept
}

func (s *ExtensionSet) set(name string, v value) error {
	switch name {
	case "version":
		return version(v, &s.Version)
	case "revision":
		return s.setRevision(v)
	case "policies":
		return v.list(func(element value) error {
			var extensions NamespaceExtensions
			err := element.object(extensions.set)
			s.Policies = append(s.Policies, extensions)
			return err
		})
	case "templates":
		return v.list(func(element value) error {
			var template Template
			err := element.object(template.set)
			s.Templates = append(s.Templates, template)
			return err
		})
	case "pdTopologies":
		return v.list(func(element value) error {
			var topology PDTopology
			err := element.object(topology.set)
			s.Topologies = append(s.Topologies, topology)
			return err
		})
	}
	return ErrUnknownField
}

// setRevision takes what can stand in a header.
func (s *ExtensionSet) setRevision(v value) error {
	if err := v.text(&s.Revision); err != nil {
		return err
	}
	if len(s.Revision) > maxRevisionBytes {
		return fmt.Errorf("expected at most %d bytes", maxRevisionBytes)
	}
	for _, c := range []byte(s.Revision) {
		if c <= ' ' || c > '~' {
			return errors.New("expected visible ASCII characters")
		}
	}
	return nil
}

func (e *NamespaceExtensions) set(name string, v value) error {
	switch name {
	case "namespace":
		return v.text(&e.Namespace)
	case "affinityHash":
		return oneOf(v, &e.Hash, map[string]AffinityHash{"Modulo": HashModulo, "Rendezvous": HashRendezvous})
	case "affinitySeedBlocks":
		var n int32
		err := integer(v, &n)
		if err == nil && (n < 0 || n > maxSeedBlocks) {
			err = fmt.Errorf("expected 0 to %d", maxSeedBlocks)
		}
		e.SeedBlocks = int(n)
		return err
	case "affinityMaxPressure":
		err := v.float32(&e.MaxPressure)
		if err == nil && (e.MaxPressure < 0 || e.MaxPressure > 1) {
			err = errors.New("expected 0 to 1")
		}
		return err
	case "equalHolders":
		return oneOf(v, &e.EqualHolders, map[string]EqualHolders{"Affinity": EqualHoldersAffinity, "Load": EqualHoldersLoad})
	}
	return ErrUnknownField
}

func (t *Template) set(name string, v value) error {
	switch name {
	case "namespace":
		return v.text(&t.Namespace)
	case "name":
		return v.text(&t.Name)
	case "body":
		err := v.text(&t.Body)
		if err == nil && len(t.Body) > MaxTemplateBytes {
			err = fmt.Errorf("expected at most %d bytes", MaxTemplateBytes)
		}
		return err
	case "slots":
		return v.list(t.addSlot)
	}
	return ErrUnknownField
}

func (t *Template) addSlot(element value) error {
	var slot Slot
	if err := element.object(slot.set); err != nil {
		return err
	}
	if slot.Name == "" || slot.Type == "" {
		return errors.New("expected a name and a type")
	}
	t.Slots = append(t.Slots, slot)
	return nil
}

func (s *Slot) set(name string, v value) error {
	switch name {
	case "name":
		return v.text(&s.Name)
	case "type":
		return oneOf(v, &s.Type, map[string]SlotType{"Stable": SlotStable, "Mutable": SlotMutable})
	case "required":
		return v.boolean(&s.Required)
	}
	return ErrUnknownField
}

func (t *PDTopology) set(name string, v value) error {
	switch name {
	case "namespace":
		return v.text(&t.Namespace)
	case "name":
		return v.text(&t.Name)
	case "model":
		return v.text(&t.Model)
	case "prefill":
		return v.list(appendText(&t.Prefill))
	case "decode":
		return v.list(appendText(&t.Decode))
	case "transport":
		return oneOf(v, &t.Transport, map[string]Transport{
			"": TransportUnknown, "Mooncake": TransportMooncake, "NIXL": TransportNIXL, "Direct": TransportDirect,
		})
	}
	return ErrUnknownField
}

func appendText(dst *[]string) func(value) error {
	return func(element value) error {
		var text string
		err := element.text(&text)
		*dst = append(*dst, text)
		return err
	}
}
