// SPDX-License-Identifier: Apache-2.0

package lookup

import "context"

// nobodysScheme is a hash scheme that no producer can report under.
const nobodysScheme = "\x00"

// DecideScheme answers a request that names no hash scheme: by the one scheme
// under which its tenant and model hold keys. Without any the reason says why;
// with several there is no hint.
func (d *Decider) DecideScheme(ctx context.Context, request *Request, out *Decision) {
	switch schemes := d.index.SchemesWithKeys(request.Tenant, request.Model); len(schemes) {
	case 0:
		request.Scheme = nobodysScheme
	case 1:
		request.Scheme = schemes[0]
	default:
		request.Scheme = ""
	}
	d.Decide(ctx, request, out)
	if out.Reason == UnknownHashScheme { // the first key came meanwhile
		out.Reason = NoHint
	}
}
