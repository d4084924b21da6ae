// SPDX-License-Identifier: Apache-2.0

package trace

// headerIDs is what is left of the engine ids when the header is too long.
const headerIDs = 4

// headerForm lists all that a header may hold. It is filled field by field,
// never by taking things out of a full record.
type headerForm struct {
	Schema            int               `json:"schema"`
	RootID            string            `json:"root_id"`
	RootIDTruncated   bool              `json:"root_id_truncated,omitempty"`
	DispatchID        string            `json:"dispatch_id"`
	Attempt           Maybe[int]        `json:"attempt"`
	Mode              string            `json:"mode"`
	EngineIDs         []string          `json:"engine_ids"`
	EngineIDsComplete bool              `json:"engine_ids_complete"`
	Selections        []headerSelection `json:"selections"`
	Truncated         bool              `json:"truncated"`
}

type headerSelection struct {
	Role       Role              `json:"role"`
	Policy     string            `json:"policy"`
	Origin     string            `json:"origin"`
	Replica    *string           `json:"replica,omitempty"`
	Prediction *headerPrediction `json:"prediction"`
}

type headerPrediction struct {
	Source        string     `json:"source"`
	Branch        string     `json:"branch"`
	ReasonCode    Text       `json:"reason_code"`
	OverlapBlocks Maybe[int] `json:"overlap_blocks"`
	// BestOverlapBlocks tells what others cached, so only trusted clients get
	// it.
	BestOverlapBlocks *Maybe[int] `json:"best_overlap_blocks,omitempty"`
	RequestBlocks     Maybe[int]  `json:"request_blocks"`
	BlockSize         Maybe[int]  `json:"block_size"`
}

// newHeader builds the header of a dispatch.
func newHeader(r *Record, withReplica, trusted bool) headerForm {
	h := headerForm{
		Schema: Schema, RootID: r.RootID, RootIDTruncated: r.RootIDTruncated, DispatchID: string(r.DispatchID),
		Attempt: r.Attempt, Mode: r.Mode, EngineIDs: make([]string, len(r.Dispatch.EngineIDs)),
		EngineIDsComplete: r.Dispatch.EngineIDsComplete, Selections: make([]headerSelection, len(r.Dispatch.Selections)),
		Truncated: r.Truncated.any(),
	}
	for i := range r.Dispatch.EngineIDs {
		h.EngineIDs[i] = r.Dispatch.EngineIDs[i].ID
	}
	for i := range r.Dispatch.Selections {
		c := &r.Dispatch.Selections[i]
		h.Selections[i] = headerSelection{Role: c.Role, Policy: c.Policy, Origin: c.Origin}
		if withReplica {
			replica := string(c.Replica)
			h.Selections[i].Replica = &replica
		}
		if p := c.Prediction; p != nil {
			short := &headerPrediction{
				Source: p.Source, Branch: p.Branch, ReasonCode: p.ReasonCode, OverlapBlocks: p.OverlapBlocks,
				RequestBlocks: p.RequestBlocks, BlockSize: p.BlockSize,
			}
			if trusted {
				best := p.BestOverlapBlocks
				short.BestOverlapBlocks = &best
			}
			h.Selections[i].Prediction = short
		}
	}
	return h
}

// encodeHeader returns the value of a header of at most limit bytes, or why it
// is left out and how long it would be.
func encodeHeader(h headerForm, limit int) (value []byte, omitted string, bytes int) {
	value, err := encodeASCII(h)
	if err != nil {
		return nil, OmittedEncoding, 0
	}
	if len(value) > limit && len(h.EngineIDs) > headerIDs {
		h.EngineIDs, h.EngineIDsComplete = h.EngineIDs[:headerIDs], false
		if value, err = encodeASCII(h); err != nil {
			return nil, OmittedEncoding, 0
		}
	}
	if len(value) > limit {
		return nil, OmittedSize, len(value)
	}
	return value, "", len(value)
}
