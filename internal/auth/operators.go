// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/inferencecache/inference-cache/internal/gate"
)

// AudienceOperator is the audience of operators' tokens.
const AudienceOperator = "inferencecache.io/operator"

// OperatorOptions of Operators. With a Reviewer, Subjects or Access say who is
// an operator; Tokens need neither.
type OperatorOptions struct {
	// Reviewer judges tokens. Default none.
	Reviewer Reviewer
	// Subjects are users and groups. Default none.
	Subjects []string
	// Access reviews who is none of the subjects. Default nobody else.
	Access *Access
	// Tokens are static ones. Default none.
	Tokens *gate.TokenGate
	// Metrics, Logger and Now are those of ReviewOptions.
	Metrics *Metrics
	Logger  *slog.Logger
	Now     func() time.Time
}

// Operators judges the tokens of operators, who may see every tenant and
// change nothing. A nil Operators knows none. It is safe for concurrent use.
type Operators struct {
	tokens  *gate.TokenGate // nil without
	reviews *Reviews        // nil without
}

// maxOperators bounds the tokens remembered.
const maxOperators = 256

// NewOperators returns Operators, which Close ends.
func NewOperators(options OperatorOptions) *Operators {
	o := &Operators{tokens: options.Tokens}
	if options.Reviewer == nil || len(options.Subjects) == 0 && options.Access == nil {
		return o
	}
	o.reviews = NewReviews(ReviewOptions{
		Reviewer:    options.Reviewer,
		Audience:    AudienceOperator,
		Endpoint:    EndpointOperator,
		MaxAdmitted: maxOperators,
		Metrics:     options.Metrics,
		Logger:      options.Logger,
		Now:         options.Now,
		Permit: func(ctx context.Context, id *Identity) gate.Verdict {
			id.Reads = NewNames(everyName)
			named := func(who string) bool { return slices.Contains(options.Subjects, who) }
			switch {
			case named(id.Subject.User) || slices.ContainsFunc(id.Subject.Groups, named):
				return gate.OK
			case options.Access != nil:
				return options.Access.IsOperator(ctx, id)
			}
			return gate.Forbidden
		},
	})
	return o
}

// Close ends the reviews under way.
func (o *Operators) Close() {
	if o != nil && o.reviews != nil {
		o.reviews.Close()
	}
}

// Claims reports whether a token is for Authenticate to judge. Whether it is
// good, only that tells.
func (o *Operators) Claims(token string) bool {
	switch {
	case o == nil || len(token) > maxTokenBytes:
		return false
	case o.tokens != nil && o.tokens.Holds(token):
		return true
	}
	return o.reviews != nil && names(token, AudienceOperator)
}

// Authenticate returns whose token it is, like Reviews.Authenticate.
func (o *Operators) Authenticate(ctx context.Context, source, token string) (Identity, gate.Verdict) {
	if o.tokens != nil && o.tokens.Holds(token) {
		return Identity{Name: "operator-token-file", Reads: NewNames(everyName)}, gate.OK
	}
	if o.reviews == nil {
		return Identity{}, gate.Unauthenticated
	}
	return o.reviews.Authenticate(ctx, source, token)
}

// Checker judges the callers of an HTTP endpoint.
type Checker interface {
	Check(*http.Request) gate.Verdict
}

// Beside returns a gate that admits operators beside those of another gate.
func (o *Operators) Beside(other Checker) Checker {
	if o == nil {
		return other
	}
	return &withOperators{other, o}
}

type withOperators struct {
	other     Checker
	operators *Operators
}

// Check implements Checker.
func (g *withOperators) Check(request *http.Request) gate.Verdict {
	token, ok := gate.Bearer(request)
	if !ok || !g.operators.Claims(token) {
		return g.other.Check(request)
	}
	_, verdict := g.operators.Authenticate(request.Context(), sourceOf(request), token)
	return verdict
}

// audiences is the aud claim of a token: one name or a list.
type audiences []string

// UnmarshalJSON implements json.Unmarshaler.
func (a *audiences) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*a = audiences{one}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(a))
}

// names reports whether a token says that it is for an audience. Nothing is
// verified: it only tells which review to ask for.
func names(token, audience string) bool {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return false
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return false
	}
	var claims struct {
		Audiences audiences `json:"aud"`
	}
	return json.Unmarshal(text, &claims) == nil && slices.Contains(claims.Audiences, audience)
}
