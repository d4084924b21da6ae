// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Schema is the version of the records.
const Schema = 1

// Maybe is a value that may be unknown. Unknown is null in JSON.
type Maybe[T any] struct {
	Value T
	Known bool
}

// Known returns a known value.
func Known[T any](value T) Maybe[T] { return Maybe[T]{value, true} }

// MarshalJSON implements json.Marshaler.
func (m Maybe[T]) MarshalJSON() ([]byte, error) {
	if !m.Known {
		return null, nil
	}
	switch value := any(m.Value).(type) {
	case int:
		return strconv.AppendInt(nil, int64(value), 10), nil
	case int64:
		return strconv.AppendInt(nil, value, 10), nil
	case float64:
		if math.IsNaN(value) || math.IsInf(value, 0) {
			return null, nil
		}
	}
	return json.Marshal(m.Value)
}

// null is what encodes the unknown; callers only read it.
var null = []byte("null")

// UnmarshalJSON implements json.Unmarshaler.
func (m *Maybe[T]) UnmarshalJSON(data []byte) error {
	*m = Maybe[T]{}
	if string(data) == "null" {
		return nil
	}
	m.Known = true
	return json.Unmarshal(data, &m.Value)
}

// Text is a string that is null in JSON when empty.
type Text string

// MarshalJSON implements json.Marshaler.
func (t Text) MarshalJSON() ([]byte, error) {
	if t == "" {
		return null, nil
	}
	return json.Marshal(string(t))
}

// Join holds the fields of every record; they tie the records of a request
// together.
type Join struct {
	Schema int  `json:"schema"`
	Kind   Kind `json:"kind"`
	// GatewayEpoch is a UUID of the process.
	GatewayEpoch string `json:"gateway_epoch"`
	TSUnixNS     int64  `json:"ts_unix_ns"`
	// RootID joins the attempts of a request. Clients may choose it, so it may
	// not be unique. CallerID is the id in the body, never the same thing.
	RootID          string `json:"root_id"`
	RootIDSource    string `json:"root_id_source"`
	RootIDTruncated bool   `json:"root_id_truncated"`
	CallerID        Text   `json:"caller_id"`
	// DispatchID is unique for each dispatch, null where there was none.
	DispatchID Text `json:"dispatch_id"`
	// Attempt counts from 0.
	Attempt  Maybe[int] `json:"attempt"`
	Model    string     `json:"model"`
	Endpoint string     `json:"endpoint"`
	Mode     string     `json:"mode"`
}

// Truncated says which lists met their bound with something left over.
type Truncated struct {
	Selections bool `json:"selections"`
	Candidates bool `json:"candidates"`
	Gates      bool `json:"gates"`
	Scores     bool `json:"scores"`
	IDs        bool `json:"ids"`
	Line       bool `json:"line"`
}

func (t *Truncated) any() bool { return *t != Truncated{} }

// Record is one record. Exactly the part of its kind is set.
type Record struct {
	Join
	Dispatch  *Dispatch
	Failure   *Failure
	Outcome   *Outcome
	Omitted   *Omitted
	Truncated Truncated

	// request tells apart the requests of one recorder.
	request uint64
}

// Dispatch is what is known just before sending.
type Dispatch struct {
	EngineIDs         []EngineID `json:"engine_ids"`
	EngineIDsTotal    Maybe[int] `json:"engine_ids_total"`
	EngineIDsComplete bool       `json:"engine_ids_complete"`
	Selections        []Choice   `json:"selections"`
	SelectionsTotal   int        `json:"selections_total"`
	PolicyRevision    Text       `json:"policy_revision"`
	// CacheEvidence is "unknown": nothing here proves what a cache holds.
	CacheEvidence string `json:"cache_evidence"`
}

// EngineID is an id that an engine's logs carry.
type EngineID struct {
	ID   string `json:"id"`
	Role Role   `json:"role"`
	// Parent is the id a child of a fan-out was made from.
	Parent     string `json:"parent,omitempty"`
	ChildIndex *int   `json:"child_index,omitempty"`
}

// Children returns the ids of n children of a request, in order. With n below
// 2 there is no fan-out, and the id stands for itself.
func (e EngineID) Children(n int) []EngineID {
	if n < 2 {
		return []EngineID{e}
	}
	children := make([]EngineID, n)
	for i := range children {
		children[i] = EngineID{ID: fmt.Sprintf("%s-n%d", e.ID, i), Role: e.Role, Parent: e.ID, ChildIndex: &i}
	}
	return children
}

