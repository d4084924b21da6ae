// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/inferencecache/inference-cache/internal/gate"
)

// Resources that exist for access reviews only. The verb is get.
const (
	// ResourceLookups, in the namespace of a tenant's name, is what a reader
	// of the tenant needs.
	ResourceLookups = "lookups"
	// ResourceOperators is what an operator needs. It has no namespace.
	ResourceOperators = "operators"

	accessGroup = "inferencecache.io"
	accessVerb  = "get"
)

const (
	// maxAccess bounds the answers remembered.
	maxAccess = 16_384
	// maxAsking bounds the reviews that run at once.
	maxAsking = 16
	// accessPerSecond and accessBurst bound what one caller may cause.
	accessPerSecond = 50
	accessBurst     = 500
	// accessAhead is how long before it would be forgotten an answer in use
	// is asked again.
	accessAhead = 10 * time.Second
	// maxTenantBytes is the length of the longest tenant id.
	maxTenantBytes = 256
)

// Subject is a user as an API server knows it. It is immutable.
type Subject struct {
	User, UID string
	Groups    []string
	Extra     map[string][]string

	sum tokenSum // of all the rest
}

// NewSubject returns a subject, whose slices and map must not change.
func NewSubject(user, uid string, groups []string, extra map[string][]string) Subject {
	sum := sha256.New()
	write := func(parts ...string) {
		for _, part := range parts {
			var length [4]byte
			binary.BigEndian.PutUint32(length[:], uint32(len(part)))
			sum.Write(length[:])
			_, _ = io.WriteString(sum, part)
		}
	}
	write(user, uid, fmt.Sprint(len(groups)))
	write(groups...)
	for _, key := range slices.Sorted(maps.Keys(extra)) {
		write(key, fmt.Sprint(len(extra[key])))
		write(extra[key]...)
	}
	s := Subject{User: user, UID: uid, Groups: groups, Extra: extra}
	sum.Sum(s.sum[:0])
	return s
}

// Wish is what a subject wants to see.
type Wish struct {
	Subject Subject
	// Resource is one of the constants, Namespace the tenant of lookups.
	Resource, Namespace string
}

// AccessReviewer decides about wishes. An error means that it could not.
type AccessReviewer interface {
	ReviewAccess(ctx context.Context, w Wish) (allowed bool, err error)
}

