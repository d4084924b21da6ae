// SPDX-License-Identifier: Apache-2.0

// Package trace records, for one request, who chose a replica, what was
// predicted, which alternatives existed, what was sent where under which ids,
// on which attempt, and how it ended.
//
// A Recorder makes a Request per request, that an Attempt per try, and that a
// Selection per choice of a replica. A selection is an object that is handed
// on, so evidence cannot leak between selections, attempts or goroutines.
// Every method works on a nil receiver and then does nothing.
//
// Records go to up to four places: the log, a file, the latest ones in memory,
// and spans. A compact form of the last dispatch may be added to the response
// as a header. Nothing of it ever changes a decision or makes a request wait.
//
// Predictions are not hits. What the index or our own memory expects of a
// replica is a prediction; only the figure the engine itself reports, in an
// outcome record, is evidence. What is unknown is null, never zero.
//
// No record holds prompt text, token ids, block hashes, credentials, salts or
// client addresses.
package trace
