// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"net/http"
	"strings"
)

// Verdict is what a gate says of a caller. Its text is a metric label.
type Verdict string

// Verdicts.
const (
	OK Verdict = "ok"
	// Unauthenticated callers showed no token, or none that is good for the
	// audience.
	Unauthenticated Verdict = "unauth"
	// Forbidden callers are known and are not the one admitted.
	Forbidden Verdict = "forbidden"
	// Error means that the gate could not tell; nobody is admitted.
	Error Verdict = "error"
)

// Verdicts returns all verdicts.
func Verdicts() []Verdict { return []Verdict{OK, Unauthenticated, Forbidden, Error} }

// Open admits everyone.
type Open struct{}

// Check returns OK.
func (Open) Check(*http.Request) Verdict { return OK }

// Bearer returns the token of a request's one Authorization header. False
// means that there is none, or that it is of another form.
func Bearer(r *http.Request) (token string, ok bool) {
	headers := r.Header.Values("Authorization")
	if len(headers) != 1 {
		return "", false
	}
	return ParseBearer(headers[0])
}

// ParseBearer returns the token of an Authorization header's value.
func ParseBearer(value string) (token string, ok bool) {
	scheme, rest, _ := strings.Cut(strings.TrimSpace(value), " ")
	token = strings.TrimSpace(rest)
	return token, strings.EqualFold(scheme, "Bearer") && token != ""
}
