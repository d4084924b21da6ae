// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"

	"github.com/inferencecache/inference-cache/internal/chatform"
	"github.com/inferencecache/inference-cache/internal/engines"
)

// optionalRoutes are endpoints that not every engine offers.
func optionalRoutes(visit func(bit uint32, r *route)) {
	bit := uint32(1)
	for i := range routes {
		if routes[i].form != chatform.None {
			visit(bit, &routes[i])
			bit <<= 1
		}
	}
}

// readOffers asks which of the optional endpoints the replica has.
func (g *Gateway) readOffers(ctx context.Context, u *upstream) {
	ctx, cancel := context.WithTimeout(ctx, g.options.Timeouts.Health)
	defer cancel()
	offers := u.offers.Load()
	optionalRoutes(func(bit uint32, r *route) {
		there, err := engines.Offers(ctx, u.client, u.base.String(), r.path)
		switch {
		case err != nil:
		case there:
			offers |= bit
		default:
			offers &^= bit
		}
	})
	u.offers.Store(offers)
}

// unfit returns the replicas that do not have the request's endpoint.
func (x *exchange) unfit() []string {
	if x.route.form == chatform.None {
		return nil
	}
	var own uint32
	optionalRoutes(func(bit uint32, r *route) {
		if r == x.route {
			own = bit
		}
	})
	var ids []string
	for id, u := range x.gateway.roster.all() {
		if u.offers.Load()&own == 0 {
			ids = append(ids, id)
		}
	}
	return ids
}

// errHiddenSalts keeps a replica out whose blocks could be taken for those of
// another tenant.
var errHiddenSalts = errors.New("its KV events cannot show cache salts, which keep tenants apart")

// checkSalts refuses engines whose events hide the salts that are derived here.
func (g *Gateway) checkSalts(ctx context.Context, u *upstream) error {
	if g.saltKey == nil || g.index == nil || g.options.Access.AllowHiddenSalts {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, g.options.Timeouts.Health)
	defer cancel()
	version, err := engines.Version(ctx, u.client, u.base.String(), u.Runtime)
	if err != nil {
		return fmt.Errorf("engine version: %w", err)
	}
	if !engines.ShowsSalts(u.Runtime, version) {
		return fmt.Errorf("%s %.32q: %w", u.Runtime, version, errHiddenSalts)
	}
	return nil
}