// Failure is how an attempt failed.
type Failure struct {
	Phase string `json:"phase"`
	// Role is the leg that failed; left out where there is only one.
	Role Role `json:"role,omitempty"`
	// Status is the HTTP status of the engine or of our answer; 0 for none.
	Status    int    `json:"status"`
	ErrorCode string `json:"error_code"`
	Retryable bool   `json:"retryable"`
	WillRetry bool   `json:"will_retry"`
	// NextBackoffMS is the planned wait; unknown without a retry.
	NextBackoffMS   Maybe[int64] `json:"next_backoff_ms"`
	Selections      []Choice     `json:"selections"`
	SelectionsTotal int          `json:"selections_total"`
}

// Outcome is how an answer ended. Only EngineCachedTokens is evidence of what
// a cache held, and it is the engine's own figure.
type Outcome struct {
	// Role is the leg that ended; left out where there is only one.
	Role       Role           `json:"role,omitempty"`
	Status     int            `json:"status"`
	TTFBMS     Maybe[float64] `json:"ttfb_ms"`
	DurationMS float64        `json:"duration_ms"`
	Replica    Text           `json:"replica"`
	// Aborted says that the answer did not reach the client in full.
	Aborted bool `json:"aborted"`
	// Partial says that another leg's outcome ends the attempt.
	Partial            bool       `json:"-"`
	PromptTokens       Maybe[int] `json:"prompt_tokens"`
	EngineCachedTokens Maybe[int] `json:"engine_cached_tokens"`
	EngineEvidence     string     `json:"engine_evidence"`
	// ServedEndpointMatches is set where a proxy tells who really answered.
	ServedEndpointMatches *bool `json:"served_endpoint_matches,omitempty"`
}

// Omitted says why a response lacks its header. Bytes is the length that it
// would have had.
type Omitted struct {
	Reason string `json:"reason"`
	Bytes  int    `json:"bytes"`
}

// Choice is a closed selection.
type Choice struct {
	Role      Role   `json:"role"`
	ItemIndex *int   `json:"item_index,omitempty"`
	Policy    string `json:"policy"`
	Origin    string `json:"origin"`
	// DelegatedTo is the policy that a sticky branch asked.
	DelegatedTo        Text        `json:"delegated_to"`
	Replica            Text        `json:"replica"`
	Prediction         *Prediction `json:"prediction"`
	Candidates         []Candidate `json:"candidates"`
	CandidatesTotal    int         `json:"candidates_total"`
	CandidatesComplete bool        `json:"candidates_complete"`
	Gates              []Gate      `json:"gates"`
	Scores             []Score     `json:"scores"`
	LoadSource         string      `json:"load_source"`
	LoadObserved       string      `json:"load_observed"`
	SnapshotAtomic     bool        `json:"snapshot_atomic"`
	EligibilityScope   string      `json:"eligibility_scope"`
	TieBreak           string      `json:"tie_break"`
	DurationUS         int64       `json:"duration_us"`
	// Elided counts the entries that a bound on the line's length removed.
	Elided map[string]int `json:"elided,omitempty"`
}

// Prediction is what a choice expects of a cache. It is never a hit.
type Prediction struct {
	Source string `json:"source"`
	Branch string `json:"branch"`
	// ReasonCode is the index's, verbatim.
	ReasonCode      Text         `json:"reason_code"`
	Note            Text         `json:"note"`
	LookupLatencyUS Maybe[int64] `json:"lookup_latency_us"`
	HashScheme      string       `json:"hash_scheme"`
	Adapter         string       `json:"adapter"`
	Tier            Text         `json:"tier"`
	// OverlapBlocks is what the chosen replica is expected to hold,
	// BestOverlapBlocks the most that any replica is.
	OverlapBlocks     Maybe[int] `json:"overlap_blocks"`
	BestOverlapBlocks Maybe[int] `json:"best_overlap_blocks"`
	RequestBlocks     Maybe[int] `json:"request_blocks"`
	BlockSize         Maybe[int] `json:"block_size"`
	// CreditedTokens is 0 unless the chosen replica holds the prefix.
	CreditedTokens int `json:"credited_tokens"`
}

// Candidate is a replica as a choice saw it.
type Candidate struct {
	Replica       Text           `json:"replica"`
	Load          int            `json:"load"`
	QueueTokens   Maybe[int64]   `json:"queue_tokens"`
	KVUsage       Maybe[float64] `json:"kv_usage"`
	Healthy       bool           `json:"healthy"`
	Ready         bool           `json:"ready"`
	Circuit       string         `json:"circuit"`
	Overloaded    bool           `json:"overloaded"`
	OverlapBlocks Maybe[int]     `json:"overlap_blocks"`
	CacheEpoch    Text           `json:"cache_epoch"`
}

