// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"net/url"
	"strconv"
	"strings"
)

// maxRank is the highest data-parallel rank of a replica.
const maxRank = 1023

// Identity is who a caller proved to be.
type Identity struct {
	// Name is the user name of a review, the URI of a certificate, or the
	// place of a token in its file.
	Name string
	// PodUID is the uid of the pod that a token is bound to; "" if it is
	// bound to none or the credential does not tell.
	PodUID string
	// Writes are the tenants it may write to, Replica the one replica it may
	// write as: a name whose ranks it owns too, "*" for every name, "" for
	// none.
	Writes  Names
	Replica string
	// Reads are the tenants that the credential itself lets it read.
	Reads Names
	// Subject is who it is to an API server; zero for static tokens.
	Subject Subject
}

// serviceAccountPrefix starts the user names of service accounts.
const serviceAccountPrefix = "system:serviceaccount:"

// podIdentity is that of a workload: name, its namespace and its pod, which
// may be unknown.
func podIdentity(name, namespace, pod, podUID string) Identity {
	id := Identity{Name: name, PodUID: podUID}
	if namespace != "" && pod != "" {
		id.Writes, id.Replica = oneName(namespace), pod
	}
	return id
}

// identityOf turns a review into an identity. Only service accounts are bound
// to pods.
func identityOf(r Review) Identity {
	namespace := ""
	if rest, ok := strings.CutPrefix(r.Username, serviceAccountPrefix); ok {
		namespace, _, _ = strings.Cut(rest, ":")
	}
	id := podIdentity(r.Username, namespace, r.Pod, r.PodUID)
	id.Subject = NewSubject(r.Username, r.UID, r.Groups, r.Extra)
	return id
}

// Producer reports whether it may write at all.
func (id Identity) Producer() bool { return id.Replica != "" && !id.Writes.Empty() }

// OwnsReplica reports whether it may write as replica.
func (id Identity) OwnsReplica(replica string) bool {
	return id.Replica == everyName || id.Replica != "" && (replica == id.Replica || PodOf(replica) == id.Replica)
}

// Same reports whether other is the same workload: a renewed token has the
// identity of the one it replaces.
func (id Identity) Same(other Identity) bool {
	return id.Name == other.Name && id.Replica == other.Replica && id.PodUID == other.PodUID
}

// PodOf returns the pod that a replica id names: the id without its
// data-parallel rank. An id without a well-formed rank is the pod's own.
func PodOf(replica string) string {
	at := strings.LastIndexByte(replica, '#')
	if at < 0 {
		return replica
	}
	digits := replica[at+1:]
	rank, err := strconv.Atoi(digits)
	if err != nil || rank < 0 || rank > maxRank || strconv.Itoa(rank) != digits {
		return replica
	}
	return replica[:at]
}

// CertificateIdentity returns who the URIs of a verified client certificate
// name; false when it has not exactly one. A URI of the form
// spiffe://<domain>/ns/<namespace>/pod/<pod> names a pod.
func CertificateIdentity(uris []*url.URL) (Identity, bool) {
	if len(uris) != 1 {
		return Identity{}, false
	}
	uri := uris[0]
	var namespace, pod string
	if parts := strings.Split(strings.TrimPrefix(uri.Path, "/"), "/"); uri.Scheme == "spiffe" &&
		len(parts) == 4 && parts[0] == "ns" && parts[2] == "pod" {
		namespace, pod = parts[1], parts[3]
	}
	if pod == everyName {
		return Identity{}, false
	}
	id := podIdentity(uri.String(), namespace, pod, "")
	id.Subject = NewSubject(id.Name, "", nil, nil)
	return id, true
}
