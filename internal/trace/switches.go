// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"errors"
	"fmt"

	"github.com/inferencecache/inference-cache/internal/defaults"
)

// Names of the response header, also that of a request that asks for it.
const (
	HeaderName = "X-Inference-Cache-Trace"
	// HeaderAlias is understood by readers of another gateway's header.
	HeaderAlias = "X-Smg-Cache-Trace"
)

// Bounds of the header's value and of a line.
const (
	DefaultHeaderBytes = 2048
	// MaxHeaderBytes is the most that may be asked for: proxies commonly give
	// all headers of an answer 4 to 8 KiB.
	MaxHeaderBytes   = 4096
	DefaultLineBytes = 16384
	minLineBytes     = 1024
)

// HeaderMode says who gets the response header.
type HeaderMode string

// Header modes.
const (
	HeaderOff HeaderMode = "off"
	// HeaderTrusted gives it to clients of trusted listeners only.
	HeaderTrusted HeaderMode = "trusted"
	// HeaderAny gives it to everybody: engine ids and policy predictions then
	// reach untrusted clients.
	HeaderAny HeaderMode = "any"
)

// NameMode says how replicas are named in log lines, in the file and in spans.
type NameMode string

// Name modes.
const (
	NamesFull NameMode = "full"
	// NamesHash gives the first 8 hex digits of a hash whose key lives as long
	// as the process.
	NamesHash NameMode = "hash"
	NamesNone NameMode = "none"
)

// Switches turn parts of the trace on. The zero value turns all off. A request
// keeps the switches it began with.
type Switches struct {
	// Log writes records to the log. Alone it changes no byte of a response.
	Log bool
	// Outcome adds outcome records to the log and the file.
	Outcome bool
	// Sample gives one request in this many lines in the log and the file,
	// the first always; default 1, each. A request is complete or absent. One
	// with a failed attempt is always complete. The header is never sampled.
	Sample int
	// MaxLineBytes bounds a line; default 16384.
	MaxLineBytes int
	// ReplicaNames defaults to NamesFull.
	ReplicaNames NameMode

	// Header defaults to HeaderOff.
	Header HeaderMode
	// MaxHeaderBytes bounds the header's value; default 2048, at most 4096.
	MaxHeaderBytes int
	// HeaderReplica adds the chosen replica's id to the header.
	HeaderReplica bool
	// HeaderName is HeaderName, the default, or HeaderAlias.
	HeaderName string
	// RequestOptin lets a trusted client ask for the header of one request.
	RequestOptin bool
	// OptinTenants are authenticated tenants that may ask too; default none.
	OptinTenants []string
}

// ErrSwitches marks switches that cannot work.
var ErrSwitches = errors.New("trace switches")

func (s Switches) withDefaults() Switches {
	if s.Sample < 1 {
		s.Sample = 1
	}
	defaults.Set(&s.MaxLineBytes, DefaultLineBytes)
	defaults.Set(&s.MaxHeaderBytes, DefaultHeaderBytes)
	defaults.Set(&s.ReplicaNames, NamesFull)
	defaults.Set(&s.Header, HeaderOff)
	defaults.Set(&s.HeaderName, HeaderName)
	return s
}

// Validate says what cannot work, as an ErrSwitches.
func (s Switches) Validate() error {
	s = s.withDefaults()
	problem := ""
	switch {
	case s.MaxHeaderBytes < 1 || s.MaxHeaderBytes > MaxHeaderBytes:
		problem = fmt.Sprintf("header of %d bytes: expected 1 to %d, because common proxies refuse more", s.MaxHeaderBytes, MaxHeaderBytes)
	case s.MaxLineBytes < minLineBytes:
		problem = fmt.Sprintf("line of %d bytes: expected at least %d", s.MaxLineBytes, minLineBytes)
	case s.Header != HeaderOff && s.Header != HeaderTrusted && s.Header != HeaderAny:
		problem = fmt.Sprintf("header %.32q: expected off, trusted or any", string(s.Header))
	case s.ReplicaNames != NamesFull && s.ReplicaNames != NamesHash && s.ReplicaNames != NamesNone:
		problem = fmt.Sprintf("replica names %.32q: expected full, hash or none", string(s.ReplicaNames))
	case s.HeaderName != HeaderName && s.HeaderName != HeaderAlias:
		problem = fmt.Sprintf("header name %.64q: expected %s or %s", s.HeaderName, HeaderName, HeaderAlias)
	default:
		return nil
	}
	return fmt.Errorf("%w: %s", ErrSwitches, problem)
}