// Gate is one test of one candidate.
type Gate struct {
	Kind      string  `json:"kind"`
	Replica   Text    `json:"replica"`
	Observed  Measure `json:"observed"`
	Threshold Measure `json:"threshold"`
	Pass      bool    `json:"pass"`
}

// Score is what a source gives a candidate.
type Score struct {
	Source        string         `json:"source"`
	Replica       Text           `json:"replica"`
	Value         Maybe[float64] `json:"value"`
	MatchedTokens Maybe[int]     `json:"matched_tokens"`
	RequestTokens Maybe[int]     `json:"request_tokens"`
}

// Measure is a number or, if Name is set, an object with that one part. The
// zero value is unknown.
type Measure struct {
	Name   string
	Number Maybe[float64]
}

// Number returns a plain number.
func Number(value float64) Measure { return Measure{Number: Known(value)} }

// Part returns an object with one named part.
func Part(name string, value float64) Measure { return Measure{Name: name, Number: Known(value)} }

// MarshalJSON implements json.Marshaler.
func (m Measure) MarshalJSON() ([]byte, error) {
	number, err := m.Number.MarshalJSON()
	if err != nil || m.Name == "" {
		return number, err
	}
	name, err := json.Marshal(m.Name)
	return slices.Concat([]byte{'{'}, name, []byte{':'}, number, []byte{'}'}), err
}

// UnmarshalJSON implements json.Unmarshaler.
func (m *Measure) UnmarshalJSON(data []byte) error {
	*m = Measure{}
	if len(data) == 0 || data[0] != '{' {
		return m.Number.UnmarshalJSON(data)
	}
	var parts map[string]Maybe[float64]
	if err := json.Unmarshal(data, &parts); err != nil {
		return err
	}
	if len(parts) != 1 {
		return fmt.Errorf("measure with %d parts: expected one", len(parts))
	}
	for name, number := range parts {
		m.Name, m.Number = name, number
	}
	return nil
}

// The JSON forms of the kinds of records: one flat object.
type (
	dispatchForm struct {
		Join
		*Dispatch
		Truncated Truncated `json:"truncated"`
	}
	failureForm struct {
		Join
		*Failure
		Truncated Truncated `json:"truncated"`
	}
	outcomeForm struct {
		Join
		*Outcome
		Truncated Truncated `json:"truncated"`
	}
	omittedForm struct {
		Join
		*Omitted
		Truncated Truncated `json:"truncated"`
	}
)

// MarshalJSON implements json.Marshaler.
func (r Record) MarshalJSON() ([]byte, error) {
	form, err := r.form()
	if err != nil {
		return nil, err
	}
	return json.Marshal(form)
}

// form returns what the record's JSON is made from.
func (r *Record) form() (any, error) {
	switch r.Kind {
	case KindDispatch:
		return &dispatchForm{r.Join, r.Dispatch, r.Truncated}, nil
	case KindFailure:
		return &failureForm{r.Join, r.Failure, r.Truncated}, nil
	case KindOutcome:
		return &outcomeForm{r.Join, r.Outcome, r.Truncated}, nil
	case KindHeaderOmitted:
		return &omittedForm{r.Join, r.Omitted, r.Truncated}, nil
	default:
		return nil, fmt.Errorf("encode record: unknown kind %.32q", string(r.Kind))
	}
}

// errSchema refuses records of another version.
var errSchema = errors.New("record has an unknown schema: expected 1")

// UnmarshalJSON implements json.Unmarshaler. Unknown members are ignored.
func (r *Record) UnmarshalJSON(data []byte) error {
	*r = Record{}
	if err := json.Unmarshal(data, &r.Join); err != nil {
		return fmt.Errorf("decode record: %w", err)
	}
	if r.Schema != Schema {
		return errSchema
	}
	var body any
	switch r.Kind {
	case KindDispatch:
		r.Dispatch = &Dispatch{}
		body = r.Dispatch
	case KindFailure:
		r.Failure = &Failure{}
		body = r.Failure
	case KindOutcome:
		r.Outcome = &Outcome{}
		body = r.Outcome
	case KindHeaderOmitted:
		r.Omitted = &Omitted{}
		body = r.Omitted
	default:
		return fmt.Errorf("decode record: unknown kind %.32q", string(r.Kind))
	}
	rest := struct {
		Truncated *Truncated `json:"truncated"`
	}{&r.Truncated}
	if err := errors.Join(json.Unmarshal(data, body), json.Unmarshal(data, &rest)); err != nil {
		return fmt.Errorf("decode %s record: %w", r.Kind, err)
	}
	return nil
}
