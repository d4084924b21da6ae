// SPDX-License-Identifier: Apache-2.0

// Package controller keeps the servers and the cluster in step: declared
// policy goes to every server, and what the servers know goes into the status
// of the resources.
//
// The Pusher sends, the Poller reads. The BackendReconciler judges each
// CacheBackend by its pods, by what the Poller has written and by the Prober's
// self-tests; the TopologyReconciler resolves pools for the Pusher. All run on
// the elected leader and know the servers through a Discovery.
package controller
