// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controlclient"
	"github.com/inferencecache/inference-cache/internal/propagate"
)

// Reasons of the condition Programmed.
const (
	reasonProgrammed   = "Programmed"
	reasonPushFailed   = "PushFailed"
	reasonRejected     = "Rejected"
	reasonTooLarge     = "TooLarge"
	reasonNoServers    = "NoServers"
	reasonNotEchoed    = "NotEchoed"
	reasonNotEffective = "NotEffective"
	reasonNoQuota      = "NoQuota"
)

// answer is how one server answered the last push.
type answer struct {
	server string
	last   *outcome // nil before the first
}

// tally is what all servers have of the current push.
type tally struct {
	current *push
	answers []answer // sorted by server
}

// part is the part of a push that an object is in.
type part struct {
	// revision of the part in a push.
	revision func(*push) string
	// echoed is the revision of the part that a server says it has.
	echoed func(controlclient.Identity) string
	// failed is why a server has not taken the part, nil if it has.
	failed func(*outcome) error
	// optional parts are not known to older servers.
	optional bool
}

var (
	policyPart = part{
		revision: func(p *push) string { return p.policies.Revision },
		echoed:   func(i controlclient.Identity) string { return i.PolicyRevision },
		failed:   func(o *outcome) error { return o.policies },
	}
	extensionsPart = part{
		revision: func(p *push) string { return p.extensions.Revision },
		echoed:   func(i controlclient.Identity) string { return i.ExtensionsRevision },
		failed:   func(o *outcome) error { return o.extensions },
		optional: true,
	}
)

// programming is the condition Programmed and the counts beside it.
type programming struct {
	condition
	// pending is set while some server has not been asked: there is nothing
	// new to say.
	pending             bool
	programmed, desired int32
}

// programmed says whether every server has the parts of the current push. An
// older push counts when it carried the object as it is now.
func (t *tally) programmed(carried func(*push) bool, parts ...part) programming {
	result := programming{desired: int32(len(t.answers))}
	result.kind = v1alpha1.ConditionProgrammed
	if len(t.answers) == 0 {
		result.status, result.reason, result.message = metav1.ConditionUnknown, reasonNoServers, "no server was found"
		return result
	}
	var (
		failed complaints
		silent []string
	)
	for _, a := range t.answers {
		reason, text := t.judge(a.last, carried, parts)
		switch reason {
		case reasonProgrammed:
			result.programmed++
		case "":
			result.pending = true
		case reasonNotEchoed:
			silent = append(silent, a.server)
		default:
			failed.add(a.server, text)
			if result.reason == "" {
				result.reason = reason
			}
		}
	}
	switch {
	case failed.any():
		result.pending = false
		result.status, result.message = metav1.ConditionFalse, failed.message(maxMessageBytes)
	case result.pending:
	case silent != nil:
		result.status, result.reason = metav1.ConditionUnknown, reasonNotEchoed
		result.message = "accepted, but not confirmed by a revision: " + joined(silent, maxMessageBytes/2)
	default:
		result.status, result.reason = metav1.ConditionTrue, reasonProgrammed
		result.message = fmt.Sprintf("applied by %d of %d servers", result.programmed, result.desired)
	}
	return result
}

// judge returns "" while the server's answer to the current push is awaited.
func (t *tally) judge(o *outcome, carried func(*push) bool, parts []part) (reason, text string) {
	if o == nil {
		return "", ""
	}
	reason = reasonProgrammed
	for _, p := range parts {
		current := p.revision(o.push) == p.revision(t.current)
		switch err := p.failed(o); {
		case err != nil && p.optional && absent(err):
			reason = reasonNotEchoed
		case err != nil:
			return failure(err)
		case !current && !carried(o.push):
			return "", ""
		case p.echoed(o.identity) == "":
			reason = reasonNotEchoed
		case p.echoed(o.identity) != p.revision(o.push):
			return reasonPushFailed, "another revision is in force"
		}
	}
	return reason, ""
}

// absent reports whether the server has no such endpoint.
func absent(err error) bool {
	var refused *controlclient.RefusedError
	return errors.As(err, &refused) && refused.Status == http.StatusNotFound
}

func failure(err error) (reason, text string) {
	var refused *controlclient.RefusedError
	switch {
	case errors.Is(err, controlclient.ErrTooLarge):
		return reasonTooLarge, err.Error()
	case errors.As(err, &refused) && refused.Status == http.StatusBadRequest:
		return reasonRejected, refused.Text
	}
	return reasonPushFailed, err.Error()
}

// routed says whether a namespace has routing, or had on some server.
func (t *tally) routed(namespace string) bool {
	return t.current.extensions.Routed[namespace] || slices.ContainsFunc(t.answers, func(a answer) bool {
		return a.last != nil && a.last.held != nil && a.last.held.Routed[namespace]
	})
}

// policy says whether a CachePolicy is in force on every server.
func (t *tally) policy(v propagate.PolicyVerdict) programming {
	switch {
	case !v.Effective:
		return t.fixed(metav1.ConditionFalse, reasonNotEffective, v.Message)
	case len(v.Dropped) > 0:
		return t.fixed(metav1.ConditionFalse, reasonRejected, "the policy wire version in use cannot carry "+strings.Join(v.Dropped, ", "))
	}
	parts := []part{policyPart}
	if t.routed(v.Name.Namespace) {
		parts = append(parts, extensionsPart)
	}
	return t.programmed(func(p *push) bool {
		return slices.ContainsFunc(p.policies.Policies, func(o propagate.PolicyVerdict) bool {
			return o.Name == v.Name && o.Generation == v.Generation && o.Effective
		})
	}, parts...)
}

// tenant says whether a CacheTenant's quota is in force on every server.
func (t *tally) tenant(v propagate.TenantVerdict) programming {
	switch {
	case v.Winner != types.NamespacedName{}:
		return t.fixed(metav1.ConditionFalse, reasonNotEffective, fmt.Sprintf("the quota of CacheTenant %s is in force", v.Winner))
	case !v.Effective:
		return t.fixed(metav1.ConditionTrue, reasonNoQuota, "no quota is declared")
	}
	return t.programmed(func(p *push) bool {
		return slices.ContainsFunc(p.policies.Tenants, func(o propagate.TenantVerdict) bool {
			return o.Name == v.Name && o.Generation == v.Generation && o.Effective
		})
	}, policyPart)
}

// template says whether a PromptTemplate can be rendered by every server.
func (t *tally) template(v propagate.TemplateVerdict) programming {
	if !v.Accepted {
		return t.fixed(metav1.ConditionFalse, reasonNotEffective, "the template is not accepted")
	}
	return t.programmed(func(p *push) bool {
		return slices.ContainsFunc(p.extensions.Templates, func(o propagate.TemplateVerdict) bool {
			return o.Name == v.Name && o.Revision == v.Revision
		})
	}, extensionsPart)
}

// topology says whether every server knows the pools of a PDTopology.
func (t *tally) topology() programming {
	return t.programmed(func(*push) bool { return false }, extensionsPart)
}

func (t *tally) fixed(status metav1.ConditionStatus, reason, message string) programming {
	return programming{
		condition: condition{v1alpha1.ConditionProgrammed, reason, message, status}, desired: int32(len(t.answers)),
	}
}