// AccessOptions of an Access. Reviewer is required.
type AccessOptions struct {
	Reviewer AccessReviewer
	// Metrics counts reviews. Default nowhere.
	Metrics *Metrics
	// Logger takes failures. Default none.
	Logger *slog.Logger
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Access tells what callers may see by an AccessReviewer. It remembers what
// was allowed for 30 s, asking again ahead of time while it is in use, and
// what was denied for 5 s. At most 16 reviews run at once, and one caller may
// cause 50 a second. It is safe for concurrent use.
type Access struct {
	reviewer AccessReviewer
	metrics  *Metrics
	logger   *slog.Logger
	asking   chan struct{} // one element for each review that runs

	lookups, operators *memo[accessKey, Wish, struct{}]
}

type accessKey struct {
	subject   tokenSum
	namespace string
}

// NewAccess returns an Access, which Close ends.
func NewAccess(o AccessOptions) *Access {
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	a := &Access{reviewer: o.Reviewer, metrics: o.Metrics, logger: o.Logger, asking: make(chan struct{}, maxAsking)}
	memory := func(resource string) *memo[accessKey, Wish, struct{}] {
		callers := newSources(accessPerSecond, accessBurst)
		return newMemo[accessKey](memoOptions[Wish, struct{}]{
			maxAdmitted:  maxAccess,
			refreshAhead: accessAhead,
			now:          o.Now,
			allow:        func(w Wish, now time.Time) bool { return callers.allow(w.Subject.User, now) },
			ask:          a.ask,
			count:        func(result string) { a.count(resource, result) },
		})
	}
	a.lookups, a.operators = memory(ResourceLookups), memory(ResourceOperators)
	return a
}

// Close ends the reviews under way and refuses new ones.
func (a *Access) Close() {
	a.lookups.close()
	a.operators.close()
}

// MayRead says whether a caller may read a tenant: OK, Forbidden or Error. It
// waits for a review at most until ctx ends. Callers that an API server does
// not know may not.
func (a *Access) MayRead(ctx context.Context, id *Identity, tenant string) gate.Verdict {
	if id.Subject.User == "" || tenant == "" || len(tenant) > maxTenantBytes {
		return gate.Forbidden
	}
	wish := Wish{Subject: id.Subject, Resource: ResourceLookups, Namespace: tenant}
	_, verdict := a.lookups.get(ctx, accessKey{id.Subject.sum, tenant}, wish)
	return verdict
}

// IsOperator says whether a caller is an operator, like MayRead.
func (a *Access) IsOperator(ctx context.Context, id *Identity) gate.Verdict {
	if id.Subject.User == "" {
		return gate.Forbidden
	}
	_, verdict := a.operators.get(ctx, accessKey{subject: id.Subject.sum}, Wish{Subject: id.Subject, Resource: ResourceOperators})
	return verdict
}

// ask waits for its turn and asks the reviewer.
func (a *Access) ask(ctx context.Context, w Wish) (none struct{}, verdict gate.Verdict) {
	select {
	case a.asking <- struct{}{}:
		defer func() { <-a.asking }()
	case <-ctx.Done():
		a.count(w.Resource, resultLimited)
		return none, gate.Error
	}
	allowed, err := a.reviewer.ReviewAccess(ctx, w)
	switch {
	case err != nil:
		a.count(w.Resource, resultError)
		a.logger.Warn("access could not be reviewed", "resource", w.Resource, "caller", loggable(w.Subject.User, ""),
			"error", loggable(err.Error(), ""))
		return none, gate.Error
	case !allowed:
		a.count(w.Resource, resultDenied)
		return none, gate.Forbidden
	}
	a.count(w.Resource, resultOK)
	return none, gate.OK
}

func (a *Access) count(resource, result string) {
	a.metrics.access.WithLabelValues(resource, result).Inc()
}

// accessReview is authorization.k8s.io/v1 SubjectAccessReview, as far as it is
// used.
type accessReview struct {
	APIVersion string             `json:"apiVersion"`
	Kind       string             `json:"kind"`
	Spec       accessReviewSpec   `json:"spec"`
	Status     accessReviewStatus `json:"status,omitzero"`
}

type accessReviewSpec struct {
	Resource resourceAttributes  `json:"resourceAttributes"`
	User     string              `json:"user"`
	UID      string              `json:"uid,omitempty"`
	Groups   []string            `json:"groups,omitempty"`
	Extra    map[string][]string `json:"extra,omitempty"`
}

type resourceAttributes struct {
	Namespace string `json:"namespace,omitempty"`
	Verb      string `json:"verb"`
	Group     string `json:"group"`
	Resource  string `json:"resource"`
}

type accessReviewStatus struct {
	Allowed bool `json:"allowed,omitempty"`
	Denied  bool `json:"denied,omitempty"`
}

// ReviewAccess implements AccessReviewer.
func (s *APIServer) ReviewAccess(ctx context.Context, w Wish) (allowed bool, err error) {
	text, err := s.post(ctx, accessReviewPath, accessReview{
		APIVersion: "authorization.k8s.io/v1",
		Kind:       "SubjectAccessReview",
		Spec: accessReviewSpec{
			Resource: resourceAttributes{Namespace: w.Namespace, Verb: accessVerb, Group: accessGroup, Resource: w.Resource},
			User:     w.Subject.User, UID: w.Subject.UID, Groups: w.Subject.Groups, Extra: w.Subject.Extra,
		},
	})
	if err == nil {
		allowed, err = decodeAccess(text)
	}
	if err != nil {
		return false, fmt.Errorf("access review: %w", err)
	}
	return allowed, nil
}

// decodeAccess reads what an API server answers.
func decodeAccess(text []byte) (allowed bool, err error) {
	var answer accessReview
	if err := json.Unmarshal(text, &answer); err != nil {
		return false, errors.New("the answer is not an access review in JSON")
	}
	if answer.Kind != "SubjectAccessReview" {
		return false, errors.New("the answer is of another kind than SubjectAccessReview")
	}
	return answer.Status.Allowed && !answer.Status.Denied, nil
}
