// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"encoding/binary"
	"errors"
	"math"
)

// EndOfReplay is the sequence of a replay's end marker.
const EndOfReplay = math.MaxUint64

// ErrBadFrame is returned for a message whose frames are not those of a batch.
var ErrBadFrame = errors.New("frames are not [topic] sequence payload")

// ParseLive splits a live message: an optional topic, a sequence of 8 bytes
// (big-endian) and the payload. It reads from the end of the list.
func ParseLive(frames [][]byte) (topic []byte, sequence uint64, payload []byte, err error) {
	sequence, payload, ok := splitTail(frames)
	if !ok || len(payload) == 0 || sequence == EndOfReplay {
		return nil, 0, nil, ErrBadFrame
	}
	if len(frames) > 2 {
		topic = frames[len(frames)-3]
	}
	return topic, sequence, payload, nil
}

// ParseReplay splits a message that answers a replay request, in the layout
// with or without a topic. end is true for the marker after the last batch.
func ParseReplay(frames [][]byte) (sequence uint64, payload []byte, end bool, err error) {
	for len(frames) > 2 && len(frames[0]) == 0 {
		frames = frames[1:]
	}
	sequence, payload, ok := splitTail(frames)
	if !ok {
		return 0, nil, false, ErrBadFrame
	}
	if len(payload) == 0 || sequence == EndOfReplay {
		return 0, nil, true, nil
	}
	return sequence, payload, false, nil
}

// ReplayRequest returns the frames a DEALER sends to ask for from and later.
func ReplayRequest(from uint64) [][]byte {
	return [][]byte{{}, binary.BigEndian.AppendUint64(nil, from)}
}

func splitTail(frames [][]byte) (sequence uint64, payload []byte, ok bool) {
	if len(frames) < 2 || len(frames[len(frames)-2]) != 8 {
		return 0, nil, false
	}
	return binary.BigEndian.Uint64(frames[len(frames)-2]), frames[len(frames)-1], true
}
